import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import chain

import numpy as np
import pytest
import torch

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.benchmark.gallery import write_gallery
from scalefield.benchmark.metrics import LEVELS
from scalefield.benchmark.report import figures, load_run, write_report
from scalefield.benchmark.report.page import Section, document
from scalefield.benchmark.report.paper import MAIN
from scalefield.benchmark.report.runs import basis_label, feature_differences
from scalefield.benchmark.report.table import Cell, Table, csv_text, latex, markdown
from scalefield.benchmark.report.tables import (
    appendix,
    coverage_table,
    drop_table,
    features_table,
    first_page,
    main_table,
    models_table,
    paper_drop_table,
    paper_table,
    seeds_table,
    spectral_table,
)
from scalefield.benchmark.report.text import missing, overview
from scalefield.benchmark.run import Evaluator, run
from scalefield.benchmark.score import EVERYWHERE, score_files
from scalefield.cli import main
from scalefield.datasets.source import FrameSource
from scalefield.errors import InputError

TABLE = Table(
    "toy",
    "A toy & more",
    "50 % of nothing.",
    "Method",
    (("da3", "Low", "AbsRel"), ("da3", "Low", "δ1"), ("midas", "Low", "AbsRel")),
    (
        ("a_b", (Cell(0.1234, 0.1, 0.2, 1), Cell(0.9, rank=2), Cell(None))),
        ("c|d", (Cell(0.2, rank=2), Cell(0.95, rank=1), Cell(0.00001))),
    ),
)


@pytest.fixture(scope="module")
def results(world_at, evaluation_of, red, tmp_path_factory):
    """Two MDEs on one dataset: folders as evaluate writes them."""
    tmp_path = tmp_path_factory.mktemp("results")
    world = world_at(tmp_path / "world")
    folders = []
    torch.manual_seed(0)
    for k in (3, 5):
        config = GeneratorConfig(k=k, feature_channels=3, width=8, dilations=(1,), cells=16)
        Generator(config).save(tmp_path / f"k{k}")
    basis = [f"Ours K={k} @low,medium: basis(generator='{tmp_path}/k{k}')" for k in (3, 5)]
    for mde, methods in (
        ("red", ("median", "Affine: global", "region", *basis)),
        ("rot", ("median",)),
    ):
        out = tmp_path / mde
        evaluation = evaluation_of(*methods, mde=mde, regimes=("low", "medium"))
        score_files(out, run(Evaluator(FrameSource(world, red), evaluation, out)))
        write_gallery(Evaluator(FrameSource(world, red), evaluation, out))
        folders.append(out)
    return folders


def test_markdown_csv_and_latex_of_one_table() -> None:
    text = markdown(TABLE)
    assert "| Method | da3 · Low · AbsRel | da3 · Low · δ1 | midas · Low · AbsRel |" in text
    assert "| a_b | **0.123** | <u>0.900</u> | – |" in text
    assert "| c\\|d | <u>0.200</u> | **0.950** | 1e-05 |" in text
    assert csv_text(TABLE).splitlines()[1] == "a_b,0.1234,0.1,0.2,0.9,,,,,"
    tex = latex(TABLE)
    assert r"\caption{A toy \& more. 50 \% of nothing.}" in tex
    assert r"\multicolumn{2}{c}{da3} & midas \\" in tex
    assert r"\cmidrule(lr){2-3}" in tex
    assert r"a\_b & \textbf{0.123} & \underline{0.900} & -- \\" in tex
    assert r"AbsRel & $\delta_1$ & AbsRel \\" in tex


def test_html_of_a_table_marks_ranks_and_shows_intervals() -> None:
    text = document("Toy", [Section("One", {"": (TABLE,)})])
    assert "<th class=sort>Method</th><th class=sort colspan=1>AbsRel</th>" in text
    assert "<th></th><th colspan=2>da3</th><th colspan=1>midas</th>" in text
    interval = "<span>0.123</span> <small>±0.050</small>"
    assert f'<td data-v="0.1234" title="95 % interval 0.1 … 0.2" class=best>{interval}' in text
    assert "<td><span>–</span></td>" in text
    assert "<caption>A toy &amp; more</caption>" in text


