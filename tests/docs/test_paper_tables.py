"""The tables of docs/paper.md are those of the committed results."""

import json

import pytest
from scripts import paper_tables, pipeline_tables


def test_pipeline_tables_page_is_made_from_the_committed_record():
    page = pipeline_tables.PAGE.read_text()
    assert pipeline_tables.filled(page) == page


def test_pipeline_tables_have_the_steps_on_a_gpu():
    step = {
        "ms_a_step": 31.25, "waiting_for_data": 0.02, "gpu_busy_while_profiled": 0.91,
        "reserved_gpu_gb": 4.0,
    }  # fmt: skip
    measured = {
        "provenance": {"device": "NVIDIA H200"},
        "streaming": {"workers": 8},
        "training": {"da3-base, K = 8": step},
    }
    lines = pipeline_tables.steps_on_gpu(measured)
    assert lines[-1] == "| da3-base, K = 8 | 31.2 | 2 % | 91 % | 4.0 |"
    assert len(pipeline_tables.steps_on_gpu({})) == 1


def test_paper_tables_page_is_made_from_the_committed_results():
    page = paper_tables.DOCS.read_text()
    assert paper_tables.filled(page, paper_tables.read_results()) == page


@pytest.fixture
def results():
    """Two seeds of K = 8 with and without F, at medium anchors."""

    def cell(method, value, condition="medium"):
        clamped = {"abs_rel": [value, None, None], "delta1": [1 - value, None, None]}
        found = {"group": "all", "condition": condition, "method": method, "images": 9}
        return found | {"clamped": clamped}

    def pair(a, b, difference):
        return {"condition": "medium", "a": a, "b": b, "difference": difference}

    spectral = {
        "group": "all", "condition": "low", "method": "Basis K=8", "eta1": 0.7, "similarity": 0.9,
        "g0_mean": 0.125, "g0_var": 1e-5, "alpha1_share": 0.8, "alpha1_first": 0.75,
    }  # fmt: skip
    return {
        "data": {"evaluated": 9},
        "cells": [
            cell("LWLR", 0.2),
            cell("Basis K=8", 0.10),
            cell("Basis K=8, seed 1", 0.14),
            cell("Basis K=8, F = 0", 0.11),
            cell("Basis K=8", 0.3, "drop-1"),
        ],
        "paired": [
            pair("Basis K=8", "Basis K=8, F = 0", [-0.02, -0.03, -0.01]),
            pair("Basis K=8, F = 0, seed 1", "Basis K=8, seed 1", [0.04, -0.01, 0.09]),
        ],
        "spectral": [spectral],
    }


def test_paper_tables_show_mean_and_standard_deviation_over_seeds(results):
    lines = paper_tables.main_table({"fastdepth": results})
    row = next(line for line in lines if line.startswith("| Basis K=8, own F"))
    assert row == "| Basis K=8, own F | – | – | .120 ± .028 | .880 ± .028 | – | – |"
    assert "| LWLR | – | – | .200 | .800 | – | – |" in lines
    assert not any("K=30" in line for line in lines)


def test_paper_tables_count_the_seeds_in_which_f_helps(results):
    lines = paper_tables.features_table({"fastdepth": results})
    assert lines[-1] == "| own F | 8 | −.0300 ± .0141 | 1, 0 of 2 |"


def test_paper_tables_have_the_papers_figures_beside_ours(results):
    drop = paper_tables.drop_table({"fastdepth": results})
    assert "| Basis K=8, own F | .300 | – | – | – | – |" in drop
    assert drop[-1].startswith("| the paper, DA3 | .18 |")
    spectrum = paper_tables.spectrum_table({"fastdepth": results})
    assert "| own F | .700 | .900 | .125 | 1e-05 | .800 | .750 |" in spectrum


def test_paper_tables_read_the_results_of_every_estimator(tmp_path):
    (tmp_path / "places-lite").mkdir()
    (tmp_path / "places-lite" / "results.json").write_text(json.dumps({"cells": []}))
    assert paper_tables.read_results(tmp_path) == {"lite": {"cells": []}}
