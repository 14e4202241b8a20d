"""`scalefield predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from scalefield.commands.data import check_counts, find_images
from scalefield.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from scalefield.mde.cache import MDECache
    from scalefield.mde.output import MDEOutput


@dataclass(frozen=True)
class PredictCommand:
    """Run an MDE over a folder of images and keep depth and features in the cache.

    A second run continues an interrupted one. An image that cannot be read is named and skipped,
    and the exit code is then 1.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder of images; sub-folders are searched too."""
    mde: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """Depth estimator by name; `scalefield models` lists the names."""
    cache: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Cache folder; by default $SCALEFIELD_CACHE or ~/.cache/scalefield/mde."""
    batch: int = 1
    """Images of one size that are computed together."""
    device: str = "cpu"
    """Device of the estimator, for example cpu, cuda or cuda:1."""
    kind: Literal["depth", "disparity"] | None = None
    """What the MDE predicts, if its architecture does not determine it."""

    def run(self) -> int:
        """Fill the cache; returns 1 if an image could not be read."""
        from scalefield.io import read_image
        from scalefield.mde import load_mde
        from scalefield.mde.cache import MDECache, default_cache
        from scalefield.runtime.progress import progress as progress_bar

        check_counts(self, "batch")
        paths = find_images(self.folder)
        folder = self.cache or default_cache()
        cache = MDECache(folder, load_mde(self.mde, device=self.device, kind=self.kind))
        waiting: dict[tuple[int, ...], list[np.ndarray]] = {}
        computed = kept = bad = 0
        with progress_bar(len(paths), unit="image", desc=cache.name) as progress:
            for path in paths:
                try:
                    image = read_image(path)
                except InputError as e:
                    progress.write(f"scalefield: {e}", file=sys.stderr)
                    bad += 1
                    progress.update()
                    continue
                if (cached := cache.load(image)) is not None:
                    self.agree([cached])
                    kept += 1
                    progress.update()
                    continue
                group = waiting.setdefault(image.shape, [])
                group.append(image)
                if len(group) == self.batch:
                    computed += self.compute(cache, waiting.pop(image.shape))
                    progress.update(self.batch)
            for group in waiting.values():
                computed += self.compute(cache, group)
                progress.update(len(group))
        print(f"{computed} computed, {kept} already there, {bad} unreadable; kept in {folder}")
        return 1 if bad else 0

    def compute(self, cache: MDECache, images: list[np.ndarray]) -> int:
        """Compute images of one size; returns their number."""
        self.agree(cache.batch(images))
        return len(images)

    def agree(self, outputs: Iterable[MDEOutput]) -> None:
        """Refuse outputs of another kind than --kind."""
        for output in outputs:
            if self.kind not in (None, output.kind):
                raise InputError(f"{output.model} gives {output.kind}, and not {self.kind}")
