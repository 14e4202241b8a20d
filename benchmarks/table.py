"""The measurements as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

REFERENCE = "DA3-BASE forward"
LIMIT_MB = 200


def markdown(record: dict) -> str:
    """All tables of one run, as far as they were measured."""
    config, origin = record["config"], record["provenance"]
    device = "CPU" if config["device"] == "cpu" else origin["device"]
    parts = [
        "# What each step costs",
        f"{device}, torch {origin['versions']['torch']}; medians of {config['repeats']} rounds, "
        "quartiles in brackets. Made by `make bench`"
        + (" in its quick form." if config["quick"] else "."),
        targets(record),
        *(by_size(record, threads) for threads in threads_of(record.get("ratios", []))),
        by_anchors(record),
        lidar(record),
        beside(record),
        growth(record),
        batches(record),
        memory(record),
        starts(record),
        roofline(record),
        missing(record),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def by_size(record: dict, threads: int) -> str:
    """Shares of the reference, a column a size."""
    entries = [e for e in record["ratios"] if e["threads"] == threads]
    sizes = unique(e["size"] for e in entries)
    cells = {(e["name"], e["size"]): cell(e) for e in entries}
    where = (
        "" if record["config"]["device"] == "cuda" else f", {threads} thread{'s'[: threads - 1]}"
    )
    n = entries[0]["n"]
    head = f"## By size{where}\n\nPercent of {REFERENCE} on the same image; N = {n}."
    return head + "\n\n" + grid("step", sizes, unique(e["name"] for e in entries), cells)


def by_anchors(record: dict) -> str:
    """Shares of the reference, a column a number of anchors."""
    entries = record.get("anchors")
    if not entries:
        return ""
    cells = {(e["name"], f"{e['n']:,}"): cell(e) for e in entries}
    counts, names = (unique(values) for values in ((f"{e['n']:,}" for e in entries),
                                                   (e["name"] for e in entries)))  # fmt: skip
    head = f"## By number of anchors\n\nPercent of {REFERENCE} at {entries[0]['size']}."
    return head + "\n\n" + grid("step", counts, names, cells)


def lidar(record: dict) -> str:
    """Shares of the reference with thousands of anchors."""
    entries = record.get("lidar")
    if not entries:
        return ""
    head = f"## A LiDAR's sweep\n\nPercent of {REFERENCE} on the same image."
    size = entries[0]["size"]
    cells = {(e["name"], size): cell(e) for e in entries}
    return head + "\n\n" + grid("step", [size], unique(e["name"] for e in entries), cells)


def beside(record: dict) -> str:
    """Ours over theirs: below one, ours is faster."""
    entries = [e for e in record.get("beside", []) if e["threads"] == 2]
    if not entries:
        return ""
    columns = unique(f"{e['size']}, N = {e['n']:,}" for e in entries)
    names = unique(f"{e['ours']} / {e['theirs']}" for e in entries)
    cells = {
        (f"{e['ours']} / {e['theirs']}", f"{e['size']}, N = {e['n']:,}"): ratio(e["ratio"])
        for e in entries
    }
    head = "## Beside what others do\n\nTime of ours over time of theirs, in the same round."
    return head + "\n\n" + grid("ours / theirs", columns, names, cells)


def growth(record: dict) -> str:
    """Exponents p of time ∝ size^p."""
    entries = [e for e in record.get("growth", []) if e["threads"] == 2]
    if not entries:
        return ""
    columns = unique(e["along"] for e in entries)
    cells = {(e["name"], e["along"]): ratio(e["exponent"]) for e in entries}
    head = "## Growth\n\nThe exponent p of time ∝ size^p, fitted to logarithms."
    return head + "\n\n" + grid("step", columns, unique(e["name"] for e in entries), cells)


def batches(record: dict) -> str:
    """Time an image in a batch, beside one image alone."""
    entries = record.get("batches")
    if not entries:
        return ""
    columns = [f"batch {e['batch']}" for e in entries]
    name = f"{entries[0]['name']}, {entries[0]['size']}"
    cells = {(name, f"batch {e['batch']}"): ratio(e["beside_batch_1"]) for e in entries}
    cells |= {("ms a batch", f"batch {e['batch']}"): ratio(e["ms"]) for e in entries if "ms" in e}
    head = "## Batches\n\nTime an image, beside one image alone."
    return head + "\n\n" + grid("", columns, unique(row for row, _ in cells), cells)


def memory(record: dict) -> str:
    """Peaks at 1080×1920."""
    entries = record.get("memory")
    if not entries:
        return ""
    lines = ["| method | MB |", "|---|---:|"]
    lines += [f"| {e['name']} | {shown_mb(e['peak_mb'])} |" for e in entries]
    head = "## Memory\n\nPeak that one call adds at 1080×1920 with 520 anchors, results included."
    return head + "\n\n" + "\n".join(lines)


def starts(record: dict) -> str:
    """Commands, in starts of Python."""
    entries = record.get("starts")
    if not entries:
        return ""
    lines = ["| | × a bare `python` |", "|---|---:|"]
    lines += [f"| `{e['name']}` | {ratio(e['beside_python'])} |" for e in entries]
    return "## Starting\n\n" + "\n".join(lines)


def roofline(record: dict) -> str:
    """What the device can do, and how near we come."""
    entries = {e["name"]: e["found"] for e in record.get("roofline", [])}
    limits = entries.pop("ceilings", None)
    if limits is None:
        return ""
    rates = ", ".join(
        f"{name.removesuffix('_flops')} {value / 1e12:.0f} TFLOP/s"
        for name, value in limits.items()
        if name.endswith("flops")
    )
    head = (
        "## Roofline\n\nGenerator, solve and apply at 504×504 with F of 128 channels at 288×288, "
        f"K = 8, N = 110. Measured in this run: {rates}, copies {limits['copy_bytes'] / 1e12:.2f} "
        "TB/s. `layers`: each convolution at the slower of its arithmetic and its bytes, all else "
        "fused away; `whole`: arithmetic, or inputs and outputs alone."
    )
    lines = ["| | ms | as a graph, ms | share of `layers` | share of `whole` |",
             "|---|---:|---:|---:|---:|"]  # fmt: skip
    for name, found in entries.items():
        if "plain_ms" not in found:  # it could not run
            lines.append(f"| {name} | {found.get('missing', '–')} | | | |")
            continue
        best = min(found["plain_ms"][0], found.get("graph_ms", found["plain_ms"])[0])
        graph = ratio(found["graph_ms"]) if "graph_ms" in found else "could not be captured"
        least = found["least_ms"]
        near = " | ".join(f"{100 * least[bound] / best:.0f} %" for bound in ("layers", "whole"))
        lines.append(f"| {name} | {ratio(found['plain_ms'])} | {graph} | {near} |")
    return head + "\n\n" + "\n".join(lines)


def targets(record: dict) -> str:
    """What was aimed at, and whether it was reached."""
    rows = [*target_rows(record)]
    if not rows:
        return ""
    lines = ["| aim | measured | reached |", "|---|---:|---|"]
    lines += [f"| {aim} | {found} | {'yes' if good else '**no**'} |" for aim, found, good in rows]
    return "## Aims\n\n" + "\n".join(lines)


def target_rows(record: dict) -> Iterable[tuple[str, str, bool]]:
    """Each aim that this run measures."""
    for e in record.get("ratios", []):
        if e["threads"] == 2 and e["name"].startswith(("generator, solve and apply", "live")):
            what = e["name"].replace("generator, solve and apply", "generator + solve + apply")
            aim = f"{what}, {e['size']}: at most 5 % of {REFERENCE}"
            yield aim, f"{percent(e['share'])} %", e["share"][0] <= 0.05
    for e in record.get("redrawn", []):
        aim = f"an added anchor redrawn at 480×640 within 16 ms: {e['name']}"
        yield aim, f"{ratio(e['of_16_ms'])} of it", e["of_16_ms"][0] <= 1
    for e in record.get("lidar", []):
        if "ms" in e and e["name"] != REFERENCE:
            yield (
                f"{e['name']}, {e['size']}: under a second",
                f"{ratio(e['ms'])} ms",
                e["ms"][0] < 1000,
            )
    for e in record.get("beside", []):
        exact = (e["ours"], e["theirs"]) == ("lwlr at every pixel", "lwlr every 32 pixels")
        if exact and e["threads"] == 2:
            aim = f"exact LWLR, {e['size']}, N = {e['n']:,}: at most 2 × the published scheme"
            yield aim, ratio(e["ratio"]), e["ratio"][0] <= 2
    for e in record.get("memory", []):
        if e["name"] != REFERENCE and not isinstance(e["peak_mb"], str):
            aim = f"peak memory of {e['name']} at 1080×1920: under {LIMIT_MB} MB"
            yield aim, f"{e['peak_mb']:.0f} MB", e["peak_mb"] < LIMIT_MB
    graphs = [e["found"] for e in record.get("roofline", []) if "plain_ms" in e["found"]]
    single = [f["graph_ms"][0] for f in graphs if f["batch"] == 1 and "graph_ms" in f]
    if single:
        yield (
            "batch 1 as a graph, 504×504, K = 8: under 1 ms",
            f"{min(single):.3g} ms",
            min(single) < 1,
        )
    batches = [
        (min(f["plain_ms"][0], f.get("graph_ms", f["plain_ms"])[0]), f["least_ms"]["layers"])
        for f in graphs
        if f["batch"] == 32
    ]
    if batches:
        fastest, least = min(batches)
        share = least / fastest
        yield "batch 32: at least half of the roofline", f"{100 * share:.0f} %", share >= 0.5


def missing(record: dict) -> str:
    """What could not run, and why."""
    if not record["missing"]:
        return ""
    lines = [f"- {name}: {why}" for name, why in record["missing"].items()]
    return "## Not measured here\n\n" + "\n".join(lines)


def grid(
    corner: str, columns: list[str], rows: list[str], cells: dict[tuple[str, str], str]
) -> str:
    """A Markdown table; a dash where nothing was measured."""
    lines = [f"| {corner} | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in rows:
        shown = [cells.get((row, column), "–") for column in columns]
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def cell(entry: dict) -> str:
    """Percent of the reference; and milliseconds, where they are known."""
    ms = f"; {entry['ms'][0]:.3g} ms" if "ms" in entry else ""
    return percent(entry["share"]) + ms


def percent(values: list[float]) -> str:
    """Median and quartiles in percent."""
    return ratio([100 * value for value in values])


def ratio(values: list[float]) -> str:
    """Median and quartiles."""
    middle, low, high = (f"{value:.3g}" for value in values)
    return f"{middle} ({low}–{high})"


def shown_mb(peak: float | str) -> str:
    """Megabytes, or why there are none."""
    return peak if isinstance(peak, str) else f"{peak:.0f}"


def threads_of(entries: list[dict]) -> list[int]:
    """Numbers of threads that were measured, most first."""
    return sorted({e["threads"] for e in entries}, reverse=True)


def unique(values: Iterable[str]) -> list[str]:
    """In the order of their first appearance."""
    return [*dict.fromkeys(values)]