def test_main_table_marks_best_and_second_among_complete_methods(results) -> None:
    runs = [load_run(folder) for folder in results]
    table = main_table(runs)
    assert table.columns[0] == ("red [1]", "Low", "AbsRel")
    assert table.columns[4] == ("rot [1]", "Low", "AbsRel")
    assert len(table.columns) == 2 * 2 * 2
    rows = dict(table.rows)
    assert list(rows) == ["median", "Affine", "region", "Ours K=3", "Ours K=5"]
    for i in range(4):
        better = min if table.columns[i][2] == "AbsRel" else max
        complete = {m: rows[m][i].value for m in rows if m != "region"}
        best = better(complete, key=complete.get)
        tied = sum(round(x, 3) == round(complete[best], 3) for x in complete.values())
        assert rows[best][i].rank == (1 if tied < 3 else 0)
        if table.columns[i][2] == "AbsRel":  # δ1 is 1 for several
            assert {cells[i].rank for cells in rows.values()} == {0, 1, 2}
        assert rows["region"][i].rank == 0  # it has two images only
        assert rows["region"][i].beside == "(2)"
    assert rows["Affine"][4].value is None  # not run with the second MDE
    assert rows["median"][4].rank == 1
    assert rows["median"][0].low <= rows["median"][0].value <= rows["median"][0].high


def test_main_table_pools_runs_of_one_mde_by_image(results) -> None:
    first = load_run(results[0])
    config = first.results["config"]
    other = replace(first, results=first.results | {"config": config | {"name": "again"}})
    pooled = main_table([first, other])
    single = main_table([first])
    found, expected = (dict(t.rows)["median"][0].value for t in (pooled, single))
    assert found == pytest.approx(expected, rel=1e-5)


def test_main_table_names_the_bandwidth_of_lwlr(results) -> None:
    run_ = load_run(results[0])
    spec = {"label": "LWLR", "method": "lwlr", "options": {"reference_bandwidth_px": 25.0}}
    config = run_.results["config"]
    config = config | {"methods": [*config["methods"], spec | {"conditions": []}]}
    caption = main_table([replace(run_, results=run_.results | {"config": config})]).caption
    assert "LWLR on world: a bandwidth of 25 px at an image width of 640 px" in caption


def test_drop_table_runs_from_one_anchor_to_nine(results) -> None:
    table = drop_table([load_run(results[0])])
    assert [c[0] for c in table.columns[::2]] == ["1", "3", "5", "7", "9"]
    assert {label for label, _ in table.rows} == {"median", "Affine", "region"}


def test_spectral_table_has_a_row_a_generator_below_the_papers(results) -> None:
    table = spectral_table([load_run(folder) for folder in results])
    labels = [label for label, _ in table.rows]
    assert labels == ["the paper: DA3, K = 8", *(f"red [1], world: Ours K={k}" for k in (3, 5))]
    assert not spectral_table([load_run(results[1])]).rows  # no basis maps there


def with_coverage(run_):
    """The run with a std_log for one affine method only, and intervals that are too narrow."""
    shares = {"low": 0.6, "medium": 0.7}
    cells = [
        c
        | {
            "coverage": {
                **{
                    f"coverage_{level}": [shares.get(c["condition"], 0.5), 0.1, 1.0]
                    for level in LEVELS
                },
                "std_log": [0.05, None, None],
            }
        }
        if c["method"] == "Affine"
        else {key: value for key, value in c.items() if key != "coverage"}
        for c in run_.results["cells"]
    ]
    return replace(run_, results=run_.results | {"cells": cells})


