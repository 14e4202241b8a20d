"""Write every marked table of README.md, docs/ and results/ from the records in results/.

    python scripts/tables.py            # writes the blocks <!-- NAME:begin --> … <!-- NAME:end -->
    python scripts/tables.py --check    # exit code 1, and the names of the blocks that differ

A block may stand in any page. Names without a table, and tables without a block, are listed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from math import exp
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from scalefield.io import read_json, write_atomic

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
BLOCK = re.compile(r"(<!-- (\w+):begin -->\n)(.*?)(<!-- \2:end -->)", re.DOTALL)
NOT_MEASURED = "Not measured yet."

Record = dict[str, Any]


@cache
def read(name: str) -> Record | None:
    """The record results/NAME/results.json, or None if it was not made yet."""
    path = RESULTS / name / "results.json"
    return read_json(path) if path.is_file() else None


# ---- Markdown --------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table; `align` has l or r for each column, by default the first is l."""
    align = align or "l" + "r" * (len(header) - 1)
    rule = "|" + "".join("---|" if side == "l" else "---:|" for side in align)
    return "\n".join([row_of(header), rule, *(row_of(row) for row in rows)])


def row_of(cells: Sequence[str]) -> str:
    """A line of a Markdown table, with nothing between the bars of an empty cell."""
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def grid(corner: str, entries: Iterable[tuple[str, str, str]]) -> str:
    """A table of (row, column, value) in order of appearance; a dash where a value is missing."""
    values = {(row, column): value for row, column, value in entries}
    rows, columns = (list(dict.fromkeys(key[i] for key in values)) for i in range(2))
    lines = ([row, *(values.get((row, column), "–") for column in columns)] for row in rows)
    return table([corner, *columns], lines)


def number(value: float, digits: int = 3) -> str:
    """A figure without the zero before its point.

    >>> number(0.1234), number(-0.02, 2), number(1.5, 1)
    ('.123', '−.02', '1.5')
    """
    return re.sub(r"^(−?)0\.", r"\1.", f"{value:.{digits}f}".replace("-", "−"))


def quartiles(values: Sequence[float], factor: float = 1.0) -> str:
    """Median and quartiles."""
    middle, low, high = (f"{factor * value:.3g}" for value in values)
    return f"{middle} ({low}–{high})"


# ---- errors of the default weights: README.md, docs/choose.md, docs/benchmark.md ---------------

CONDITIONS = {
    "drop-1": "1", "drop-3": "3", "drop-5": "5", "drop-9": "9",
    "low": "10–15", "medium": "100–120", "high": "500–530",
}  # fmt: skip
"""Numbers of anchors by condition."""
METHODS = {
    "Field": "`field`",
    "Field, learned level": "`field`, `scale_prior=learned`",
    "Basis K=50": "`basis`, K = 50",
    "Basis K=8": "`basis`, K = 8",
    **{name: f"`{name}`" for name in ("lwlr", "grid", "piecewise", "global", "knn", "log_kernel",
                                      "interpolate", "median")},
}  # fmt: skip
"""Names in tables by label in the records `places` and `places-fastdepth`."""
ESTIMATORS = {"lite": "places", "FastDepth": "places-fastdepth"}
CHOICE = {
    "Field": "field: a new image",
    "Basis K=50": "generator, solve and apply, K = 50",
    "lwlr": "lwlr every 32 pixels",
    **{name: name for name in ("knn", "log_kernel", "interpolate", "grid", "piecewise", "global",
                               "median")},
}  # fmt: skip
"""Rows of the table of the choice, and the step of the record `bench` that has their time."""
CHOICE_CONDITIONS = ("low", "medium")
PLACE_CONDITIONS = ("drop-3", "low", "medium", "high")
PLACES = {
    "2011_09_30_drive_0016": "street (KITTI)",
    "freiburg1_desk": "desk (TUM)",
    "freiburg1_xyz": "second desk (TUM)",
    "icl_livingroom1": "living room (ICL-NUIM)",
    "taskonomy/sample_model_1": "apartment (Taskonomy)",
    "all": "all",
}


def short_place(group: str) -> str:
    """The name of a place without that of its dataset."""
    return PLACES.get(group, group).partition(" (")[0]


def cells_of(record: Record, **values: str) -> list[Record]:
    """The cells of an evaluation whose group, condition or method have these values."""
    return [cell for cell in record["cells"] if values.items() <= cell.items()]


def abs_rel(cell: Record) -> float:
    """AbsRel of a cell, clamped to the range of the dataset."""
    return cell["clamped"]["abs_rel"][0]


def errors_of(record: Record | None) -> dict[tuple[str, str], float]:
    """AbsRel over all images by method and condition; nothing if there is no record."""
    cells = [] if record is None else cells_of(record, group="all")
    return {(cell["method"], cell["condition"]): abs_rel(cell) for cell in cells}


def results_table(record: Record) -> str:
    """AbsRel by method and number of anchors, over all images, best in bold."""
    errors = {key: round(value, 3) for key, value in errors_of(record).items()}
    best = {c: min(errors[m, c] for m in METHODS if (m, c) in errors) for c in CONDITIONS}

    def shown(method: str, condition: str) -> str:
        if (method, condition) not in errors:
            return ""
        text = number(errors[method, condition])
        return f"**{text}**" if errors[method, condition] == best[condition] else text

    names = METHODS | {"Field": f"**{METHODS['Field']}**"}
    rows = ([name, *(shown(method, c) for c in CONDITIONS)] for method, name in names.items())
    return table(["anchors", *CONDITIONS.values()], rows)


