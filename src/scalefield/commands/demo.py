"""`scalefield demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalefield.defaults import METHOD_NAME
from scalefield.errors import InputError

BESIDE = "global"
"""The method that the demo compares with: one scale and one shift."""
COMPARISON = "comparison.jpg"
"""The errors of both methods, beside `OUTPUTS` in the output folder."""


@dataclass(frozen=True)
class DemoCommand:
    """Recover metric depth for the bundled sample room, and compare it with the truth and with one
    scale and one shift. Writes the files of `recover`, and comparison.jpg."""

    method: str = METHOD_NAME
    """Method by name; `scalefield methods` lists the names."""
    points: int = 15
    """Measured points, 1 to 15: six as from a tape measure, then those that `scalefield suggest`
    chose."""
    out: Path = Path("scalefield_demo")
    """Output folder."""

    def run(self) -> None:
        """Recover with both methods, write the files and print a table of the errors."""
        import numpy as np

        from scalefield import samples
        from scalefield.api import recover_from
        from scalefield.benchmark.metrics import Truth, metrics, sums
        from scalefield.defaults import MDE_NAME
        from scalefield.export.preview import draw_errors, format_std_log
        from scalefield.export.result_folder import summary, write_outputs
        from scalefield.inputs import relative_depth
        from scalefield.io import image_bytes, write_atomic
        from scalefield.methods import make_method

        room = samples.load()
        most = len(room.suggested)
        if not 1 <= self.points <= most:
            raise InputError(f"--points must be 1 … {most}, found {self.points}")
        anchors = room.suggested[: self.points]
        output = relative_depth(room.image, MDE_NAME)
        recoveries = {
            name: recover_from(output, anchors, make_method(name), image=room.image).numpy()
            for name in dict.fromkeys((BESIDE, self.method))
        }
        write_outputs(self.out, recoveries[self.method], inputs={})
        print(summary(recoveries[self.method]))
        truth, errors = Truth.of(room.depth_m.ravel()), {}
        head = ("method", "AbsRel", "δ1", "typical ±", "in its 90 % interval")
        rows = [head]
        for name, recovery in recoveries.items():
            found = metrics(sums(recovery.depth_m.ravel(), truth))
            errors[name] = np.abs(recovery.depth_m / room.depth_m - 1)
            typical, inside = recovery.typical_std_log(), "–"
            if recovery.std_log is not None:
                z = np.abs(np.log(recovery.depth_m / room.depth_m)) / recovery.std_log
                inside = f"{100 * np.mean(z <= Z90):.0f} % of the pixels"
            spread = "–" if typical is None else format_std_log(typical)
            rows.append((name, f"{found['abs_rel']:.3f}", f"{found['delta1']:.3f}", spread, inside))
        print(f"\nagainst the true depth at all {room.depth_m.size} pixels:")
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  " + "  ".join(map(str.ljust, row, widths)).rstrip())
        titles = {BESIDE: "one scale and shift", self.method: self.method}
        panels = {
            f"{titles[name]}: {100 * error.mean():.1f} %": error for name, error in errors.items()
        }
        picture = draw_errors(room.image, anchors, panels)
        write_atomic(self.out / COMPARISON, image_bytes(picture, "JPEG", quality=88))
        print(f"look at {self.out / COMPARISON} and {self.out / 'preview.png'}")


Z90 = 1.645
"""Half the width of the 90 % interval of a unit normal."""
