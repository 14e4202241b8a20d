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


# ---- errors of the default weights: README.md, docs/choose.md ----------------------------------

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
CHOICE_CONDITIONS = ("drop-3", "low", "medium", "high")
CHOICE_SETTING = {"size": "480×640", "threads": 2}


def errors_of(record: Record) -> dict[tuple[str, str], float]:
    """AbsRel over all images by method and condition."""
    return {
        (cell["method"], cell["condition"]): cell["clamped"]["abs_rel"][0]
        for cell in record["cells"]
        if cell["group"] == "all"
    }


def results_table() -> str:
    """AbsRel by method and number of anchors, over all images, best in bold."""
    record = read("places")
    if record is None:
        return NOT_MEASURED
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


def choice_table() -> str:
    """AbsRel by estimator and number of anchors, and time, for each method."""
    bench = read("bench")
    records = {estimator: read(name) for estimator, name in ESTIMATORS.items()}
    errors = {e: errors_of(record) for e, record in records.items() if record is not None}
    if bench is None or not errors:
        return NOT_MEASURED
    times = {
        entry["name"]: 100 * entry["share"][0]
        for entry in bench["ratios"]
        if CHOICE_SETTING.items() <= entry.items()
    }
    columns = [(e, c) for e in errors for c in CHOICE_CONDITIONS]
    rows = []
    for label, step in CHOICE.items():
        found = [errors[e].get((label, c)) for e, c in columns]
        cells = ["" if value is None else number(value) for value in found]
        rows.append([METHODS[label], *cells, f"{times[step]:.2g}"])
    return table(["", *(f"{e}, {CONDITIONS[c]}" for e, c in columns), "time"], rows)


# ---- strong estimators and affine maps: docs/benchmark.md, README.md ---------------------------

STRONG = {
    "strong": ("strong", "outputs of three published estimators as they are"),
    "strong_affine": ("strong-affine", "the same as affine-invariant disparity"),
    "places_affine_lite": (
        "places-affine-lite",
        "`lite` as affine-invariant disparity, five places",
    ),
    "places_affine_fastdepth": (
        "places-affine-fastdepth",
        "FastDepth as affine-invariant disparity, five places",
    ),
}
"""Record and row of the summary by name of the block."""
STRONG_CONDITIONS = ("drop-3", "drop-5", "low", "medium")
OURS = ("Field", "Basis")


class Comparison(NamedTuple):
    """AbsRel of `field`, `basis` and the best aligner in one family under one condition."""

    family: str
    images: int
    condition: str
    field: float
    basis: float
    best: float
    aligner: str
    """The aligner of the smallest error, with the space of its fit."""
    coverage: float
    """Share of pixels inside the 90 % intervals of `field`."""

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
                method: fmean(cell["clamped"]["abs_rel"][0] for cell in group)
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
                    basis=errors.get("Basis", float("nan")),
                    best=errors[best],
                    aligner=best,
                    coverage=fmean(cell["coverage"]["coverage_90"][0] for cell in ours),
                )
            )
    return compared


def mean_ratios(compared: Sequence[Comparison]) -> dict[str, float]:
    """The mean of the ratios over families, by condition."""
    present = [c for c in STRONG_CONDITIONS if any(x.condition == c for x in compared)]
    return {c: fmean(x.ratio for x in compared if x.condition == c) for c in present}


def strong_table(runs: Sequence[Record]) -> str:
    """One row for each family and number of anchors, and the means of the ratios."""
    compared = comparisons(runs)
    rows = [
        [c.family, f"{c.images}", CONDITIONS[c.condition], number(c.field), number(c.basis),
         number(c.best), c.aligner, f"{c.ratio:.2f}", f"{100 * c.coverage:.0f} %"]
        for c in compared
    ]  # fmt: skip
    header = ["family", "images", "anchors", "`field`", "`basis`", "best aligner", "", "ratio",
              "coverage"]  # fmt: skip
    means = (f"{CONDITIONS[c]} anchors {ratio:.2f}" for c, ratio in mean_ratios(compared).items())
    mean = f"Mean of the ratios over families: {', '.join(means)}."
    return f"{table(header, rows, 'lrrrrrlrr')}\n\n{mean}"