def choice_table(bench: Record) -> str:
    """AbsRel by estimator and number of anchors, and time, for each method."""
    errors = {estimator: errors_of(read(name)) for estimator, name in ESTIMATORS.items()}
    times = speed_shares(bench, "480×640")
    columns = [(e, c) for e in errors for c in CHOICE_CONDITIONS]
    rows = []
    for label, step in CHOICE.items():
        found = [errors[e].get((label, c)) for e, c in columns]
        cells = ["–" if value is None else number(value) for value in found]
        rows.append([METHODS[label], *cells, f"{times[step]:.2g}"])
    return table(["", *(f"{e}, {CONDITIONS[c]}" for e, c in columns), "time"], rows)


def places_by_place(record: Record) -> str:
    """AbsRel of `field` by place, and the coverage of its 90 % intervals."""
    rows = []
    for group, title in PLACES.items():
        cells = {c["condition"]: c for c in cells_of(record, group=group, method="Field")}
        shown = (
            f"{number(abs_rel(cells[c]))} ({coverage(cells[c]):.0f} %)" for c in PLACE_CONDITIONS
        )
        rows.append([title, f"{cells['low']['images']}", *shown])
    columns = [CONDITIONS[c] for c in PLACE_CONDITIONS]
    return table(["`field` with `lite`", "images", *columns], rows)


def coverage(cell: Record) -> float:
    """Per cent of the pixels inside the 90 % intervals."""
    return 100 * cell["coverage"]["coverage_90"][0]


# ---- strong estimators and affine maps: docs/benchmark.md, README.md ---------------------------

STRONG = {
    "strong": "outputs of three published estimators as they are",
    "strong-affine": "the same as affine-invariant disparity",
    "places-affine-lite": "`lite` as affine-invariant disparity, five places",
    "places-affine-fastdepth": "FastDepth as affine-invariant disparity, five places",
}
"""Rows of the summary by record."""
FAMILIES = {
    "JiayouQin01/groundedDPT": "Depth Anything V2",
    "mmaj1/Midas-project": "MiDaS",
    "pablodawson/few-shot-gaussian-splatting": "ZoeDepth",
}
PREFIXES = {"strong-affine": "affine ", "places-affine-lite": "`lite`, ",
            "places-affine-fastdepth": "FastDepth, "}  # fmt: skip
STRONG_CONDITIONS = ("drop-3", "drop-5", "low", "medium")
OURS = ("Field", "Basis")


class Comparison(NamedTuple):
    """AbsRel of `field` and of the best aligner in one family under one condition."""

    family: str
    images: int
    condition: str
    field: float
    best: float
    aligner: str
    """The aligner of the smallest error, with the space of its fit."""
    coverage: float
    """Per cent of the pixels inside the 90 % intervals of `field`."""

    @property
    def ratio(self) -> float:
        """Error of `field` relative to that of the best aligner."""
        return self.field / self.best


def draws(name: str) -> list[Record]:
    """The records of a folder: one of its own, or one for each seed of the anchors."""
    return [read_json(path) for path in sorted((RESULTS / name).rglob("results.json"))]


def comparisons(runs: Sequence[Record]) -> list[Comparison]:
    """Every family under every condition, averaged over runs that differ in their seed.

    An aligner counts in the better of its two spaces.
    """
    cells: dict[tuple[str, str, str], list[Record]] = {}
    for cell in (cell for run in runs for cell in run["cells"] if "clamped" in cell):
        cells.setdefault((cell["group"], cell["condition"], cell["method"]), []).append(cell)
    families = sorted({group for group, _, _ in cells} - {"all"})
    compared = []
    for family in families or ["all"]:  # a run of one group has no other
        for condition in STRONG_CONDITIONS:
            errors = {
                method: fmean(abs_rel(cell) for cell in group)
                for (name, under, method), group in cells.items()
                if (name, under) == (family, condition)
            }
            aligners = {method: error for method, error in errors.items() if method not in OURS}
            if "Field" not in errors or not aligners:
                continue
            best = min(aligners, key=lambda method: aligners[method])
            ours = cells[family, condition, "Field"]
            compared.append(
                Comparison(
                    family=family,
                    images=ours[0]["images"],
                    condition=condition,
                    field=errors["Field"],
                    best=errors[best],
                    aligner=best,
                    coverage=fmean(coverage(cell) for cell in ours),
                )
            )
    return compared


def strong_ratios() -> str:
    """Ratio of the errors of `field` and the best aligner by family and number of anchors."""
    rows = [row for name in STRONG for row in ratio_rows(draws(name), PREFIXES.get(name, ""))]
    columns = [CONDITIONS[c] for c in STRONG_CONDITIONS]
    return table(["maps", "images", *columns, "coverage"], rows)


