"""Tables of docs/paper.md from the results of the paper's preset: python scripts/paper_tables.py.

Reads results/paper/places-ESTIMATOR/results.json, which recipes/paper_merge.py made of the seeds of
each estimator, and writes the parts of the page between the marks paper_….
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "paper.md"
RESULTS = ROOT / "results" / "paper"
REGIMES = ("low", "medium", "high")
KS = (8, 30, 50)
ALIGNERS = ("Global", "Grid", "LWLR", "Piecewise", "Region", "Region, strict")
OWN, VIT = "fastdepth", "fastdepth-vit"
OTHERS = {"vit-s": "ViT-S", "lite": "`lite`"}
"""Estimators with a depth of their own, which have a table each."""

Results = dict[str, Any]


def read_results(folder: Path = RESULTS) -> dict[str, Results]:
    """The results by estimator."""
    return {
        file.parent.name.removeprefix("places-"): json.loads(file.read_text())
        for file in sorted(folder.glob("places-*/results.json"))
    }


def filled(page: str, results: dict[str, Results]) -> str:
    """The page with its tables made from these results."""
    tables = {
        "paper_main": main_table(results),
        "paper_features": features_table(results),
        "paper_drop": drop_table(results),
        "paper_spectrum": spectrum_table(results),
    }
    for name, lines in tables.items():
        pattern = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
        text = "".join(f"{line}\n" for line in lines)
        page, found = re.subn(pattern, lambda m, t=text: m[1] + t + m[2], page, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"{DOCS}: wanted one part {name}, found {found}")
    return page


# ---- values ----------------------------------------------------------------------------------


def family(label: str) -> tuple[str, int]:
    """A row without its seed, and the seed.

    >>> family("Basis K=8, F = 0, seed 2")
    ('Basis K=8, F = 0', 2)
    """
    found = re.fullmatch(r"(.*?)(?:, seed (\d+))?", label)
    assert found is not None
    return found[1], int(found[2] or 0)


def values(results: Results, row: str, condition: str, metric: str) -> list[float]:
    """Means over all images, one for each seed of the row."""
    found = {
        family(cell["method"])[1]: cell["clamped"][metric][0]
        for cell in results["cells"]
        if cell["group"] == "all"
        and cell["condition"] == condition
        and family(cell["method"])[0] == row
    }
    return [found[seed] for seed in sorted(found)]


def images(results: Results, row: str, condition: str) -> int:
    """Images that a row was evaluated on."""
    return max(
        (
            cell["images"]
            for cell in results["cells"]
            if (cell["group"], cell["condition"], cell["method"]) == ("all", condition, row)
        ),
        default=0,
    )


def number(value: float, digits: int = 3) -> str:
    """A figure without the zero before its point.

    >>> number(0.1234), number(-0.02, 2), number(1.5, 1)
    ('.123', '−.02', '1.5')
    """
    return re.sub(r"^(−?)0\.", r"\1.", f"{value:.{digits}f}".replace("-", "−"))


def spread(found: list[float], digits: int = 3) -> str:
    """Mean and standard deviation (n − 1) over seeds; a dash for nothing."""
    if not found:
        return "–"
    text = number(statistics.mean(found), digits)
    return text if len(found) < 2 else f"{text} ± {number(statistics.stdev(found), digits)}"


# ---- tables ----------------------------------------------------------------------------------


def main_table(results: dict[str, Results]) -> list[str]:
    """AbsRel and δ1 of every row, in the layout of the paper's tables 1 and 2."""
    own = results[OWN]
    rows: list[tuple[str, Results, str]] = [(row, own, row) for row in ALIGNERS]
    rows += [(f"Basis K={k}, own F", own, f"Basis K={k}") for k in KS]
    if VIT in results:
        rows += [(f"Basis K={k}, ViT F", results[VIT], f"Basis K={k}") for k in KS]
    rows += [(f"Basis K={k}, F = 0", own, f"Basis K={k}, F = 0") for k in KS]
    rows.append(("`field`", own, "Field"))
    lines = _main(rows, own)
    for label, title in OTHERS.items():
        if label in results:
            found = results[label]
            rows = [(row, found, row) for row in ALIGNERS]
            rows += [(f"Basis K={k}", found, f"Basis K={k}") for k in KS]
            rows += [(f"Basis K={k}, F = 0", found, f"Basis K={k}, F = 0") for k in KS]
            rows.append(("`field`", found, "Field"))
            lines += ["", f"The same with {title}, one seed:", "", *_main(rows, found)]
    return lines


