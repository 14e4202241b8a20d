"""Which scenes a command renders: kinds, seeds, splits, names and image sizes. Pure code."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

GENERATOR_VERSION = "3"
"""Version of the code that lays scenes out. A seed gives the same scene within one version."""

KINDS = ("indoor", "street", "tabletop", "passage")
MIX = tuple("IPSITSIPITSPISPITSIS")
"""One period of kind `mix`, by initials: 7 indoor, 6 street, 3 tabletop and 4 passage scenes."""

DEPTH_SCALE_PER_METRE = {"indoor": 1000, "street": 500, "tabletop": 1000, "passage": 1000}
"""Units of a depth file in one metre: 16 bits reach 65 m at 1000 and 131 m at 500."""
DEPTH_RANGE_M = {
    "indoor": (0.1, 12.0),
    "street": (0.5, 100.0),
    "tabletop": (0.1, 5.0),
    "passage": (0.1, 30.0),
}
"""Nearest and farthest depth that is to be scored."""
SIZES: dict[str, tuple[tuple[int, int], ...]] = {
    "indoor": ((384, 288),),
    "street": ((384, 288), (384, 288), (512, 224), (480, 160), (448, 192)),
    "tabletop": ((384, 288),),
    "passage": ((384, 288), (384, 288), (288, 384)),
}
"""Width and height of the images in pixels; one entry is drawn for each scene."""
SAMPLES = {"indoor": 3, "street": 4, "tabletop": 3, "passage": 4}
"""Samples a pixel. The denoiser does the rest; rooms cost twice as much a sample."""
VAL_ONE_IN = 9
"""One scene in about so many is for val."""


@dataclass(frozen=True)
class SceneSpec:
    """A scene before it is built: what it is, and the seed of everything in it."""

    kind: str
    """One of `KINDS`."""
    seed: int
    """Seed of layout, assets, light, cameras and image noise."""

    @property
    def name(self) -> str:
        """`KIND_SEED`, the name of the scene and the beginning of its frames' names."""
        return f"{self.kind}_{self.seed:05d}"

    @property
    def split(self) -> str:
        """`val` for about one scene in `VAL_ONE_IN`, by a hash of the name; else `train`."""
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        return "val" if int(digest[:8], 16) % VAL_ONE_IN == 0 else "train"

    def rng(self, purpose: str) -> random.Random:
        """A generator for one purpose, so that one part of a scene does not change another."""
        return random.Random(f"{GENERATOR_VERSION}/{self.name}/{purpose}")

    def size(self) -> tuple[int, int]:
        """Width and height of the scene's images in pixels."""
        return self.rng("size").choice(SIZES[self.kind])

    def frame_name(self, view: int) -> str:
        """`KIND_SEED_VIEW`."""
        return f"{self.name}_{view:02d}"


def scene_specs(kind: str, scenes: int, seed: int) -> list[SceneSpec]:
    """`scenes` scenes of a kind, or of all kinds in the proportions of `MIX`, from `seed` on."""
    if kind != "mix" and kind not in KINDS:
        raise ValueError(f"kind must be mix or one of {', '.join(KINDS)}, found {kind!r}")
    initials = {name[0].upper(): name for name in KINDS}
    kinds = [initials[letter] for letter in MIX] if kind == "mix" else [kind]
    return [SceneSpec(kinds[s % len(kinds)], s) for s in range(seed, seed + scenes)]


def is_held_out_style(style: int) -> bool:
    """Whether a style number of our own generators (cars, buildings, trees) is for val alone."""
    return style % 5 == 4


def draw_style(rng: random.Random, split: str, styles: int = 250) -> int:
    """A style number below `styles` that scenes of the split may use."""
    while True:
        style = rng.randrange(styles)
        if is_held_out_style(style) == (split == "val"):
            return style