def strong_summary() -> str:
    """Error of `field` relative to that of the best aligner, in the mean of families."""
    rows = []
    for name, title in STRONG.values():
        means = mean_ratios(comparisons(draws(name)))
        rows.append([title, *(number(means[c], 2) for c in STRONG_CONDITIONS)])
    columns = [CONDITIONS[c] for c in STRONG_CONDITIONS]
    return table(["`field` relative to the best aligner", *columns], rows)


# ---- properties of `field`: docs/field.md ------------------------------------------------------


def wrong_anchors(record: Record) -> str:
    """AbsRel with a share of wrong anchors, by regime."""
    kinds = {"robust": "robust", "not robust": "not robust", "left out": "wrong ones left out"}
    rows = []
    for regime, errors in record["wrong anchors"].items():
        for share in ("clean", "10% wrong", "30% wrong"):
            found = (errors.get(f"{share}, {kind}") for kind in kinds)
            cells = ("–" if value is None else number(value, 4) for value in found)
            rows.append([CONDITIONS[regime], share.replace("%", " %"), *cells])
    return table(["anchors", "of them", *kinds.values()], rows, "llrrr")


def placement(record: Record) -> str:
    """AbsRel with anchors that were placed by several rules."""
    placed = record["where to measure"].items()
    entries = ((rule, n, number(error, 4)) for rule, e in placed for n, error in e.items())
    return grid("anchors placed by", entries)


def video(record: Record) -> str:
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


def reliability(record: Record) -> str:
    """Per cent of the pixels in the intervals of `field`; in brackets the extremes over places."""
    rows = []
    for estimator, conditions in record["estimators"].items():
        for condition, groups in conditions.items():
            places = [values for group, values in groups.items() if group != "all"]
            cells = [f"{mean:.0f} ({min(each):.0f}–{max(each):.0f})"
                     for mean, *each in zip(groups["all"], *places, strict=True)]  # fmt: skip
            rows.append([estimator, CONDITIONS.get(condition, condition), *cells])
    levels = [f"{level} %" for level in record["config"]["levels"]]
    return table(["estimator", "anchors", *levels], rows, "l" + "r" * (len(levels) + 1))


def lidar_costs(record: Record) -> str:
    """Medians and quartiles of what `field` costs by the number of anchors."""
    rows = []
    for what, cases in record["measured"].items():
        for name, value in (cases if isinstance(cases, dict) else {"": cases}).items():
            rows.append([what, name, quartiles(value) if isinstance(value, list) else f"{value}"])
    return table(["what", "case", "value"], rows, "llr")


# ---- running times: docs/speed.md --------------------------------------------------------------

REFERENCE = "DA3-BASE forward"


def share_of(entry: Record) -> str:
    """Per cent of the reference; and milliseconds, where they are known."""
    ms = f"; {entry['ms'][0]:.3g} ms" if "ms" in entry else ""
    return quartiles(entry["share"], 100) + ms


def sizes(record: Record, threads: int = 2) -> str:
    """Shares of the reference, a column for each size."""
    entries = [e for e in record["ratios"] if e["threads"] == threads]
    if not entries:
        return ""
    head = f"Percent of {REFERENCE} on the same image; N = {entries[0]['n']}."
    return f"{head}\n\n{grid('step', ((e['name'], e['size'], share_of(e)) for e in entries))}"


def anchors(record: Record) -> str:
    """Shares of the reference, a column for each number of anchors."""
    entries = record["anchors"]
    head = f"Percent of {REFERENCE} at {entries[0]['size']}."
    cells = ((e["name"], f"{e['n']:,}", share_of(e)) for e in entries)
    return f"{head}\n\n{grid('step', cells)}"


