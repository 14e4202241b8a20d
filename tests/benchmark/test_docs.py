import re
from pathlib import Path

import numpy as np
import pytest

from scalefield.benchmark.method_spec import MethodSpec
from scalefield.benchmark.run import Evaluator, run
from scalefield.benchmark.score import score_files
from scalefield.datasets.source import FrameSource

DOCS = Path(__file__).parents[2] / "docs" / "benchmark.md"


def test_docs_documented_method_runs(world, evaluation_of, red, tmp_path, monkeypatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    evaluation = evaluation_of("Mine: mine:recover", "median", drop=False)
    evaluator = Evaluator(FrameSource(world, red), evaluation, tmp_path / "out")
    results = score_files(tmp_path / "out", run(evaluator))
    found = {c["method"]: c["clamped"]["abs_rel"][0] for c in results["cells"]}
    assert found["Mine"] == pytest.approx(found["median"], rel=0.5)
    assert np.isfinite(found["Mine"])


def test_docs_documented_rows_are_understood() -> None:
    rows = re.findall(r'"([^"]+: [\w:]+(?:\([^)]*\))?)"', DOCS.read_text())
    assert len(rows) == 3
    assert {MethodSpec.parse(row).method for row in rows} == {"basis", "mine:recover"}
