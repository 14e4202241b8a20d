"""`scalefield reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalefield.commands.data import DataOptions
from scalefield.commands.evaluate import EvaluateCommand
from scalefield.commands.report import ReportCommand

LWLR_BANDWIDTH = {
    "kitti": "reference_bandwidth_px=25.0, reference_width_px=1242.0",
    "urbansyn": "reference_bandwidth_px=50.0, reference_width_px=640.0",
    "sunrgbd": "reference_bandwidth_px=50.0, reference_width_px=640.0",
}
"""As its authors publish them: 25 px on KITTI, 50 px where nothing else is said."""


def paper_methods(dataset: str) -> tuple[str, ...]:
    """The rows of the paper's tables; K = 30 and 50 are not evaluated with low anchors there."""
    return (
        "Global: global",
        "Grid: grid",
        f"LWLR: lwlr({LWLR_BANDWIDTH[dataset]})",
        "Piecewise: piecewise",
        # Ground-truth labels, which KITTI does not have.
        *(("Region: region",) if dataset != "kitti" else ()),
        "Basis K=8: basis(k=8)",
        "Basis K=30 @medium,high: basis(k=30)",
        "Basis K=50 @medium,high: basis(k=50)",
    )


@dataclass(frozen=True)
class ReproduceCommand:
    """The paper's tables from the raw datasets, beside the paper's own figures.

    Writes our split lists, evaluates every dataset that is given with every MDE, and reports.
    What is already measured is not measured again.
    """

    out: Path
    """Folder for splits, results and report."""
    kitti: Path | None = None
    """Folder of KITTI Raw."""
    urbansyn: Path | None = None
    """Folder of UrbanSyn."""
    sunrgbd: Path | None = None
    """Folder of SUN RGB-D."""
    mdes: tuple[str, ...] = ("da3-base", "midas-hybrid")
    """Estimators by name."""
    split: Literal["test", "val", "all"] = "test"
    """Which frames; all for a handful of frames that make no split."""
    device: str = "cpu"
    """Where the MDEs run."""
    workers: int = 1
    """Processes."""
    limit: int | None = None
    """Take only so many frames of each dataset."""

    def run(self) -> None:
        """Splits, both loops for each dataset and MDE, one report."""
        from scalefield.datasets import open_dataset
        from scalefield.datasets.splits import SPLITS, write_list
        from scalefield.errors import InputError

        roots = {"kitti": self.kitti, "urbansyn": self.urbansyn, "sunrgbd": self.sunrgbd}
        given = {name: root for name, root in roots.items() if root is not None}
        if not given:
            raise InputError("nothing to reproduce: give --kitti, --urbansyn or --sunrgbd")
        folders = []
        for dataset, root in given.items():
            reader = open_dataset(dataset, root)
            for split in SPLITS:
                write_list(self.out / "splits" / dataset / f"{split}.txt", reader.names(split))
            for mde in self.mdes:
                folder = self.out / "results" / f"{dataset}-{Path(mde).stem}"
                folders.append(folder)
                data = DataOptions(
                    root=root,
                    mde=mde,
                    dataset=dataset,  # type: ignore[arg-type]
                    device=self.device,
                    workers=self.workers,
                    limit=self.limit,
                )
                methods = paper_methods(dataset)
                EvaluateCommand(data, folder, methods=methods, split=self.split).run()
        title = "Learning Image-Adaptive Scale Fields: the paper's tables, rerun"
        ReportCommand(tuple(folders), self.out / "report", title).run()
