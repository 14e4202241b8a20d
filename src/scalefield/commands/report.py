"""`scalefield report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ReportCommand:
    """Turn results into tables (Markdown, CSV, LaTeX), figures (PNG, SVG) and one HTML page."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folders that evaluate wrote; several MDEs and datasets share the tables."""
    out: Path = Path("report")
    """Folder for report.html, report.md, tables and figures."""
    title: str = "Metric depth from sparse anchors"
    """Heading of the page."""

    def run(self) -> None:
        """Write the report and print where it is."""
        from scalefield.benchmark.report import load_run, write_report
        from scalefield.errors import InputError

        if not self.results:
            raise InputError("nothing to report: give one or more folders that evaluate wrote")
        folders = [path.resolve() for path in self.results]
        for path, folder in zip(self.results, folders, strict=True):
            if folders.count(folder) > 1:
                raise InputError(f"{path} is given twice, and would fill two rows of each table")
        print(write_report([load_run(path) for path in self.results], self.out, self.title))
