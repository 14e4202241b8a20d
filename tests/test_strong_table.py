"""scripts/strong_table.py: `field` beside the best aligner, by family and number of anchors."""

import pytest

from program_modules import ROOT, load_module


@pytest.fixture(scope="module")
def script():
    return load_module(ROOT / "scripts" / "strong_table.py")


def results(errors: dict[str, dict[str, float]]) -> dict:
    """Cells under one condition, from errors by family and method."""
    cells = []
    for family, by_method in errors.items():
        for method, error in by_method.items():
            cell = {"group": family, "condition": "low", "method": method, "images": 4}
            cell["clamped"] = {"abs_rel": [error, error, error]}
            if method == "Field":
                cell["coverage"] = {"coverage_90": [0.91, 0.9, 0.92]}
            cells.append(cell)
    return {"cells": cells}


ERRORS = {
    "all": {"Field": 0.3, "Basis": 0.3, "lwlr, depth": 0.3, "lwlr, disparity": 0.3},
    "a": {"Field": 0.1, "Basis": 0.3, "lwlr, depth": 0.5, "lwlr, disparity": 0.2},
    "b": {"Field": 0.3, "Basis": 0.1, "lwlr, depth": 0.4, "lwlr, disparity": 0.6},
}


def test_strong_table_comparisons_take_the_best_aligner_of_each_family(script):
    a, b = script.comparisons([results(ERRORS)])
    assert (a.family, a.aligner, a.ratio) == ("a", "lwlr, disparity", pytest.approx(0.5))
    assert (b.family, b.aligner, b.ratio) == ("b", "lwlr, depth", pytest.approx(0.75))
    assert script.mean_ratios([a, b]) == {"low": pytest.approx(0.625)}


def test_strong_table_has_a_row_for_each_family_and_the_mean_of_ratios(script):
    lines = script.table([results(ERRORS)]).splitlines()
    assert lines[2] == "| a | 4 | 10–15 | .100 | .300 | .200 | lwlr, disparity | 0.50 | 91 % |"
    assert lines[-1] == "Mean of the ratios over families: 10–15 anchors 0.62."


def test_strong_table_comparisons_average_over_seeds(script):
    other = {"a": {"Field": 0.2, "lwlr, depth": 0.1, "lwlr, disparity": 0.2}}
    a, _ = script.comparisons([results(ERRORS), results(other)])
    assert (a.field, a.best) == pytest.approx((0.15, 0.2))
    assert a.aligner == "lwlr, disparity"


def test_strong_table_pages_have_what_was_measured(script):
    marked = set()
    for path in script.PAGES:
        page = path.read_text()
        marked |= {mark[1] for mark in script.MARKS.findall(page)}
        assert script.filled(page) == page
    assert marked == {*script.RUNS, "strong_summary"}
    for name in script.RUNS.values():
        runs = script.read_runs(ROOT / "results" / name)
        assert runs
        assert not any(run["failures"] for run in runs)