def sweep(record: Record) -> str:
    """Shares of the reference with thousands of anchors."""
    entries = record["lidar"]
    head = f"Percent of {REFERENCE} on the same image."
    return f"{head}\n\n{grid('step', ((e['name'], e['size'], share_of(e)) for e in entries))}"


def beside(record: Record) -> str:
    """Time of our implementation over that of another; below one, ours is faster."""
    entries = [
        (f"{e['ours']} / {e['theirs']}", f"{e['size']}, N = {e['n']:,}", quartiles(e["ratio"]))
        for e in record["beside"]
        if e["threads"] == 2
    ]
    return (
        f"Time of ours over time of theirs, in the same round.\n\n{grid('ours / theirs', entries)}"
    )


def growth(record: Record) -> str:
    """Exponents p of time ∝ size^p."""
    entries = [
        (e["name"], e["along"], quartiles(e["exponent"]))
        for e in record["growth"]
        if e["threads"] == 2
    ]
    return f"The exponent p of time ∝ size^p, fitted to logarithms.\n\n{grid('step', entries)}"


def batches(record: Record) -> str:
    """Time of an image in a batch relative to one image alone."""
    entries = [
        (f"{e['name']}, {e['size']}", f"batch {e['batch']}", quartiles(e["beside_batch_1"]))
        for e in record["batches"]
    ]
    entries += [
        ("ms a batch", f"batch {e['batch']}", quartiles(e["ms"]))
        for e in record["batches"]
        if "ms" in e
    ]
    return f"Time an image, beside one image alone.\n\n{grid('', entries)}"


def memory(record: Record) -> str:
    """Peak memory at 1080×1920, or why it was not measured."""
    rows = []
    for entry in record["memory"]:
        peak = entry["peak_mb"]
        rows.append([entry["name"], peak if isinstance(peak, str) else f"{peak:.0f}"])
    head = "Peak that one call adds at 1080×1920 with 520 anchors, results included."
    return f"{head}\n\n{table(['method', 'MB'], rows)}"


def starts(record: Record) -> str:
    """Time of commands in starts of Python."""
    rows = ([f"`{e['name']}`", quartiles(e["beside_python"])] for e in record["starts"])
    return table(["", "× a bare `python`"], rows)


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


SPEED: dict[str, tuple[str, Callable[[Record], str]]] = {
    "sizes": ("ratios", sizes),
    "sizes_1_thread": ("ratios", partial(sizes, threads=1)),
    "anchors": ("anchors", anchors),
    "lidar": ("lidar", sweep),
    "beside": ("beside", beside),
    "growth": ("growth", growth),
    "batches": ("batches", batches),
    "memory": ("memory", memory),
    "starts": ("starts", starts),
    "roofline": ("roofline", roofline),
}
"""Part of the record of `benchmarks/bench.py` that a table needs, and the table."""


def speed_table(name: str, what: str) -> str:
    """One table of the running times of results/NAME."""
    record, (part, made) = read(name), SPEED[what]
    missing = record is None or not record.get(part)
    return (not missing and made(record)) or "Not measured in this run."


# ---- pages and labels --------------------------------------------------------------------------


def page_latency(record: Record) -> str:
    """Milliseconds from an edit on the page to the painted map."""
    rows = []
    for size, photo in record["photos"].items():
        for count, edit in photo["edits"].items():
            times = [edit["median_painted_ms"], edit["median_full_ms"], photo["ready_ms"],
                     photo["paste_blocks_ms"]]  # fmt: skip
            rows.append([size.replace("x", "×"), count, *(f"{ms:.0f}" for ms in times)])
    pasted = f"paste of {record['config']['pasted']:,} anchors"
    header = ["photo", "anchors", "first map", "every displayed pixel", "photo to ready", pasted]
    return f"Milliseconds; medians of an edit.\n\n{table(header, rows)}"


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
    return "\n".join([
        table(header, rows),
        "",
        f"Rounds: {len(single)} (medians). Each has {config['images']} images of {width}×{height} "
        f"with {config['anchors']} anchors each; `{config['mde']}` with `{config['method']}`; "
        f"{config['cores']} cores of {origin['device']}, load {config['load_before']:.1f} "
        f"before the run; commit {str(origin['commit'])[:7]}.",
        "",
        f"A label takes {megabytes:.2f} MB. At the rate of one process, a million images take "
        f"{1e6 / rate / 86400:.1f} days of one core and {megabytes:.2f} TB.",
    ])  # fmt: skip


