"""`scalefield suggest`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scalefield.defaults import MDE_NAME


@dataclass(frozen=True)
class SuggestCommand:
    """Name the pixels that are worth measuring next, or the anchors that are worth keeping."""

    image: Annotated[Path, tyro.conf.Positional]
    """The photograph."""
    anchors: Path | None = None
    """What is measured already, if anything: .csv, .npz or a sparse 16-bit .png."""
    n: int = 3
    """How many pixels to name."""
    mde: str = MDE_NAME
    """Monocular depth estimator by name; `scalefield models` lists them."""
    depth: Path | None = None
    """A relative depth map of your own instead."""
    kind: Literal["depth", "disparity"] | None = None
    """Whether that map grows with distance (depth) or falls with it (disparity)."""
    reachable: Path | None = None
    """An image that is white where a measurement is possible."""
    among: Path | None = None
    """Choose among these anchors instead, and name the best of them by number."""

    def run(self) -> None:
        """Print a line for each pixel, best first."""
        from scalefield.anchors import Anchors
        from scalefield.files import read_image, read_map
        from scalefield.outputs import in_words
        from scalefield.suggestion import suggest

        spots = suggest(
            self.image,
            None if self.anchors is None else Anchors.read(self.anchors),
            self.n,
            mde=self.mde,
            mde_depth=None if self.depth is None else read_map(self.depth),
            kind=self.kind,
            reachable=None if self.reachable is None else read_image(self.reachable)[..., 0] > 127,
            among=None if self.among is None else Anchors.read(self.among),
        )
        for spot in spots:
            number = "" if spot.anchor is None else f"#{spot.anchor} "
            print(
                f"{number}u={spot.u} v={spot.v}: now {in_words(spot.std_log)}; measuring it "
                f"removes {100 * spot.removes:.0f} % of the doubt that is left"
            )