def test_coverage_table_has_the_methods_with_a_std_log(results) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    sure = with_coverage(load_run(results[0]))
    table = coverage_table(sure)
    places = ("all", "home/room", "home/hall")
    assert [label for label, _ in table.rows] == [f"Affine · {place}" for place in places]
    titles = [f"{level} %" for level in LEVELS] + ["std"]
    assert table.columns == tuple((r, t) for r in ("Low", "Med") for t in titles)
    assert [c.value for c in dict(table.rows)["Affine · all"]] == [
        *[0.6] * 4,
        0.05,
        *[0.7] * 4,
        0.05,
    ]
    assert "Affine's 90 % intervals cover: low 60 %, medium 70 %" in overview(sure.results)
    figure = figures.reliability(sure)
    drawn = [line.get_ydata().tolist() for line in figure.axes[0].lines]
    assert [60.0] * 4 in drawn
    assert len(figure.axes) == 3  # two regimes, and the number of anchors
    plain = replace(sure, results=sure.results | {"cells": []})
    assert not coverage_table(plain).rows
    assert figures.reliability(plain) is None


def as_paper(run_, source, **renamed):
    """The run as one of KITTI with an estimator labelled da3-base, rows renamed."""
    config = {**run_.results["config"], "mde": "da3-base", "dataset": "kitti", "source": source}
    cells = [
        c | {"method": renamed.get(c["method"].replace(" ", "_").replace("=", "_"), c["method"])}
        for c in run_.results["cells"]
    ]
    methods = tuple(dict.fromkeys(c["method"] for c in cells))
    scores = replace(run_.scores, methods=methods)
    return replace(run_, results=run_.results | {"cells": cells, "config": config}, scores=scores)


def test_paper_table_has_the_papers_figures_beside_ours_and_ranks_its_rows(results) -> None:
    ours = as_paper(load_run(results[0]), "da3-base", Affine="Global", Ours_K_3="Basis K=8")
    table = paper_table([ours], "KITTI")
    rows = dict(table.rows)
    assert list(rows) == ["Global", "Grid", "LWLR", "Piecewise", "Basis", "Basis*", "Basis**"]
    assert table.columns[0] == ("da3-base [1]", "Low", "AbsRel")
    assert table.columns[6][0] == "the paper: MiDaS"
    cells = {(c["method"], c["condition"]): c for c in ours.results["cells"] if c["group"] == "all"}
    assert rows["Global"][0].value == cells["Global", "low"]["clamped"]["abs_rel"][0]
    assert (rows["Global"][0].beside, rows["Basis"][1].beside) == ("[0.31]", "[0.81]")
    assert (str(rows["Grid"][0]), rows["Grid"][0].beside) == ("–", "[0.24]")
    assert rows["Basis**"][0].beside == ""
    assert {rows[name][0].rank for name in ("Global", "Basis")} == {1, 2}  # median is no row here
    assert f"da3-base [1]: {ours.results['data']['evaluated']} images of world" in table.caption
    assert len(MAIN) == 4
    assert paper_table([load_run(results[0])], "KITTI") is None  # nothing of ours to compare


@pytest.mark.parametrize("source", ["tiny_mdes:da3", "", "vits"])
def test_a_label_alone_does_not_make_an_estimator_the_papers(results, source) -> None:
    ours = as_paper(load_run(results[0]), source, Ours_K_3="Basis K=8")
    assert ours.published is None
    own = {column for column in paper_table([ours], "KITTI").columns if "da3-base" in column[0]}
    assert own
    for name, cells in paper_table([ours], "KITTI").rows:
        columns = paper_table([ours], "KITTI").columns
        beside = {c.beside for c, column in zip(cells, columns, strict=True) if column in own}
        assert beside == {""}, name
    drop = paper_drop_table([as_paper(load_run(results[0]), source, Affine="Basis K=8")])
    assert not any(cell.beside for _, cells in drop.rows for cell in cells)