def _main(rows: list[tuple[str, Results, str]], whole: Results) -> list[str]:
    header = [f"{regime} {metric}" for regime in REGIMES for metric in ("AbsRel", "δ1")]
    lines = [f"| method | {' | '.join(header)} |", "|---|" + "---:|" * len(header)]
    every = whole["data"]["evaluated"]
    for title, found, row in rows:
        cells = [
            spread(values(found, row, regime, metric))
            for regime in REGIMES
            for metric in ("abs_rel", "delta1")
        ]
        if set(cells) == {"–"}:
            continue
        count = max(images(found, row, regime) for regime in REGIMES)
        some = (
            f" ({count} frames with labels)" if row.startswith("Region") and count < every else ""
        )
        lines.append(f"| {title}{some} | {' | '.join(cells)} |")
    return lines


def features_table(results: dict[str, Results]) -> list[str]:
    """AbsRel with F less that with F = 0 at medium anchors, over the same images."""
    lines = ["| F | K | difference | seeds in which F helps, hurts |", "|---|---:|---:|---:|"]
    names = {OWN: "own F", VIT: "ViT F", **OTHERS}
    for label, title in names.items():
        for k in KS:
            found = differences(results[label], k) if label in results else []
            if found:
                helps = sum(high < 0 for _, _, high in found)
                hurts = sum(low > 0 for _, low, _ in found)
                mean = spread([difference for difference, _, _ in found], 4)
                lines.append(f"| {title} | {k} | {mean} | {helps}, {hurts} of {len(found)} |")
    return lines


def differences(results: Results, k: int, condition: str = "medium") -> list[tuple[float, ...]]:
    """Of each seed: mean difference over images between F and F = 0, and its 95 % interval."""
    found = {}
    for pair in results["paired"]:
        (one, seed), (other, other_seed) = family(pair["a"]), family(pair["b"])
        if pair["condition"] != condition or seed != other_seed:
            continue
        if (one, other) == (f"Basis K={k}", f"Basis K={k}, F = 0"):
            found[seed] = tuple(pair["difference"])
        elif (other, one) == (f"Basis K={k}", f"Basis K={k}, F = 0"):
            difference, low, high = pair["difference"]
            found[seed] = (-difference, -high, -low)
    return [found[seed] for seed in sorted(found)]


def drop_table(results: dict[str, Results]) -> list[str]:
    """AbsRel of the drop-anchor test by the number of anchors left."""
    counts = (1, 3, 5, 7, 9)
    lines = [f"| | {' | '.join(map(str, counts))} |", "|---|" + "---:|" * len(counts)]
    rows = [
        ("Basis K=8, own F", OWN, "Basis K=8"),
        ("Basis K=8, ViT F", VIT, "Basis K=8"),
        *((row, OWN, row) for row in ("Global", "Grid", "LWLR", "Piecewise")),
        *((f"Basis K=8, {title}", label, "Basis K=8") for label, title in OTHERS.items()),
    ]
    for title, label, row in rows:
        if label in results:
            cells = [spread(values(results[label], row, f"drop-{n}", "abs_rel")) for n in counts]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.append("| the paper, DA3 | .18 | .11 | .10 | .10 | .10 |")
    return lines


def spectrum_table(results: dict[str, Results]) -> list[str]:
    """The spectrum of K = 8 at low anchors."""
    columns = ("eta1", "similarity", "g0_mean", "g0_var", "alpha1_share", "alpha1_first")
    lines = [
        "| | η₁ | \\|v₁ᵀg\\| | mean G₀ | var G₀ | α₁² / ‖y‖² | \\|α₁\\| largest |",
        "|---|" + "---:|" * len(columns),
    ]
    names = {OWN: "own F", VIT: "ViT F", **OTHERS}
    for label, title in names.items():
        found = [
            entry
            for entry in results.get(label, {}).get("spectral", ())
            if (entry["group"], entry["condition"]) == ("all", "low")
            and family(entry["method"])[0] == "Basis K=8"
        ]
        if not found:
            continue
        cells = [
            f"{statistics.mean(e['g0_var'] for e in found):.0e}"
            if column == "g0_var"
            else spread([e[column] for e in found])
            for column in columns
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.append("| the paper, DA3 | .92–.97 | .985–.991 | ≈ .21 | ≈ 1e-04 | – | expected |")
    return lines


if __name__ == "__main__":
    DOCS.write_text(filled(DOCS.read_text(), read_results()))
