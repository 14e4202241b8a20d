"""Published errors under the protocols of `protocols`, and a table with ours beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from scalefield.benchmark.protocols import PROTOCOLS
from scalefield.benchmark.score import EVERYWHERE

README = "README of princeton-vl/OMNI-DC"


class PublishedRow(NamedTuple):
    """A published error; None where it was not given."""

    protocol: str
    pattern: str
    system: str
    rmse_m: float
    rel: float | None = None
    mae_m: float | None = None


def _rows(
    protocol: str, second: str, table: dict[str, tuple[tuple[float, float], ...]]
) -> Iterator[PublishedRow]:
    """RMSE and a second error of OMNI-DC v1.0 and v1.1, by pattern."""
    for pattern, errors in table.items():
        for system, (rmse, other) in zip(("OMNI-DC v1.0", "OMNI-DC v1.1"), errors, strict=True):
            yield PublishedRow(protocol, pattern, system, rmse, **{second: other})


PUBLISHED: tuple[PublishedRow, ...] = (
    *_rows("nyu", "rel", {
        "points-500": ((.111, .014), (.112, .014)), "points-200": ((.147, .021), (.143, .019)),
        "points-100": ((.180, .029), (.167, .024)), "points-50": ((.225, .041), (.193, .029)),
        "points-5": ((.536, .142), (.330, .070)),
    }),
    *_rows("omni-dc", "rel", {
        "random-2150": ((.135, .010), (.126, .009)), "random-300": ((.211, .020), (.172, .016)),
        "random-100": ((.289, .034), (.213, .025)), "noise-0.05": ((.141, .010), (.130, .010)),
        "noise-0.1": ((.147, .011), (.134, .010)), "orb": ((.247, .045), (.176, .028)),
        "sift": ((.211, .037), (.161, .024)), "lidar-64": ((.121, .008), (.114, .008)),
        "lidar-16": ((.164, .014), (.146, .012)), "lidar-8": ((.231, .023), (.180, .017)),
    }),
    *_rows("kitti-dc", "mae_m", {
        "lines-64": ((1.191, .270), (1.235, .276)), "lines-16": ((1.682, .441), (1.659, .430)),
        "lines-8": ((2.058, .597), (1.897, .546)),
    }),
    *_rows("void", "mae_m", {
        "given, void_1500": ((.555, .150), (.540, .143)),
        "given, void_500": ((.551, .164), (.512, .144)),
        "given, void_150": ((.650, .211), (.581, .171)),
    }),
)  # fmt: skip
"""Rows of the tables in the README of OMNI-DC."""


def protocol_table(results: dict[str, Any]) -> str:
    """REL, RMSE and MAE of every method and pattern, and the published rows with their source."""
    name = results["config"]["protocol"]
    lines = [f"{'pattern':18} {'system':28} {'REL':>7} {'RMSE':>7} {'MAE':>7}"]

    def line(pattern: str, system: str, *errors: float | None) -> str:
        shown = " ".join("      –" if e is None else f"{e:7.3f}" for e in errors)
        return f"{pattern:18} {system:28} {shown}"

    ours = [c for c in results["cells"] if c["group"] == EVERYWHERE]
    for pattern in PROTOCOLS[name].patterns:
        for cell in (c for c in ours if c["condition"] == pattern):
            # Nothing is clamped in the public evaluation.
            errors = (cell["raw"][metric][0] for metric in ("abs_rel", "rmse", "mae"))
            lines.append(line(pattern, cell["method"], *errors))
        lines += [
            line(row.pattern, f"{row.system} (published)", row.rel, row.rmse_m, row.mae_m)
            for row in PUBLISHED
            if row.protocol == name and row.pattern.partition(",")[0] == pattern
        ]
    note = PROTOCOLS[name].note
    lines.append(f"published: {README}{'; ' + note if note else ''}")
    return "\n".join(lines)
