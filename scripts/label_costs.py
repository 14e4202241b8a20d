"""Write the table of docs/label_costs.md from results/labelling; a test checks that it is done.

python scripts/label_costs.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "label_costs.md"
RECORD = ROOT / "results" / "labelling" / "results.json"
MARKS = re.compile(r"(<!-- label_costs:begin -->\n).*?(<!-- label_costs:end -->)", re.DOTALL)
MILLION = 1_000_000


def filled(text: str, record: dict[str, Any] | None) -> str:
    """The page with its table written anew; the words around it stay."""
    table = "Not measured yet." if record is None else costs(record)
    return MARKS.sub(lambda m: f"{m[1]}{table}\n{m[2]}", text)


def costs(record: dict[str, Any]) -> str:
    """The table of a record, and what follows from it for a million images."""
    lines = [
        "| | images/s | images/s for each process | to the first label |",
        "|---|---:|---:|---:|",
    ]
    for name, rounds in record["rounds"].items():
        workers = 1 if name == "one process" else record["workers"]
        rate = median(each["images_per_s"] for each in rounds)
        first = median(each["first_s"] for each in rounds)
        lines.append(f"| {name} | {rate:.2f} | {rate / workers:.2f} | {first:.1f} s |")
    single = record["rounds"]["one process"]
    rate = median(each["images_per_s"] for each in single)
    megabytes = median(each["mb_per_label"] for each in single)
    height, width = record["shape"]
    provenance = record["provenance"]
    lines += [
        "",
        f"Rounds: {len(single)} (medians). Each has {record['images']} images of "
        f"{width}×{height} with "
        f"{record['anchors']} anchors each; `{record['mde']}` with `{record['method']}`; "
        f"{record['cores']} cores of {provenance['device']}, load {record['load_before']:.1f} "
        f"before the run; commit {str(provenance['commit'])[:7]}.",
        "",
        f"A label takes {megabytes:.2f} MB. At the rate of one process, a million images take "
        f"{MILLION / rate / 86400:.1f} days of one core and {megabytes * MILLION / 1e6:.2f} TB.",
    ]
    return "\n".join(lines)


def read_record() -> dict[str, Any] | None:
    """The committed measurement, if there is one."""
    return json.loads(RECORD.read_text()) if RECORD.is_file() else None


if __name__ == "__main__":
    DOCS.write_text(filled(DOCS.read_text(), read_record()))