def test_write_report_begins_with_table_1(results, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("scalefield.benchmark.report._figures", lambda *_: {})
    monkeypatch.setattr("scalefield.benchmark.report._gallery", lambda *_: {})
    ours = as_paper(load_run(results[1]), "da3-base", median="Basis K=8")
    text = write_report([ours], tmp_path, "Toy", ["Not as in the paper: its data."]).read_text()
    body = text.split("<main>")[1]
    before, caption = re.match(r"(.*?)<caption>(.*?)</caption>", body, re.DOTALL).groups()
    assert caption == "Table 1. KITTI"
    assert "<img" not in before
    assert "Not as in the paper: its data." in text.split("<nav>")[0]


def test_report_states_images_of_cells_that_lack_some(results) -> None:
    ours = as_paper(load_run(results[0]), "da3-base", region="Region", Ours_K_3="Basis K=8")
    (region,) = (cells for name, cells in paper_table([ours], "KITTI").rows if name == "Region")
    assert (region[0].beside, region[0].rank) == ("(2)", 0)


def test_figures_of_a_run_without_a_regime(results) -> None:
    run_ = load_run(results[0])
    dropped = [c for c in run_.results["cells"] if c["condition"].startswith("drop-")]
    conditions = tuple(c for c in run_.scores.conditions if c.startswith("drop-"))
    scores = replace(run_.scores, conditions=conditions)
    only_drop = replace(run_, results=run_.results | {"cells": dropped}, scores=scores)
    assert figures.over_distance(only_drop) is None
    covered = {"coverage_50": [0.5, None, None], "coverage_90": [0.9, None, None]}
    cells = [c | {"coverage": covered} for c in dropped]
    figure = figures.reliability(replace(only_drop, results=only_drop.results | {"cells": cells}))
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["90 % interval"]
    figures.pyplot().close(figure)


class Page(HTMLParser):
    """Counts what the page holds and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            inside = value is not None and value.startswith(("data:", "#"))
            if name in ("src", "href") and not inside:
                self.fetched.append(value)
        if tag not in ("meta", "img", "dt", "dd", "html"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in ("html",):
            assert self.open.pop() == tag


@pytest.mark.slow
def test_write_report_writes_all_files_and_a_self_contained_page(results, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    runs = [load_run(results[0]), load_run(results[1] / "results.json")]
    page = write_report(runs, tmp_path / "report", "Toy <world>")
    text = page.read_text()
    assert "<h1>Toy &lt;world&gt;</h1>" in text
    parsed = Page()
    parsed.feed(text)
    assert parsed.open == []
    pictures = [name for name in parsed.fetched if name.startswith("gallery/")]
    assert parsed.fetched == pictures
    assert len(pictures) >= 3 * 4
    assert all((page.parent / name).is_file() for name in pictures)
    assert not re.search(r"https?://(?!www\.w3\.org)", re.sub(r'"data:[^"]*"', "", text))
    assert page.stat().st_size < 2e6
    assert parsed.tags.count("table") >= 10
    written = {p.name for p in (tmp_path / "report").rglob("*")}
    tables = [*chain(*first_page(runs)), *chain(*appendix(runs).values())]
    for table in tables:
        assert {f"{table.name}.csv", f"{table.name}.tex"} <= written
        assert latex(table).isascii(), table.title  # any TeX engine reads it
        assert table.title in (tmp_path / "report" / "report.md").read_text()
    assert len({table.name for table in tables}) == len(tables)
    for name in ("anchors", "distance", "justification"):
        assert {f"{name}-world-red.png", f"{name}-world-red.svg"} <= written
    figure = figures.over_anchors(runs[0])
    for suffix in ("png", "svg"):  # no date, no random id
        drawn = figures.encode(figure, suffix, dpi=figures.DPI)
        assert drawn == (page.parent / "figures" / f"anchors-world-red.{suffix}").read_bytes()


CLICKS = """<script>
const table = document.querySelector('table');
const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
const order = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
const choice = document.querySelector('.choice');
const shown = () => [...choice.querySelectorAll('.panel')].map(p => p.offsetHeight > 0);
const log = [order(), shown()];
heads[1].click(); log.push(order());
heads[1].click(); log.push(order());
choice.querySelectorAll('button')[1].click(); log.push(shown());
document.title = JSON.stringify(log);
</script></html>"""


def test_report_page_sorts_and_switches_in_a_browser(results, tmp_path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium or Chrome to open the page with")
    run_ = load_run(results[0])
    table = main_table([run_])
    panels = dict.fromkeys(("World: all", "World: other"), (table,))
    text = document("World", [Section("Results", panels)])
    (tmp_path / "page.html").write_text(text.replace("</html>", CLICKS))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        "--virtual-time-budget=999",
    ]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [browser, *flags, profile, f"file://{tmp_path}/page.html"]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    printed = json.loads(unescape(re.search(r"<title>(.*?)</title>", dumped)[1]))
    before, shown, ascending, descending, switched = printed
    values = {label: cells[0].value for label, cells in table.rows}
    assert before == list(values)
    assert ascending == sorted(values, key=values.get)
    assert descending == ascending[::-1]
    assert (shown, switched) == ([True, False], [False, True])


def test_missing_names_what_a_table_lacks(results) -> None:
    content = load_run(results[0]).results
    lines = missing(content)
    assert lines[0] == "6 of 6 frames evaluated"
    assert any(line.startswith("region was not run on some images (low 4") for line in lines)
    gone = {"frames": 7, "missing": [{"name": "x", "error": "x.png: no such file"}]}
    lines = missing(content | {"data": content["data"] | gone})
    assert "no result for x: x.png: no such file" in lines
    two = content["data"] | {"commits": ["a", "b"]}
    assert any("2 versions of the code" in line for line in missing(content | {"data": two}))
    assert re.search(r"median +0\.\d{3} ±?", overview(content))


def test_report_and_evaluate_commands_name_the_problem(tmp_path, capsys) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "results.json: no such file" in capsys.readouterr().err
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(InputError, match="not results of evaluate"):
        load_run(tmp_path)
    command = ["evaluate", "--root", str(tmp_path), "--out", str(tmp_path / "o"), "--mde", "lite"]
    assert main([*command, "--range", "kitti:1,2"]) == 2
    assert "--range must be SOURCE=NEAR,FAR" in capsys.readouterr().err
    assert main([*command, "--range", "*=1,2", "--shard", "first"]) == 2
    assert "--shard must be i/n" in capsys.readouterr().err
    assert main(["evaluate", "--root", "nowhere", "--out", "o", "--mde", "lite"]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err


def test_cell_text_of_small_and_large_numbers() -> None:
    shown = [str(Cell(x)) for x in (0.1234, 0.0, 0.0001, 123456.0, None)]
    assert shown == ["0.123", "0.000", "0.0001", "1.2e+05", "–"]
    assert str(Cell(np.pi, digits=1)) == "3.1"


@pytest.fixture(scope="module")
def reproduced(world_at, evaluation_of, red, tmp_path_factory):
    """Rows as `reproduce` names them: two K, with and without F, two seeds, and a universal one."""
    tmp_path = tmp_path_factory.mktemp("reproduced")
    world = world_at(tmp_path / "world")
    rows = ["basis(k=8)"]
    for k in (3, 5):
        for blind in (False, True):
            for seed in (0, 1):
                torch.manual_seed(seed)
                name = f"k{k}-{blind}-{seed}"
                config = GeneratorConfig(
                    k=k, feature_channels=3, width=8, dilations=(1,), cells=16, zero_features=blind
                )
                Generator(config).save(tmp_path / "gens" / name)
                label = f"Basis K={k}{', F = 0' if blind else ''}{', seed 1' if seed else ''}"
                conditions = "medium,drop" if k == 3 else "medium"
                rows.append(f"{label} @{conditions}: basis(generator='{tmp_path}/gens/{name}')")
    out = tmp_path / "out"
    evaluation = evaluation_of(*rows, regimes=("medium",))
    score_files(out, run(Evaluator(FrameSource(world, red), evaluation, out)))
    return load_run(out)


def test_seeds_table_shows_mean_and_standard_deviation(reproduced) -> None:
    table = seeds_table([reproduced])
    assert [label for label, _ in table.rows] == [
        "Basis K=3", "Basis K=5", "Basis K=3, F = 0", "Basis K=5, F = 0",
    ]  # fmt: skip
    cells = reproduced.results["cells"]
    both = [
        c["clamped"]["abs_rel"][0]
        for c in cells
        if c["method"] in ("Basis K=3", "Basis K=3, seed 1")
        and (c["condition"], c["group"]) == ("medium", EVERYWHERE)
    ]
    place = table.columns.index(("Med", "AbsRel"))
    half = abs(both[0] - both[1]) / 2**0.5  # the standard deviation of two, n − 1
    found = table.rows[0][1][place]
    assert (str(found), found.beside) == (f"{np.mean(both):.3f}", f"± {half:.3f}")
    assert str(table.rows[0][1][0]) == "–"  # the low regime was not run


def test_main_table_has_the_first_seed_with_a_note(reproduced) -> None:
    table = main_table([reproduced])
    labels = [label for label, _ in table.rows]
    assert "Basis K=3" in labels
    assert not any("seed" in label for label in labels)
    assert "Basis rows are of the first seed" in table.caption


def test_pooled_ablation_has_a_curve_with_f_and_one_without(reproduced) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    figure = figures.ablation([reproduced])
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels[-2:] == ["red [1], full", "red [1], F = 0"]
    lines = [line for line in figure.axes[0].lines if line.get_label().startswith("paper")]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines) == 4
    figures.pyplot().close(figure)


def test_feature_differences_are_means_over_the_seeds_by_place(reproduced) -> None:
    cells = {
        (c["method"], c["group"]): c["clamped"]["abs_rel"][0]
        for c in reproduced.results["cells"]
        if c["condition"] == "medium"
    }
    found = feature_differences([reproduced])
    assert list(found) == [3, 5]
    for place in reproduced.scores.groups:
        each = [
            cells[f"Basis K=5{seed}", place] - cells[f"Basis K=5, F = 0{seed}", place]
            for seed in ("", ", seed 1")
        ]
        assert found[5][place] == pytest.approx(np.mean(each))
    table = features_table([reproduced])
    assert [label for label, _ in table.rows] == ["red [1], K = 3", "red [1], K = 5"]
    assert [column[0] for column in table.columns] == [*reproduced.scores.groups, "helps in", "p"]
    better = sum(value < 0 for value in found[5].values())
    assert str(table.rows[1][1][-2]) == f"{better} of 2"
    assert table.rows[1][1][-1].value == {0: 0.5, 1: 1.0, 2: 0.5}[better]
    assert features_table([replace(reproduced, results=reproduced.results | {"cells": []})]) is None


def test_paper_drop_table_has_the_papers_figures_for_its_own_data(reproduced) -> None:
    table = paper_drop_table([reproduced], "Basis K=3")
    assert [label for label, _ in table.rows] == ["1", "3", "5", "7", "9"]
    assert table.columns == (("red [1]", "AbsRel"), ("red [1]", "δ1"))
    assert table.rows[0][1][0].beside == ""
    own = paper_drop_table([as_paper(reproduced, "da3-base")], "Basis K=3")
    assert [cell.beside for cell in own.rows[0][1]] == ["[0.18]", "[0.74]"]
    assert paper_drop_table([reproduced], "none") is None


def test_models_table_names_models_and_labels_the_universal_one(reproduced) -> None:
    rows = {label: [str(c) for c in cells] for label, cells in models_table(reproduced).rows}
    assert rows["basis(k=8)"][1] == "basis-depth-k8 (K = 8, F = 0, universal)"
    assert rows["Basis K=3"] == ["medium, drop", "gens/k3-False-0 (K = 3, with F)"]
    assert rows["Basis K=5, F = 0, seed 1"][1] == "gens/k5-True-1 (K = 5, F = 0)"
    caption = main_table([reproduced]).caption
    assert "basis(k=8): basis-depth-k8 (K = 8, F = 0, universal)." in caption


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("Basis K=8", (8, False, 0)),
        ("Basis K=50, F = 0, seed 2", (50, True, 2)),
        ("Basis K=8 (universal, F = 0)", None),
        ("Global", None),
    ],
)
def test_basis_label_reads_labels_of_a_reproduction(label, found) -> None:
    assert basis_label(label) == found
