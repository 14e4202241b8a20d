"""`scalefield explain`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scalefield.commands.data import MapOptions
from scalefield.commands.recover import RecoverCommand, require_files
from scalefield.errors import InputError


@dataclass(frozen=True)
class ExplainCommand:
    """Show what the log-scale field of a recovery is made of.

    Writes what `recover` writes, explanation.jpg and explanation.npz. They have the parts that sum
    to the field with the share of each, and the influence of each anchor; for `basis` each basis
    map times its weight, its gate, and the spectrum.
    """

    image: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IMAGE")]
    """The photograph."""
    anchors: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Known depths, as for recover."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    device: str = "cpu"
    """Device of the estimator, for example cpu, cuda or cuda:1."""
    method: Literal["field", "basis"] = "field"
    """Method to explain."""
    option: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """Option of the method; may be repeated."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Output folder; by default a folder in the current one, named after the image."""

    def run(self) -> None:
        """Recover, explain and print the shares."""
        given = {name: getattr(self, name) for name in ("anchors", "relative", "device", "option")}
        command = RecoverCommand(image=(self.image,), method=self.method, **given)
        command.check()
        from scalefield.commands.recover_many import find_source, make_solver, recover_item
        from scalefield.explanation import OUTPUTS
        from scalefield.export.result_folder import OUTPUTS as RECOVERED
        from scalefield.io import spare_inputs

        item = find_source((self.image,)).single
        if item is None:
            raise InputError(f"{self.image}: one photograph is wanted")
        folder = self.out or Path(f"{item.key}_explained")
        inputs = (item.path, self.anchors, self.relative.depth)
        spare_inputs([folder / name for name in (*RECOVERED, *OUTPUTS)], list(inputs))
        require_files(inputs)
        recovery, _ = recover_item(
            command, item, self.anchors, lambda: make_solver(command), folder
        )
        explanation = recovery.explain()
        explanation.save(folder)
        for name in explanation.ranked[:8]:
            print(f"  {name:24} {100 * explanation.shares[name]:4.0f} % of the field's variance")
        print(f"  {folder}: {', '.join((*RECOVERED, *OUTPUTS))}")