def ratio_rows(runs: Sequence[Record], prefix: str = "") -> list[list[str]]:
    """One row for each family: images, ratios, and the range of the coverage over conditions."""
    rows = []
    for family_name, found in groupby(comparisons(runs), key=lambda c: c.family):
        compared = list(found)
        ratios = {c.condition: f"{c.ratio:.2f}" for c in compared}
        low, high = (extreme(c.coverage for c in compared) for extreme in (min, max))
        title = FAMILIES.get(family_name) or short_place(family_name)
        cells = [prefix + title, f"{compared[0].images}"]
        cells += [ratios.get(condition, "–") for condition in STRONG_CONDITIONS]
        rows.append([*cells, f"{low:.0f}–{high:.0f} %"])
    return rows


def strong_summary() -> str:
    """Error of `field` relative to that of the best aligner, in the mean of families."""
    rows = []
    for name, title in STRONG.items():
        means = mean_ratios(comparisons(draws(name)))
        rows.append([title, *(number(means[c], 2) if c in means else "–"
                              for c in STRONG_CONDITIONS)])  # fmt: skip
    columns = [CONDITIONS[c] for c in STRONG_CONDITIONS]
    return table(["`field` relative to the best aligner", *columns], rows)


def mean_ratios(compared: Sequence[Comparison]) -> dict[str, float]:
    """The mean of the ratios over families, by condition."""
    present = [c for c in STRONG_CONDITIONS if any(x.condition == c for x in compared)]
    return {c: fmean(x.ratio for x in compared if x.condition == c) for c in present}


# ---- every aligner by name, paired: docs/comparison.md -----------------------------------------

COMPARED = {"lite": ("low", "medium", "high"), "FastDepth": ("low", "medium", "high"),
            "strong": ("low", "medium")}  # fmt: skip
STRUCTURE = {"abs_rel": "AbsRel", "median_rel": "median pixel", "normal_deg": "normals",
             "edge_rel": "edges", "imprint": "imprint"}  # fmt: skip


def comparison_cells(record: Record, condition: str, names: Iterable[str]) -> dict[str, Record]:
    """Cells by set and method under one condition, for sets that have it."""
    sets = {name: record["sets"].get(name, {}).get("conditions", {}) for name in names}
    return {name: found[condition]["methods"] for name, found in sets.items() if condition in found}


def ratio_text(ratio: Record | None) -> str:
    """Error of `field` relative to a method, with twice the standard error; bold if no smaller."""
    if ratio is None or ratio["standard_error"] is None:
        return "–"
    log, error = ratio["log_ratio"], 2 * ratio["standard_error"]
    text = f"{number(exp(log), 2)} ± {number(exp(log) * error, 2)}"
    return text if log + error < 0 else f"**{text}**"


def comparison_ratios(record: Record, kind: str = "abs_rel") -> str:
    """Paired error of `field` relative to each aligner by set and number of anchors."""
    columns = [(name, condition) for name, conditions in COMPARED.items()
               if name in record["sets"] for condition in conditions
               if condition in record["sets"][name]["conditions"]]  # fmt: skip
    cells = {(n, c): record["sets"][n]["conditions"][c]["methods"] for n, c in columns}
    methods = dict.fromkeys(method for found in cells.values() for method in found)
    low = comparison_cells(record, "low", ["lite"])
    rows = []
    for method in methods:
        shown = [
            "1" if method == "field" else ratio_text(found.get(method, {}).get(f"{kind}_ratio"))
            for found in cells.values()
        ]
        spent = low.get("lite", {}).get(method, {}).get("ms")
        rows.append([f"`{method}`", *shown, "–" if spent is None else f"{spent:.0f}"])
    return table(["", *(f"{n}, {CONDITIONS[c]}" for n, c in columns), "ms"], rows)


def comparison_structure(record: Record) -> str:
    """Means of the structure metrics with `lite` and 100–120 anchors."""
    (cells,) = comparison_cells(record, "medium", ["lite"]).values()
    rows = []
    for method, entry in cells.items():
        shown = [
            "–" if kind not in entry
            else f"{entry[kind]:.1f}°" if kind == "normal_deg"
            else number(entry[kind], 2 if kind == "imprint" else 3)
            for kind in STRUCTURE
        ]  # fmt: skip
        rows.append([f"`{method}`", *shown])
    return table(["", *STRUCTURE.values()], rows)


# ---- properties of `field`: docs/field.md, results/field, results/reliability ------------------

REGIMES = ("low", "medium", "high")
RULES = {
    "suggest": "`suggest`", "grid": "regular grid", "random": "random",
    "farthest": "farthest point", "of 110, suggest": "`suggest` among 110 anchors",
    "of 110, random": "random among 110 anchors",
}  # fmt: skip


def field_wrong(record: Record) -> str:
    """AbsRel with a share of wrong anchors, by regime."""
    kinds = {"robust": "search", "not robust": "no search", "left out": "correct anchors alone"}
    rows = []
    for regime in REGIMES:
        errors = record["wrong anchors"][regime]
        for share in ("clean", "10% wrong", "30% wrong"):
            found = (errors.get(f"{share}, {kind}") for kind in kinds)
            cells = ("–" if value is None else number(value, 4) for value in found)
            rows.append([CONDITIONS[regime], share.replace("%", " %"), *cells])
    return table(["anchors", "of them", *kinds.values()], rows, "llrrr")


