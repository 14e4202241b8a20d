"""results/: every record is listed, made by a target, of the shipped weights, and referred to."""

import re

import pytest
from benchmarks.record import shipped_weights
from scripts import tables

from program_modules import ROOT
from scalefield.io import read_json

RESULTS = ROOT / "results"
LISTED = tables.listed()
MADE = [name for name, entry in LISTED.items() if not entry.get("pending")]
LIMIT_MB = 6


def test_records_are_the_folders_of_results():
    assert {path.name for path in RESULTS.iterdir() if path.is_dir()} == set(MADE)


@pytest.mark.parametrize("name", LISTED)
def test_record_is_listed_with_command_and_time(name):
    entry = LISTED[name]
    assert {"contents", "command", "time"} <= set(entry)
    assert set(entry) <= {
        "contents", "command", "time", "commits", "note", "weights", "pending"
    }  # fmt: skip
    assert ("commits" in entry) == ("note" in entry)
    makefile = (ROOT / "Makefile").read_text()
    made_here = entry["command"].startswith("make ")
    assert made_here == bool(re.search(rf"^(EVALUATED|MEASURED) :=.* {name}( |$)", makefile, re.M))
    if made_here:
        assert entry["command"] == f"make results-{name}"


@pytest.mark.parametrize("name", LISTED)
def test_record_is_referred_to_by_a_page(name):
    assert tables.pages_about(name), f"no page of docs/ and not the README names results/{name}"


def wrong_weights(record: dict, shipped: dict[str, str]) -> list[str]:
    """Shipped models of which a record has other weights, or none."""
    recorded = record.get("weights", {})
    return [name for name in shipped if recorded.get(name) != shipped[name]]


@pytest.mark.parametrize("name", MADE)
def test_record_is_of_the_shipped_weights_or_says_why_not(name):
    entry = LISTED[name]
    if "commits" in entry:
        found = [commit[:7] for commit in tables.commits(name)]
        assert sorted(found) == sorted(entry["commits"]), "made again? remove commits and note"
        return
    if entry.get("weights") is False:
        return
    files = sorted((RESULTS / name).rglob("results.json"))
    assert files
    shipped = {k: v for k, v in shipped_weights().items() if "research" not in k}
    for file in files:
        assert wrong_weights(read_json(file), shipped) == []


def test_record_of_other_weights_is_found():
    shipped = {"lite": "00", "field": "11"}
    assert wrong_weights({"weights": {"lite": "00", "field": "22"}}, shipped) == ["field"]
    assert wrong_weights({"config": {}}, shipped) == ["lite", "field"]


@pytest.mark.parametrize("name", [name for name in MADE if re.match("places|strong|paper", name)])
def test_record_of_an_evaluation_has_every_result(name):
    """Frames without labels are the only ones that a method may skip."""
    for file in (RESULTS / name).rglob("results.json"):
        for failure in read_json(file).get("failures", []):
            assert failure["first"].endswith("the frame has no labels")


def test_records_are_small():
    size = sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file())
    assert size < LIMIT_MB * 1e6
