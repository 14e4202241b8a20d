"""scripts/tables.py: the marked tables of all pages are what the records say."""

import re

import pytest
from scripts import tables

from program_modules import ROOT, load_module


def test_tables_of_all_pages_are_those_of_the_records(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().out


@pytest.fixture
def root(tmp_path):
    """A folder with the pages of results/bench and one of our own."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Title\n")
    page = (ROOT / "results" / "bench" / "README.md").read_text()
    (tmp_path / "docs" / "speed.md").write_text(page)
    return tmp_path


def test_tables_check_finds_one_changed_figure(root, capsys):
    page = root / "docs" / "speed.md"
    text = page.read_text()
    assert tables.main(["--check"], root) == 0
    block = re.search(r"<!-- cpu_memory:begin -->.*?\| field \| (\d+) \|", text, re.DOTALL)
    changed = text[: block.start(1)] + "1" + text[block.start(1) :]
    page.write_text(changed)
    capsys.readouterr()
    assert tables.main(["--check"], root) == 1
    assert "speed.md: the block cpu_memory differs" in capsys.readouterr().out
    assert page.read_text() == changed
    assert tables.main([], root) == 0
    assert page.read_text() == text


def test_tables_keep_the_words_around_a_block(root):
    page = root / "README.md"
    page.write_text("Before\n<!-- page:begin -->\nstale\n<!-- page:end -->\nafter\n")
    tables.main([], root)
    text = page.read_text()
    assert text.startswith("Before\n<!-- page:begin -->\n| photo |")
    assert text.endswith("|\n<!-- page:end -->\nafter\n")


@pytest.mark.parametrize("marks", [
    "<!-- nothing:begin -->\n<!-- nothing:end -->\n", "<!-- page:begin -->\nno end\n",
])  # fmt: skip
def test_tables_refuse_marks_without_a_table_or_an_end(root, marks, capsys):
    (root / "README.md").write_text(marks)
    assert tables.main(["--check"], root) == 1
    out = capsys.readouterr().out
    assert re.search(r"README.md: the block (nothing|page) is not one of", out)


def test_tables_name_those_that_stand_in_no_page(root, capsys):
    tables.main(["--check"], root)
    (line,) = re.findall(r"tables that stand in no page: (.*)", capsys.readouterr().out)
    assert {"results", "paper_drop", "records"} <= set(line.split(", "))
    assert "cpu_memory" not in line


def test_tables_of_a_record_that_is_not_made_say_so():
    assert tables.of_record("no-such-record", tables.page_latency) == "Not measured yet."
    assert tables.detail({"ratios": []}, "memory") == "Not measured in this run."


def test_long_runs_are_summed_up():
    text = tables.long_runs()
    assert re.search(r"\| damaged files \| [\d,]+ cases, \d+ readers \| .*, 0 failures \|", text)
    assert re.search(r"\| memory \| [\d,]+ calls each \| recover [+−]", text)
    assert re.search(r"\| oldest versions \| \d,\d+ tests \| \d+ failed \|", text)


# ---- costs of labels ---------------------------------------------------------------------------


def test_label_costs_of_a_record():
    rounds = [{"images_per_s": r, "first_s": 3.0, "mb_per_label": 1.5} for r in (1.0, 2.0, 9.0)]
    record = {
        "rounds": {"one process": rounds, "pool of 4 processes": rounds},
        "config": {
            "workers": 4,
            "images": 100,
            "shape": [480, 640],
            "anchors": 50,
            "cores": 4,
            "load_before": 0.1,
            "mde": "lite",
            "method": "field",
        },
        "provenance": {"device": "x86_64", "commit": "0123456789"},
    }
    text = tables.label_costs(record)
    assert "| one process | 2.00 | 2.00 | 3.0 s |" in text
    assert "| pool of 4 processes | 2.00 | 0.50 | 3.0 s |" in text
    assert "a million images take 5.8 days of one core and 1.50 TB" in text


# ---- coverage ----------------------------------------------------------------------------------


def test_coverage_has_the_extremes_over_places():
    rows = {"all": [52.0, 79.0, 91.0, 96.0], "x": [40.0, 70, 85, 90], "y": [64.0, 88, 97, 99]}
    record = {
        "config": {"levels": [50, 80, 90, 95]},
        "estimators": {"lite": {"1": rows, "medium": rows}},
    }
    text = tables.coverage_table(record)
    assert "| lite | 1 | 52 (40–64) | 79 (70–88) | 91 (85–97) | 96 (90–99) |" in text
    assert "| lite | 100–120 |" in text


# ---- strong estimators -------------------------------------------------------------------------


def strong_results(errors: dict[str, dict[str, float]]) -> dict:
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


def test_strong_comparisons_take_the_best_aligner_of_each_family():
    a, b = tables.comparisons([strong_results(ERRORS)])
    assert (a.family, a.aligner, a.ratio) == ("a", "lwlr, disparity", pytest.approx(0.5))
    assert (b.family, b.aligner, b.ratio) == ("b", "lwlr, depth", pytest.approx(0.75))
    assert tables.mean_ratios([a, b]) == {"low": pytest.approx(0.625)}


def test_strong_ratios_have_a_row_for_each_family():
    rows = tables.ratio_rows([strong_results(ERRORS)], "affine ")
    assert rows[0] == ["affine a", "4", "–", "–", "0.50", "–", "91–91 %"]
    assert [row[0] for row in rows] == ["affine a", "affine b"]


def test_strong_comparisons_average_over_seeds():
    other = {"a": {"Field": 0.2, "lwlr, depth": 0.1, "lwlr, disparity": 0.2}}
    a, _ = tables.comparisons([strong_results(ERRORS), strong_results(other)])
    assert (a.field, a.best) == pytest.approx((0.15, 0.2))
    assert a.aligner == "lwlr, disparity"


# ---- the paper's preset ------------------------------------------------------------------------


@pytest.fixture
def paper():
    """Two seeds of K = 8 with and without F, at medium anchors."""

    def cell(method, value, condition="medium", group="all"):
        found = {"group": group, "condition": condition, "method": method}
        return found | {"clamped": {"abs_rel": [value, None, None]}}

    spectral = {
        "group": "all", "condition": "low", "method": "Basis K=8", "eta1": 0.7, "similarity": 0.9,
        "g0_mean": 0.125, "g0_var": 1e-5, "alpha1_share": 0.8, "alpha1_first": 0.75,
    }  # fmt: skip
    record = {
        "cells": [
            cell("LWLR", 0.2),
            cell("Basis K=8", 0.10),
            cell("Basis K=8, seed 1", 0.14),
            cell("Basis K=8, F = 0", 0.11),
            cell("Basis K=8", 0.3, "drop-1"),
            cell("Basis K=8", 0.08, group="freiburg1_desk"),
            cell("Basis K=8, F = 0", 0.06, group="freiburg1_desk"),
        ],
        "spectral": [spectral],
    }
    return {"fastdepth": record}


def test_paper_accuracy_is_the_mean_over_seeds(paper):
    lines = tables.paper_accuracy(paper).splitlines()
    row = next(line for line in lines if line.startswith("| Basis K=8, own F"))
    assert row == "| Basis K=8, own F | –/.120/– | – |"
    assert "| LWLR | –/.200/– | – |" in lines
    assert not any("K=30" in line for line in lines)


def test_paper_features_compare_rows_of_one_seed_and_place(paper):
    assert tables.feature_difference(paper["fastdepth"], 8, "all") == "−.010"
    assert tables.feature_difference(paper["fastdepth"], 8, "freiburg1_desk") == "+.020"
    assert tables.feature_difference(paper["fastdepth"], 30, "all") == "–"
    lines = tables.paper_features_places(paper).splitlines()
    assert lines[-1] == "| own F, K = 8 | – | +.020 | – | – | – | −.010 |"


def test_paper_drop_and_spectrum_have_the_papers_figures_beside_ours(paper):
    drop = tables.paper_drop(paper).splitlines()
    assert "| Basis K=8, own F | .300 | – | – | – | – |" in drop
    assert drop[-1].startswith("| the paper, DA3 | .18 |")
    spectrum = tables.paper_spectrum(paper).splitlines()
    assert "| own F | .700 | .900 | .125 | 1e-05 | .800 | .750 |" in spectrum


# ---- pictures ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_draw_gallery_makes_the_pictures_of_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    load_module(ROOT / "scripts" / "draw_gallery.py").main(tmp_path)
    page = (ROOT / "docs" / "gallery.md").read_text()
    for picture in tmp_path.glob("*.jpg"):
        assert f"gallery/{picture.name}" in page
        assert (ROOT / "docs" / "gallery" / picture.name).is_file()
    assert len(list(tmp_path.glob("*.jpg"))) == 2


@pytest.mark.slow
def test_draw_paper_makes_the_pictures_of_its_pages(tmp_path):
    pytest.importorskip("matplotlib")
    load_module(ROOT / "scripts" / "draw_paper.py").main(tmp_path)
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("paper.md", "explain.md"))
    pictures = {path.name for path in tmp_path.glob("*.jpg")}
    assert pictures == {path.name for path in (ROOT / "docs" / "paper").glob("*.jpg")}
    assert all(f"paper/{name}" in pages for name in pictures)