def field_outliers(record: Record) -> str:
    """Error with wrong anchors relative to the correct anchors alone, with and without a search."""
    rows = []
    for share in ("10%", "30%"):
        cells = []
        for errors in (record["wrong anchors"][regime] for regime in REGIMES):
            alone = errors[f"{share} wrong, left out"]
            cells += [f"{errors[f'{share} wrong, {kind}'] / alone:.2f}"
                      for kind in ("robust", "not robust")]  # fmt: skip
        rows.append([share.replace("%", " %"), *cells])
    columns = [f"{CONDITIONS[r]}, {kind}" for r in REGIMES for kind in ("with search", "without")]
    return table(["wrong anchors", *columns], rows)


def field_placement(record: Record) -> str:
    """AbsRel with anchors that were placed by several rules."""
    placed = record["where to measure"]
    entries = ((title, n, number(error)) for rule, title in RULES.items()
               for n, error in placed[rule].items())  # fmt: skip
    return grid("placed by", entries)


def field_video(record: Record) -> str:
    """AbsRel and flicker of sequences with few anchors a frame."""
    rows = []
    for count, places in record["video"].items():
        for place, row in places.items():
            cells = [" / ".join(number(v, 4) for v in row[key].values())
                     for key in ("absrel", "flicker")]  # fmt: skip
            rows.append([place.rpartition("/")[2], f"{row['frames']}", count, *cells])
    header = ["sequence", "frames", "anchors a frame", "AbsRel: median / field / stream",
              "flicker: median / field / stream"]  # fmt: skip
    note = "Flicker is the mean change of the median log error from one frame to the next."
    return f"{table(header, rows)}\n\n{note}"


def coverage_table(record: Record) -> str:
    """Per cent of the pixels in the intervals of `field`; in brackets the extremes over places."""
    rows = []
    for estimator, conditions in record["estimators"].items():
        for condition, groups in conditions.items():
            places = [values for group, values in groups.items() if group != "all"]
            cells = [f"{mean:.0f} ({min(each):.0f}–{max(each):.0f})"
                     for mean, *each in zip(groups["all"], *places, strict=True)]  # fmt: skip
            rows.append([estimator, CONDITIONS.get(condition, condition), *cells])
    levels = [f"{level} %" for level in record["config"]["levels"]]
    return table(["estimator", "anchors", *levels], rows)


# ---- running times: docs/speed.md, results/bench, results/lidar --------------------------------

REFERENCE = "DA3-BASE forward"
STEPS = {
    "estimator `lite`": "lite forward",
    "`field`, a new image": "field: a new image",
    "`field`, an added anchor": "field: an added anchor",
    "`basis`, K = 50, a new image": "generator, solve and apply, K = 50",
    "`basis`, K = 50, an added anchor": "basis: solve and apply, K = 50",
    "`Live`, K = 50": "live, K = 50",
    "`lwlr`": "lwlr every 32 pixels",
    **{f"`{name}`": name for name in ("knn", "region", "interpolate", "global")},
}  # fmt: skip
"""Rows of the table by size, and their steps in the record `bench`."""
STEPS_ON_GPU = {
    "DA3-BASE": REFERENCE,
    **{title: STEPS[title] for title in ("estimator `lite`", "`basis`, K = 50, a new image")},
    "`Live`, K = 50, float32": "live, K = 50",
    "`Live`, K = 50, float16": "live, float16, K = 50",
    **{title: STEPS[title] for title in ("`lwlr`", "`region`", "`interpolate`", "`global`")},
}  # fmt: skip


def speed_shares(record: Record, size: str) -> dict[str, float]:
    """Per cent of the reference with two threads and 110 anchors, by step."""
    setting = {"size": size, "threads": 2}
    found = (entry for entry in record["ratios"] if setting.items() <= entry.items())
    return {entry["name"]: 100 * entry["share"][0] for entry in found}


def speed_sizes(record: Record) -> str:
    """Per cent of the reference, a column for each size."""
    sizes = dict.fromkeys(e["size"] for e in record["ratios"] if e["threads"] == 2)
    shares = [speed_shares(record, size) for size in sizes]
    rows = ([title, *(f"{share[step]:.2g}" for share in shares)] for title, step in STEPS.items())
    return table(["% of DA3-BASE", *sizes], rows)


def speed_anchors(processor: Record) -> str:
    """Cost of `field` by the number of anchors, on a processor and on a GPU."""
    ours, gpu = processor["measured"], (read("lidar-cuda") or {"measured": {}})["measured"]
    shares = ours["480×640, of DA3-BASE"]
    series = {
        "% of DA3-BASE": {n: [100 * value for value in share] for n, share in shares.items()},
        "ms": ours["recover at 480×640, ms"],
        "H200, ms": gpu.get("recover, ms", {}),
        "`LiveField`, H200, ms": gpu.get("LiveField, ms", {}),
    }
    rows = []
    for n in shares:
        cells = (f"{times[n][0]:.3g}" if n in times else "–" for times in series.values())
        rows.append([f"{int(n):,}", *cells])
    return table(["anchors", *series], rows, "l" + "r" * len(series))