# ---- the paper's preset: docs/paper.md ---------------------------------------------------------

REGIMES = ("low", "medium", "high")
KS = (8, 30, 50)
ALIGNERS = ("Global", "Grid", "LWLR", "Piecewise", "Region", "Region, strict")
OWN, VIT = "fastdepth", "fastdepth-vit"
OTHERS = {"vit-s": "ViT-S", "lite": "`lite`"}
"""Estimators with a depth of their own, which have a table each."""
FEATURES = {OWN: "own F", VIT: "ViT F", **OTHERS}


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


def cells_of(record: Record, row: str, condition: str) -> dict[int, Record]:
    """Cells of all images by seed."""
    found = {}
    for cell in record["cells"]:
        name, seed = family(cell["method"])
        if (cell["group"], cell["condition"], name) == ("all", condition, row):
            found[seed] = cell
    return found


def over_seeds(found: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation (n − 1) over seeds; a dash for nothing."""
    if not found:
        return "–"
    text = number(fmean(found), digits)
    return text if len(found) < 2 else f"{text} ± {number(stdev(found), digits)}"


def value_of(record: Record, row: str, condition: str, metric: str = "abs_rel") -> str:
    """A metric of a row over its seeds."""
    cells = cells_of(record, row, condition).values()
    return over_seeds([cell["clamped"][metric][0] for cell in cells])


def paper_main(records: dict[str, Record]) -> str:
    """AbsRel and δ1 of every row, in the layout of the paper's tables 1 and 2."""
    own = records[OWN]
    rows = [(row, own, row) for row in ALIGNERS]
    rows += [(f"Basis K={k}, own F", own, f"Basis K={k}") for k in KS]
    if VIT in records:
        rows += [(f"Basis K={k}, ViT F", records[VIT], f"Basis K={k}") for k in KS]
    rows += [(f"Basis K={k}, F = 0", own, f"Basis K={k}, F = 0") for k in KS]
    rows.append(("`field`", own, "Field"))
    parts = [paper_rows(rows)]
    for estimator, title in OTHERS.items():
        if estimator in records:
            names = [*ALIGNERS, *(f"Basis K={k}{f}" for f in ("", ", F = 0") for k in KS)]
            rows = [(row, records[estimator], row) for row in names]
            rows.append(("`field`", records[estimator], "Field"))
            parts += [f"The same with {title}, one seed:", paper_rows(rows)]
    return "\n\n".join(parts)


def paper_rows(rows: Sequence[tuple[str, Record, str]]) -> str:
    """One table of rows by title, record and label."""
    columns = [(regime, metric) for regime in REGIMES for metric in ("abs_rel", "delta1")]
    lines = []
    for title, record, row in rows:
        cells = [value_of(record, row, regime, metric) for regime, metric in columns]
        if set(cells) == {"–"}:
            continue
        counts = [c["images"] for r in REGIMES for c in cells_of(record, row, r).values()]
        some = row.startswith("Region") and max(counts) < record["data"]["evaluated"]
        lines.append([f"{title} ({max(counts)} frames with labels)" if some else title, *cells])
    names = {"abs_rel": "AbsRel", "delta1": "δ1"}
    return table(["method", *(f"{regime} {names[metric]}" for regime, metric in columns)], lines)


def paper_features(records: dict[str, Record]) -> str:
    """AbsRel with F less that with F = 0 at medium anchors, over the same images."""
    rows = []
    for estimator, title in FEATURES.items():
        for k in KS:
            found = differences(records[estimator], k) if estimator in records else []
            if found:
                helps = sum(high < 0 for _, _, high in found)
                hurts = sum(low > 0 for _, low, _ in found)
                mean = over_seeds([difference for difference, _, _ in found], 4)
                rows.append([title, f"{k}", mean, f"{helps}, {hurts} of {len(found)}"])
    return table(["F", "K", "difference", "seeds in which F helps, hurts"], rows)


def differences(record: Record, k: int, condition: str = "medium") -> list[tuple[float, ...]]:
    """Of each seed: mean difference over images between F and F = 0, and its 95 % interval."""
    rows, found = (f"Basis K={k}", f"Basis K={k}, F = 0"), {}
    for pair in record["paired"]:
        (a, seed), (b, other_seed) = family(pair["a"]), family(pair["b"])
        if pair["condition"] != condition or seed != other_seed:
            continue
        difference, low, high = pair["difference"]
        if (a, b) == rows:
            found[seed] = (difference, low, high)
        elif (b, a) == rows:
            found[seed] = (-difference, -high, -low)
    return [found[seed] for seed in sorted(found)]


def paper_drop(records: dict[str, Record]) -> str:
    """AbsRel of the drop-anchor test by the number of anchors left."""
    counts = (1, 3, 5, 7, 9)
    titles = [
        ("Basis K=8, own F", OWN, "Basis K=8"),
        ("Basis K=8, ViT F", VIT, "Basis K=8"),
        *((row, OWN, row) for row in ("Global", "Grid", "LWLR", "Piecewise")),
        *((f"Basis K=8, {title}", estimator, "Basis K=8") for estimator, title in OTHERS.items()),
    ]
    rows = [
        [title, *(value_of(records[estimator], row, f"drop-{n}") for n in counts)]
        for title, estimator, row in titles
        if estimator in records
    ]
    rows.append(["the paper, DA3", ".18", ".11", ".10", ".10", ".10"])
    return table(["", *map(str, counts)], rows)


def paper_spectrum(records: dict[str, Record]) -> str:
    """The spectrum of K = 8 at low anchors."""
    rows = []
    for estimator, title in FEATURES.items():
        found = [
            entry
            for entry in records.get(estimator, {}).get("spectral", ())
            if (entry["group"], entry["condition"]) == ("all", "low")
            and family(entry["method"])[0] == "Basis K=8"
        ]
        if found:
            values = {key: over_seeds([e[key] for e in found]) for key in SPECTRUM}
            values["g0_var"] = f"{fmean(e['g0_var'] for e in found):.0e}"
            rows.append([title, *values.values()])
    rows.append(["the paper, DA3", ".92–.97", ".985–.991", "≈ .21", "≈ 1e-04", "–", "expected"])
    return table(["", *SPECTRUM.values()], rows)


SPECTRUM = {
    "eta1": "η₁", "similarity": "\\|v₁ᵀg\\|", "g0_mean": "mean G₀", "g0_var": "var G₀",
    "alpha1_share": "α₁² / ‖y‖²", "alpha1_first": "\\|α₁\\| largest",
}  # fmt: skip


def paper_table(made: Callable[[dict[str, Record]], str]) -> str:
    """A table of the records in results/paper."""
    return made(paper_records())


def pipeline() -> str:
    """Disk space and preparation at the paper's scale, and the sentences below the table."""
    results, recovery, training = (
        read_json(RESULTS / "pipeline" / f"{name}.json")
        for name in ("results", "recovery", "training")
    )
    networks = {"da3-base": "DA3-BASE", "midas-hybrid": "MiDaS DPT-Hybrid"}
    frames, full = results["a frame"], results["train and val at full scale"]
    titles = {"kitti": "KITTI", "urbansyn": "UrbanSyn's size", "sunrgbd": "SUN RGB-D"}
    rows = [
        [f"MB a frame, {title}", *(f"{frames[d][n]['bytes']['uint8'] / 1e6:.2f}" for n in networks)]
        for d, title in titles.items()
    ]
    quantities: dict[str, Callable[[Record], str]] = {
        "frames to train and validate on": lambda x: f"{x['frames']:,}",
        "GB of prepared frames, F in 8 bits": lambda x: f"{x['disk_gb']['uint8']:.0f}",
        "GB, F in float16": lambda x: f"{x['disk_gb']['float16']:.0f}",
        "core-hours of preparation without the estimator": lambda x: f"{x['prepare_core_h']:.2f}",
        "minutes on 16 cores, four threads finishing frames": (
            lambda x: f"{x['prepare_min_on_16_cores']:.1f}"
        ),
    }
    rows += [[title, *(of(full[n]) for n in networks)] for title, of in quantities.items()]
    batch, bits = training["a batch, MiDaS on SUN RGB-D"], results["8-bit features"]
    scores = [
        f"{values['float16']['absrel']:.4f} and {values['uint8']['absrel']:.4f} ({name})"
        for name, values in bits["validation"].items()
    ]
    cell = recovery["evaluation of a frame"]
    return "\n\n".join([
        table(["", *networks.values()], rows),
        f"A worker makes a batch of {batch['frames']} of the largest frames there are (MiDaS on "
        f"SUN RGB-D, {batch['megabytes']:.0f} MB) in {batch['core_s']:.2f} core-seconds, so a step "
        f"of 50 ms needs {batch['core_s'] / 0.05:.0f} workers. A process that makes them held "
        f"{batch['peak_gb']:.1f} GB at most. No frame stays on the GPU.",
        "What a step itself takes on a GPU, and what share of the time is spent waiting "
        "(clock.json of every run), has to be measured on one.",
        f"8 bits change F by {100 * bits['relative_rms_error_of_F']:.2f} % of a channel's standard "
        "deviation. AbsRel of the shipped generators of `lite` on "
        f"{bits['frames']} validation frames, with F in float16 and in 8 bits: "
        f"{'; '.join(scores)}.",
        f"Evaluation takes {cell['core_s_a_cell_and_megapixel']:.2f} core-seconds for a row under "
        "one condition and a million pixels, in the mean over the aligners and the universal "
        "generators.",
    ])  # fmt: skip


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
        note = f" {entry['note']}" if "note" in entry else ""
        rows.append([f"`{name}`", entry["contents"] + note, f"`{entry['command']}`", entry["time"],
                     "not made yet" if entry.get("pending") else origin, where])  # fmt: skip
    return table(["folder", "contents", "command", "time", "commit", "pages"], rows, "llllll")


# ---- blocks ------------------------------------------------------------------------------------


def of_record(name: str, made: Callable[[Record], str]) -> str:
    """The table of one record."""
    record = read(name)
    return NOT_MEASURED if record is None else made(record)


TABLES: dict[str, Callable[[], str]] = {
    "results": results_table,
    "choose": choice_table,
    "strong_summary": strong_summary,
    **{block: (lambda name=name: strong_table(draws(name))) for block, (name, _) in STRONG.items()},
    "field_wrong": partial(of_record, "field", wrong_anchors),
    "field_placement": partial(of_record, "field", placement),
    "field_video": partial(of_record, "field", video),
    "reliability": partial(of_record, "reliability", reliability),
    "lidar": partial(of_record, "lidar", lidar_costs),
    "lidar_cuda": partial(of_record, "lidar-cuda", lidar_costs),
    **{f"cpu_{what}": partial(speed_table, "bench", what) for what in SPEED if what != "roofline"},
    **{f"cuda_{what}": partial(speed_table, "bench-cuda", what) for what in SPEED
       if what not in ("starts", "sizes_1_thread")},
    "page": partial(of_record, "page", page_latency),
    "label_costs": partial(of_record, "labelling", label_costs),
    "paper_main": partial(paper_table, paper_main),
    "paper_features": partial(paper_table, paper_features),
    "paper_drop": partial(paper_table, paper_drop),
    "paper_spectrum": partial(paper_table, paper_spectrum),
    "pipeline": pipeline,
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
