"""Write the tables of docs/speed.md from the committed benchmark; a test checks that it is done.

python scripts/speed_tables.py
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "speed.md"
RECORDS = {"cpu": "bench", "cuda": "bench-cuda"}
MARKS = re.compile(r"(<!-- (\w+):begin -->\n).*?(<!-- \2:end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with every marked table written anew; the words around them stay."""
    table = load_table()
    files = {key: ROOT / "results" / name / "bench.json" for key, name in RECORDS.items()}
    records = {key: json.loads(file.read_text()) for key, file in files.items()}
    return MARKS.sub(lambda m: f"{m[1]}{tables(table, records, m[2])}\n{m[3]}", text)


def tables(table: ModuleType, records: dict, name: str) -> str:
    """One marked part: cpu_aims, cuda_roofline, …"""
    device, _, what = name.partition("_")
    record = records[device]
    made = {
        "aims": table.targets,
        "sizes": lambda r: table.by_size(r, 2),
        "anchors": table.by_anchors,
        "lidar": table.lidar,
        "beside": table.beside,
        "growth": table.growth,
        "batches": table.batches,
        "memory": table.memory,
        "starts": table.starts,
        "roofline": table.roofline,
    }[what](record)
    # Without its heading, for which the page has its own words.
    return made.partition("\n\n")[2] or "Not measured in this run."


def load_table() -> ModuleType:
    """benchmarks/table.py, which is no package."""
    spec = importlib.util.spec_from_file_location("table", ROOT / "benchmarks" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    DOCS.write_text(filled(DOCS.read_text()))