def speed_gpu(record: Record) -> str:
    """Milliseconds of each step on a GPU."""
    sizes = dict.fromkeys(e["size"] for e in record["ratios"])
    times = {(e["name"], e["size"]): e["ms"][0] for e in record["ratios"]}
    rows = ([title, *(f"{times[step, size]:.3g}" for size in sizes)]
            for title, step in STEPS_ON_GPU.items())  # fmt: skip
    return table(["ms on an H200", *sizes], rows)


def share_of(entry: Record) -> str:
    """Per cent of the reference; and milliseconds, where they are known."""
    ms = f"; {entry['ms'][0]:.3g} ms" if "ms" in entry else ""
    return quartiles(entry["share"], 100) + ms


def size_of(entry: Record) -> str:
    """Size of the image and number of anchors of an entry."""
    return f"{entry['size']}, N = {entry['n']:,}"


DETAILS: dict[str, tuple[str, str, Callable[[Record], tuple[str, str, str]]]] = {
    "sizes": ("ratios", f"Percent of {REFERENCE} on the same image.",
              lambda e: (e["name"], size_of(e), share_of(e))),
    "anchors": ("anchors", f"Percent of {REFERENCE}.",
                lambda e: (e["name"], size_of(e), share_of(e))),
    "lidar": ("lidar", f"Percent of {REFERENCE} on the same image.",
              lambda e: (e["name"], size_of(e), share_of(e))),
    "beside": ("beside", "Time of ours over time of theirs, in the same round.",
               lambda e: (f"{e['ours']} / {e['theirs']}", size_of(e), quartiles(e["ratio"]))),
    "batches": ("batches", "Time an image, beside one image alone.",
                lambda e: (f"{e['name']}, {e['size']}", f"batch {e['batch']}",
                           quartiles(e["beside_batch_1"]))),
    "memory": ("memory", "Peak that one call adds at 1080×1920 with 520 anchors, results included.",
               lambda e: (e["name"], "MB", f"{e['peak_mb']:.0f}"
                          if isinstance(e["peak_mb"], float) else e["peak_mb"])),
    "starts": ("starts", "Time of a command in starts of a bare `python`.",
               lambda e: (f"`{e['name']}`", "× `python`", quartiles(e["beside_python"]))),
}  # fmt: skip
"""Tables of `benchmarks/bench.py`: part of the record, sentence above, and (row, column, value)."""


def detail(record: Record, what: str, threads: int = 2) -> str:
    """One table with all that `benchmarks/bench.py` measured of a kind."""
    part, sentence, entry_of = DETAILS[what]
    entries = [e for e in record.get(part, []) if e.get("threads", threads) == threads]
    if not entries:
        return "Not measured in this run."
    return f"{sentence}\n\n{grid('', map(entry_of, entries))}"


def roofline(record: Record) -> str:
    """The limits of the device, and how near each variant comes."""
    entries = {e["name"]: e["found"] for e in record["roofline"]}
    limits = entries.pop("ceilings")
    rates = ", ".join(
        f"{name.removesuffix('_flops')} {value / 1e12:.0f} TFLOP/s"
        for name, value in limits.items()
        if name.endswith("flops")
    )
    head = (
        "Generator, solve and apply at 504×504 with F of 128 channels at 288×288, "
        f"K = 8, N = 110. Measured in this run: {rates}, copies {limits['copy_bytes'] / 1e12:.2f} "
        "TB/s. `layers`: each convolution at the slower of its arithmetic and its bytes, all else "
        "fused away; `whole`: arithmetic, or inputs and outputs alone."
    )
    rows = []
    for name, found in entries.items():
        if "plain_ms" not in found:
            rows.append([name, found.get("missing", "–"), "", "", ""])
            continue
        best = min(found["plain_ms"][0], found.get("graph_ms", found["plain_ms"])[0])
        graph = quartiles(found["graph_ms"]) if "graph_ms" in found else "could not be captured"
        near = [f"{100 * found['least_ms'][bound] / best:.0f} %" for bound in ("layers", "whole")]
        rows.append([name, quartiles(found["plain_ms"]), graph, *near])
    header = ["", "ms", "as a graph, ms", "share of `layers`", "share of `whole`"]
    return f"{head}\n\n{table(header, rows)}"


def lidar_costs(record: Record) -> str:
    """Medians and quartiles of what `field` costs by the number of anchors."""
    rows = []
    for what, cases in record["measured"].items():
        for name, value in (cases if isinstance(cases, dict) else {"": cases}).items():
            rows.append([what, name, quartiles(value) if isinstance(value, list) else f"{value}"])
    return table(["what", "case", "value"], rows, "llr")


def scene_figures(record: Record) -> str:
    """Errors of views recovered together over those of single recoveries, by kind of scene."""
    groups = {"small": "small steps", "wide": "wide baselines"}
    conditions = {
        "six": "six anchors a view",
        "quarter": "every fourth view has anchors; the others",
        "wrong_pose": "six anchors, one wrong pose; the others",
    }
    rows = []
    for group, found in record["groups"].items():
        for condition, result in found.items():
            values = result["summary"]
            rows.append([
                groups[group], conditions[condition], f"{values['scenes']}",
                number(values["abs_rel_alone"]), number(values["abs_rel_joint"]),
                number(values["abs_rel_ratio"], 2), number(values["abs_rel_worst_scene"], 2),
                number(values["disagreement_ratio"], 2), number(values["coverage_joint"], 2),
            ])  # fmt: skip
    header = ["views", "anchors", "scenes", "AbsRel alone", "together", "ratio", "worst scene",
              "disagreement, ratio", "90 % intervals cover"]  # fmt: skip
    return table(header, rows, "llrrrrrrr")


