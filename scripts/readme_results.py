"""Write the README's table of results from the committed measurements.

python scripts/readme_results.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUN = ROOT / "results" / "places" / "results.json"
ROWS = {  # label in the results: what the README calls it
    "Field": "**`field`**",
    "Field, learned level": "`field`, `scale_prior=learned`",
    "Basis K=50": "`basis`, K = 50",
    "Basis K=8": "`basis`, K = 8",
    "lwlr": "`lwlr`",
    "grid": "`grid`",
    "piecewise": "`piecewise`",
    "global": "`global`",
    "knn": "`knn`",
    "log_kernel": "`log_kernel`",
    "interpolate": "`interpolate`",
    "median": "`median`",
}
CONDITIONS = {
    "drop-1": "1", "drop-3": "3", "drop-5": "5", "drop-9": "9",
    "low": "10–15", "medium": "100–120", "high": "500–530",
}  # fmt: skip
MARKS = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)


def table(results: dict) -> str:
    """AbsRel by method and number of anchors, over all images, best in bold."""
    cells = {
        (cell["method"], cell["condition"]): cell["clamped"]
        for cell in results["cells"]
        if cell["group"] == "all"
    }
    best = {
        c: min(round(cells[m, c]["abs_rel"][0], 3) for m in ROWS if (m, c) in cells)
        for c in CONDITIONS
    }
    lines = [
        "| anchors | " + " | ".join(CONDITIONS.values()) + " |",
        "|---|" + "---:|" * len(CONDITIONS),
    ]
    for method, name in ROWS.items():
        shown = []
        for condition in CONDITIONS:
            if (method, condition) not in cells:
                shown.append("")
                continue
            value = round(cells[method, condition]["abs_rel"][0], 3)
            text = f"{value:.3f}".removeprefix("0")
            shown.append(f"**{text}**" if value == best[condition] else text)
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def filled(readme: str) -> str:
    """The README with its table written anew; the words around the table stay."""
    results = json.loads(RUN.read_text())
    return MARKS.sub(lambda m: m[1] + table(results) + "\n" + m[2], readme)


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(filled(path.read_text()))
