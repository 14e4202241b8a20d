"""`scalefield demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalefield.commands.recover import RecoverCommand
from scalefield.defaults import METHOD_NAME


@dataclass(frozen=True)
class DemoCommand:
    """Recover metric depth for the bundled sample room and compare it with the truth."""

    method: str = METHOD_NAME
    """Method by name; `scalefield methods` lists the names."""
    out: Path = Path("scalefield_demo")
    """Output folder."""

    def run(self) -> None:
        """Run `scalefield recover` on the sample, then measure the error of the file it wrote."""
        from scalefield import samples
        from scalefield.benchmark.metrics import Truth, metrics, sums
        from scalefield.io import read_npz

        sample = samples.load()
        RecoverCommand(
            image=(sample.image_path,),
            anchors=sample.anchors_path,
            method=self.method,
            out=self.out,
        ).run()
        depth_m = read_npz(self.out / "depth.npz", required=("depth_m",))["depth_m"]
        error = metrics(sums(depth_m.ravel(), Truth.of(sample.depth_m.ravel())))
        print(
            f"against the true depth at all {depth_m.size} pixels: AbsRel {error['abs_rel']:.3f}, "
            f"δ1 {error['delta1']:.3f}"
        )
        print(f"look at {self.out / 'preview.png'}")