# ---- the page, labels, long runs ---------------------------------------------------------------


def page_latency(record: Record) -> str:
    """Time to open a photo, and from an edit to the first map and to that at every pixel."""
    rows = []
    for size, photo in record["photos"].items():
        edits = (f"{edit['median_painted_ms']:.0f} / {edit['median_full_ms']:.0f} ms"
                 for edit in photo["edits"].values())  # fmt: skip
        rows.append([size.replace("x", "×"), f"{photo['ready_ms'] / 1000:.1f} s", *edits])
    counts = record["config"]["anchors"]
    return table(["photo", "opened", *(f"{n} anchors" for n in counts)], rows)


def label_costs(record: Record) -> str:
    """Rate and disk space of `label`, and what follows from it for a million images."""
    config, rounds = record["config"], record["rounds"]
    rows = []
    for name, each in rounds.items():
        workers = 1 if name == "one process" else config["workers"]
        rate, first = (median(x[key] for x in each) for key in ("images_per_s", "first_s"))
        rows.append([name, f"{rate:.2f}", f"{rate / workers:.2f}", f"{first:.1f} s"])
    single = rounds["one process"]
    rate, megabytes = (median(x[key] for x in single) for key in ("images_per_s", "mb_per_label"))
    height, width = config["shape"]
    origin = record["provenance"]
    header = ["", "images/s", "images/s for each process", "to the first label"]
    return "\n\n".join([
        table(header, rows),
        f"Rounds: {len(single)} (medians). Each has {config['images']} images of {width}×{height} "
        f"with {config['anchors']} anchors each; `{config['mde']}` with `{config['method']}`; "
        f"{config['cores']} cores of {origin['device']}, load {config['load_before']:.1f} "
        f"before the run; commit {str(origin['commit'])[:7]}.",
        f"A label takes {megabytes:.2f} MB. At the rate of one process, a million images take "
        f"{1e6 / rate / 86400:.1f} days of one core and {megabytes:.2f} TB.",
    ])  # fmt: skip


def long_runs() -> str:
    """Outcomes of the damaged files, of thousands of calls, and of the oldest versions."""
    rows = []
    if fuzz := read("fuzz"):
        targets = fuzz["targets"].values()
        accepted, refused = (sum(t[key] for t in targets) for key in ("accepted", "refused"))
        rows.append(["damaged files", f"{fuzz['cases']:,} cases, {len(targets)} readers",
                     f"{accepted:,} accepted, {refused:,} refused in a sentence, "
                     f"{fuzz['failures']} failures"])  # fmt: skip
    if soak := read("soak"):
        lives = soak["lives"]
        grown = (f"{name} {life['growth_mb']:+.1f} ± {life['growth_error_mb']:.1f} MB"
                 for name, life in lives.items())  # fmt: skip
        calls = min(life["calls"] for life in lives.values())
        rows.append(["memory", f"{calls:,} calls each", "; ".join(grown).replace("-", "−")])
    outcome = dict(re.findall(r"(\d+) (failed|passed)", lowest_outcome())[::-1])
    counts = {kind: int(count) for count, kind in outcome.items()}
    rows.append(["oldest versions", f"{sum(counts.values()):,} tests",
                 f"{counts.get('failed', 0)} failed"])  # fmt: skip
    return table(["run", "size", "found"], rows)


def lowest_outcome() -> str:
    """What the tests printed with the oldest versions."""
    return (RESULTS / "lowest" / "tests.txt").read_text()


# ---- the paper's preset: docs/paper.md ---------------------------------------------------------

KS = (8, 30, 50)
ALIGNERS = ("Global", "Grid", "LWLR", "Piecewise", "Region")
OWN, VIT, VIT_S = "fastdepth", "fastdepth-vit", "vit-s"
FEATURES = {OWN: "own F", VIT: "ViT F", VIT_S: "ViT-S", "lite": "`lite`"}


def paper_records() -> dict[str, Record]:
    """The record of each estimator that results/paper has."""
    found = {estimator: read(f"paper/places-{estimator}") for estimator in FEATURES}
    return {estimator: record for estimator, record in found.items() if record is not None}


def family(label: str) -> tuple[str, int]:
    """A row without its seed, and the seed.

    >>> family("Basis K=8, F = 0, seed 2")
    ('Basis K=8, F = 0', 2)
    """
    row, _, seed = label.partition(", seed ")
    return row, int(seed or 0)


def seeds_of(record: Record, row: str, condition: str, group: str = "all") -> dict[int, float]:
    """AbsRel of a row by seed."""
    cells = cells_of(record, condition=condition, group=group)
    return {family(c["method"])[1]: abs_rel(c) for c in cells if family(c["method"])[0] == row}


def over_seeds(found: Iterable[float], digits: int = 3) -> str:
    """Mean and standard deviation (n − 1) over seeds; a dash for nothing."""
    values = list(found)
    if not values:
        return "–"
    text = number(fmean(values), digits)
    return text if len(values) < 2 else f"{text}±{number(stdev(values), digits)}"


def paper_accuracy(records: dict[str, Record]) -> str:
    """AbsRel of every row, in the mean over the seeds."""
    titles = [(row, {OWN: row, VIT_S: row}) for row in ALIGNERS]
    basis = [f"Basis K={k}" for k in KS]
    titles += [(f"{row}, own F", {OWN: row, VIT_S: row}) for row in basis]
    titles += [(f"{row}, ViT F", {VIT: row}) for row in basis]
    titles += [(f"{row}, F = 0", dict.fromkeys((OWN, VIT_S), f"{row}, F = 0")) for row in basis]
    columns = {"FastDepth": (OWN, VIT), "ViT-S": (VIT_S,)}
    rows = []
    for title, sources in titles:
        cells = []
        for estimators in columns.values():
            source = next((e for e in estimators if e in sources and e in records), None)
            found = [
                seeds_of(records[source], sources[source], regime) if source else {}
                for regime in REGIMES
            ]
            values = (number(fmean(each.values())) if each else "–" for each in found)
            cells.append("/".join(values) if any(found) else "–")
        if set(cells) != {"–"}:
            rows.append([title, *cells])
    return table(["AbsRel, low/medium/high", *columns], rows)


def paper_features_places(records: dict[str, Record]) -> str:
    """AbsRel at medium anchors with F less that with F = 0 by place, in the mean over the seeds."""
    rows = []
    for estimator, record in records.items():
        for k in KS:
            cells = [feature_difference(record, k, group) for group in PLACES]
            if estimator != "lite" and set(cells) != {"–"}:
                rows.append([f"{FEATURES[estimator]}, K = {k}", *cells])
    return table(["", *(short_place(group) for group in PLACES)], rows)


def feature_difference(record: Record, k: int, group: str) -> str:
    """The difference in the mean over the seeds that have both rows, with its sign."""
    own, zero = (seeds_of(record, f"Basis K={k}{f}", "medium", group) for f in ("", ", F = 0"))
    found = [own[seed] - zero[seed] for seed in own if seed in zero]
    if not found:
        return "–"
    mean = fmean(found)
    return ("−" if mean < 0 else "+") + number(abs(mean))


def paper_drop(records: dict[str, Record]) -> str:
    """AbsRel of the drop-anchor test by the number of anchors left."""
    counts = (1, 3, 5, 7, 9)
    titles = [(f"Basis K=8, {FEATURES[e]}", e, "Basis K=8") for e in (OWN, VIT)]
    titles += [(f"Basis K=8, {FEATURES[e]}", e, "Basis K=8") for e in (VIT_S, "lite")]
    rows = [
        [title, *(over_seeds(seeds_of(records[e], row, f"drop-{n}").values()) for n in counts)]
        for title, e, row in titles
        if e in records
    ]
    rows.append(["the paper, DA3", ".18", ".11", ".10", ".10", ".10"])
    return table(["", *map(str, counts)], rows)


SPECTRUM = {
    "eta1": "η₁", "similarity": "\\|v₁ᵀg\\|", "g0_mean": "mean G₀", "g0_var": "var G₀",
    "alpha1_share": "α₁² / ‖y‖²", "alpha1_first": "\\|α₁\\| largest",
}  # fmt: skip


def paper_spectrum(records: dict[str, Record]) -> str:
    """The spectrum of K = 8 at low anchors."""
    rows = []
    for estimator, record in records.items():
        found = [
            entry
            for entry in record["spectral"]
            if (entry["group"], entry["condition"]) == ("all", "low")
            and family(entry["method"])[0] == "Basis K=8"
        ]
        if found:
            values = {key: over_seeds(e[key] for e in found) for key in SPECTRUM}
            values["g0_var"] = f"{fmean(e['g0_var'] for e in found):.0e}"
            rows.append([FEATURES[estimator], *values.values()])
    rows.append(["the paper, DA3", ".92–.97", ".985–.991", "≈ .21", "≈ 1e-04", "–", "expected"])
    return table(["", *SPECTRUM.values()], rows)


def pipeline_costs(record: Record) -> str:
    """Disk space and time of preparation at the scale of the paper."""
    networks = {"da3-base": "DA3-BASE", "midas-hybrid": "MiDaS DPT-Hybrid"}
    full = record["train and val at full scale"]
    rows = [
        ["GB, F in 8 bits", *(f"{full[n]['disk_gb']['uint8']:.0f}" for n in networks)],
        ["minutes, 16 cores", *(f"{full[n]['prepare_min_on_16_cores']:.1f}" for n in networks)],
    ]
    return table(["prepared frames", *networks.values()], rows)


# ---- the list of records: results/README.md ----------------------------------------------------


def listed() -> dict[str, Record]:
    """The entries of results/records.toml by folder."""
    return tomllib.loads((RESULTS / "records.toml").read_text())


def commits(name: str) -> list[str]:
    """Commits that the files of a record name."""
    files = sorted((RESULTS / name).rglob("*.json"))
    origins = (read_json(file).get("provenance", {}) for file in files)
    return list(dict.fromkeys(str(origin["commit"]) for origin in origins if "commit" in origin))


def pages_about(name: str) -> list[Path]:
    """Pages of the README and docs/ that refer to a record by results/NAME."""
    reference = re.compile(rf"results/{re.escape(name)}(?![\w-])")
    return [page for page in pages() if RESULTS not in page.parents
            and reference.search(page.read_text())]  # fmt: skip


def record_list() -> str:
    """Folder, contents, command, time, commit and pages of every record."""
    rows = []
    for name, entry in listed().items():
        origin = ", ".join(commit[:7] for commit in commits(name)) or "–"
        where = ", ".join(
            f"[{page.stem}](../{page.relative_to(ROOT).as_posix()})" for page in pages_about(name)
        )
        note = f". {entry['note']}" if "note" in entry else ""
        rows.append([f"`{name}`", entry["contents"] + note, f"`{entry['command']}`", entry["time"],
                     "not made yet" if entry.get("pending") else origin, where])  # fmt: skip
    return table(["folder", "contents", "command", "time", "commit", "pages"], rows, "llllll")


# ---- blocks ------------------------------------------------------------------------------------


def of_record(name: str, made: Callable[[Record], str]) -> str:
    """The table of one record."""
    record = read(name)
    return NOT_MEASURED if record is None else made(record)


TABLES: dict[str, Callable[[], str]] = {
    "results": partial(of_record, "places", results_table),
    "choose": partial(of_record, "bench", choice_table),
    "places_by_place": partial(of_record, "places", places_by_place),
    "strong_ratios": strong_ratios,
    "strong_summary": strong_summary,
    "comparison_ratios": partial(of_record, "comparison", comparison_ratios),
    "comparison_medians": partial(
        of_record, "comparison", partial(comparison_ratios, kind="median_rel")
    ),
    "comparison_structure": partial(of_record, "comparison", comparison_structure),
    "field_outliers": partial(of_record, "field", field_outliers),
    "field_placement": partial(of_record, "field", field_placement),
    "field_video": partial(of_record, "field", field_video),
    "field_wrong": partial(of_record, "field", field_wrong),
    "coverage": partial(of_record, "reliability", coverage_table),
    "reliability": long_runs,
    "speed_sizes": partial(of_record, "bench", speed_sizes),
    "speed_anchors": partial(of_record, "lidar", speed_anchors),
    "speed_gpu": partial(of_record, "bench-cuda", speed_gpu),
    "cpu_sizes_1_thread": partial(of_record, "bench", partial(detail, what="sizes", threads=1)),
    **{f"{device}_{what}": partial(of_record, name, partial(detail, what=what))
       for device, name in (("cpu", "bench"), ("cuda", "bench-cuda")) for what in DETAILS
       if (device, what) != ("cuda", "starts")},
    "cuda_roofline": partial(of_record, "bench-cuda", roofline),
    "lidar": partial(of_record, "lidar", lidar_costs),
    "lidar_cuda": partial(of_record, "lidar-cuda", lidar_costs),
    "page": partial(of_record, "page", page_latency),
    "scene_figures": partial(of_record, "scenes", scene_figures),
    "label_costs": partial(of_record, "labelling", label_costs),
    "paper_accuracy": lambda: paper_accuracy(paper_records()),
    "paper_features_places": lambda: paper_features_places(paper_records()),
    "paper_drop": lambda: paper_drop(paper_records()),
    "paper_spectrum": lambda: paper_spectrum(paper_records()),
    "pipeline_costs": partial(of_record, "pipeline", pipeline_costs),
    "records": record_list,
}  # fmt: skip
"""What stands between the marks NAME:begin and NAME:end."""


def pages(root: Path = ROOT) -> list[Path]:
    """The pages in which blocks may stand."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md")),
            *sorted((root / "results").rglob("*.md"))]  # fmt: skip


def filled(text: str) -> str:
    """A page with its blocks made from the records; names without a table are left alone."""

    def made(block: re.Match[str]) -> str:
        known = TABLES.get(block[2])
        return block[0] if known is None else f"{block[1]}{known()}\n{block[4]}"

    return BLOCK.sub(made, text)


def differing(text: str) -> list[str]:
    """Names of the blocks of a page that are not what the records say."""
    pairs = zip(BLOCK.findall(text), BLOCK.findall(filled(text)), strict=True)
    return [old[1] for old, new in pairs if old != new]


def unknown(text: str) -> list[str]:
    """Names of begin or end marks of a page that have no table, or no mark that closes them."""
    marks = re.findall(r"<!-- (\w+):(?:begin|end) -->", text)
    whole = {name for _, name, _, _ in BLOCK.findall(text)}
    return [name for name in dict.fromkeys(marks) if name not in TABLES or name not in whole]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the blocks of all pages; 1 if a check fails or a mark is unknown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    found, failed = set[str](), False
    for page in pages(root):
        text = page.read_text()
        found |= {name for _, name, _, _ in BLOCK.findall(text)}
        for name in unknown(text):
            print(f"{page}: the block {name} is not one of scripts/tables.py, or has one mark only")
            failed = True
        different = differing(text)
        if check:
            for name in different:
                print(
                    f"{page}: the block {name} differs from the records: python scripts/tables.py"
                )
            failed |= bool(different)
        elif different:
            write_atomic(page, filled(text).encode())
            print(f"{page}: wrote {', '.join(different)}")
    if absent := [name for name in TABLES if name not in found]:
        print(f"tables that stand in no page: {', '.join(absent)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
