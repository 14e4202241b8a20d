"""The diagnosis of biases that are made of known parts gives these parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.anchor_sampling import anchor_grid_shape
from scalefield.benchmark.diagnosis import (
    DEPTH_PARTS,
    MIN_PIXELS,
    PARTS,
    REGION_CELLS,
    Pixels,
    decompose,
    diagnose,
    independent,
    position_functions,
    relief,
)
from scalefield.benchmark.diagnosis_summary import collect, summarise, worst, write_images
from scalefield.benchmark.report.advice import advice, extremes, overview
from scalefield.datasets import Frame
from scalefield.errors import InputError
from scalefield.mde import MDEOutput

SHAPE = (120, 160)
RNG = np.random.default_rng(0)
LOG_DEPTH = RNG.normal(0, 0.4, SHAPE)  # without any relation to the position
V, U = ((np.arange(n) + 0.5) / n for n in SHAPE)
TILT = np.broadcast_to(np.sqrt(2) * np.cos(np.pi * U), SHAPE)  # of unit mean square


def cell_of(cells: int) -> np.ndarray:
    """The cell of a regime's grid that each pixel lies in."""
    grid = anchor_grid_shape(cells, SHAPE)
    row, column = (np.arange(n) * k // n for n, k in zip(SHAPE, grid, strict=True))
    return (row[:, None] * grid[1] + column).ravel()


def pattern(cells: int, coarser: list[int]) -> np.ndarray:
    """Random values in the cells of a grid, of unit mean square, that nothing before it explains.

    What is constant in cells is orthogonal to a function if it is to the function's cell means.
    """
    cell = cell_of(cells)
    v, u = (x.ravel() for x in np.meshgrid(V, U, indexing="ij"))
    before = [np.ones((len(cell), 1)), position_functions(v, u)]
    before += [np.eye(cell_of(n).max() + 1)[cell_of(n)] for n in coarser]
    functions = np.concatenate(before, axis=1)
    means = np.stack([np.bincount(cell, f) / np.bincount(cell) for f in functions.T], axis=1)[cell]
    values = RNG.normal(size=cell.max() + 1)[cell]
    values = values - means @ np.linalg.lstsq(means, values, rcond=None)[0]
    return (values / np.sqrt(np.square(values).mean())).reshape(SHAPE)


def seen(y: np.ndarray, name: str = "a", group: str = "g", scene: str = "s", log_depth=LOG_DEPTH):
    """The diagnosis of an image whose log-depth is off by y everywhere."""
    depth_m = np.exp(log_depth + y + 1).astype(np.float32)
    image = np.zeros((*log_depth.shape, 3), np.uint8)
    frame = Frame(name, group, scene, image, depth_m, (1e-9, 1e9))
    return diagnose(frame, MDEOutput(torch.from_numpy(np.exp(log_depth + 1)), "depth", model="m"))


def shares(*images) -> dict[str, float]:
    return {row["part"]: row["share"] for row in summarise(images)["parts"]}


@given(st.integers(0, 2**32), st.floats(0, 0.6), st.integers(20, 60))
@settings(max_examples=15)
def test_decompose_parts_and_their_squares_add_up(seed, hidden, side) -> None:
    rng = np.random.default_rng(seed)
    shape = (side, 70)
    known = rng.random(shape) >= hidden
    mde_depth, depth_m = np.exp(np.cumsum(rng.normal(0, 0.05, (2, *shape)), axis=2))
    if known.sum() < MIN_PIXELS:
        with pytest.raises(InputError, match=f"at least {MIN_PIXELS} are wanted"):
            Pixels.of(depth_m, mde_depth, known)
        return
    pixels = Pixels.of(depth_m, mde_depth, known)
    parts = decompose(pixels).parts
    assert list(parts) == list(PARTS)
    np.testing.assert_allclose(sum(parts.values()), pixels.y, atol=1e-12)
    squares = [np.square(part).mean() for part in parts.values()]
    assert sum(squares) == pytest.approx(np.square(pixels.y).mean(), rel=1e-9)


def test_diagnose_shares_sum_to_one_over_images_and_places() -> None:
    images = [
        seen(RNG.normal(i, 0.1 * i, SHAPE) + i * TILT, f"f{i}", "ab"[i % 2], f"s{i % 3}")
        for i in range(1, 6)
    ]
    summary = summarise(images)
    assert sum(row["share"] for row in summary["parts"]) == pytest.approx(1, abs=1e-12)
    assert sum(summary["of_scale"]["shares"].values()) == pytest.approx(1)
    for group in summary["groups"]:
        assert sum(group["shares"].values()) == pytest.approx(1)
    for row, image in zip(summary["images"], images, strict=True):
        whole = np.square(row["rms_log"])
        assert sum(row[part] for part in PARTS) == pytest.approx(whole)
        assert row["scale"] == pytest.approx((image.scale - summary["unit_log"]) ** 2)
    assert sum(row["share_without_scale"] for row in summary["parts"]) == pytest.approx(1)
    left = [row["left_rms_log"] for row in summary["parts"]]
    assert left == sorted(left, reverse=True)
    assert left[0] == pytest.approx(
        (summary["total_rms_log"] ** 2 * (1 - shares(*images)["scale"])) ** 0.5
    )


def test_decompose_recovers_a_bias_of_known_parts() -> None:
    squares = {
        "scale": 0.09,
        "power": 0.04,
        "position": 0.02,
        "region_low": 0.01,
        "region_medium": 0.03,
        "region_high": 0.01,
        "rest": 0.05,
    }
    z = (LOG_DEPTH - LOG_DEPTH.mean()) / LOG_DEPTH.std()
    made = squares["power"] ** 0.5 * z + squares["position"] ** 0.5 * TILT
    sizes = list(REGION_CELLS.values())
    for i, regime in enumerate(REGION_CELLS):
        made = made + squares[f"region_{regime}"] ** 0.5 * pattern(sizes[i], sizes[:i])
    made = made + RNG.normal(0, squares["rest"] ** 0.5, SHAPE)
    images = [seen(made + sign * squares["scale"] ** 0.5, str(sign)) for sign in (-1, 1)]
    found, total = shares(*images), squares["scale"] + np.var(made)
    for part in PARTS:  # noise has means in small cells, and depth a few in large ones
        assert found[part] == pytest.approx(squares.get(part, 0) / total, abs=0.01)


@pytest.mark.parametrize("space", ["depth", "disparity"])
def test_summarise_attributes_a_shift_to_shift(space) -> None:
    mde = np.exp(LOG_DEPTH)
    true_m = 2 * mde + 0.2 if space == "depth" else 1 / (0.5 / mde + 0.05)
    found = summarise([seen(np.log(true_m / mde), "a"), seen(np.log(true_m / mde), "b")])
    squares = {row["part"]: row["share"] for row in found["parts"]}
    assert squares["power"] + squares["shift"] > 0.995
    assert squares["shift"] > 0.02
    assert found["slope"]["mean"] < -0.01 if space == "depth" else found["slope"]["mean"] < -0.05


def test_summarise_attributes_a_function_of_depth_to_the_curve() -> None:
    found = shares(seen(np.cos(4 * LOG_DEPTH)), seen(np.cos(4 * LOG_DEPTH)))
    assert sum(found[part] for part in DEPTH_PARTS) > 0.98
    assert found["curve"] > 0.3


def test_summarise_separates_what_all_images_share() -> None:
    slopes, tilts = (0.1, 0.3), (0.2, -0.1)
    images = [
        seen(slope * LOG_DEPTH + tilt * TILT, str(slope))
        for slope, tilt in zip(slopes, tilts, strict=True)
    ]
    summary = summarise(images)
    assert summary["of_depth"]["common"] == pytest.approx(0.04 / 0.05, abs=0.01)
    assert summary["of_position"]["common"] == pytest.approx(0.05**2 / 0.025, abs=0.01)
    assert summary["slope"] == pytest.approx({"mean": 0.2, "std": 0.1}, abs=0.005)
    # The common curve is the MDE's error: where truth grows faster, far is too near.
    near, far = summary["curve"][0], summary["curve"][-1]
    assert near["common"] > 0.1 > -0.1 > far["common"]
    assert near["common"] - far["common"] == pytest.approx(
        0.2 * (far["log_depth"] - near["log_depth"]), rel=0.05
    )
    across = np.array(summary["map"])
    np.testing.assert_allclose(across, across[:1].repeat(len(across), axis=0), atol=0.01)
    assert across[0, 0] == pytest.approx(-0.05 * np.sqrt(2), abs=0.01)


def test_summarise_divides_the_scale_into_places_scenes_and_frames() -> None:
    scales = {("a", "1"): (1, 1), ("a", "2"): (3, 3), ("b", "3"): (7, 9)}
    images = [
        seen(np.full(SHAPE, 0.1 * scale), f"{scene}{i}", group, scene)
        for (group, scene), each in scales.items()
        for i, scale in enumerate(each)
    ]
    found = summarise(images)
    assert shares(*images)["scale"] == pytest.approx(1)
    variance = np.var([1, 1, 3, 3, 7, 9])
    expected = {"places": 8.0, "scenes": 4 / 6, "frames": 2 / 6}  # means 2, 2, 2, 2, 8, 8 about 4
    assert sum(expected.values()) == pytest.approx(variance)
    assert found["of_scale"]["shares"] == pytest.approx(
        {name: square / variance for name, square in expected.items()}
    )
    assert found["unit_log"] == pytest.approx(0.4)


def test_summarise_bins_have_the_error_where_it_is() -> None:
    log_depth = np.where(np.arange(SHAPE[1]) < 80, 0.0, 1.5) + 0 * LOG_DEPTH
    y = np.zeros(SHAPE)
    y[:60, 77:80] = 0.5  # at the edge, in the upper half, on the near side
    summary = summarise([seen(y, "a", log_depth=log_depth), seen(0 * y, "b", log_depth=log_depth)])
    flat, edge = summary["relief"][0], summary["relief"][-1]
    assert edge["from"] == 0.5
    assert edge["rms_log"] > 5 * flat["rms_log"]
    rms = np.array(summary["places"]["rms_log"])
    assert np.unravel_index(rms.argmax(), rms.shape)[0] < 6
    assert rms[:6, 7].min() > 3 * rms[6:].max()
    assert [row["from"] for row in summary["depth"]] == [2, 4, 8]
    assert sum(row["share"] for row in summary["depth"]) == pytest.approx(1)
    assert summary["depth"][1]["bias_log"] == pytest.approx(-0.5, abs=0.01)  # too near
    assert [row["name"] for row in worst(summary)] == ["a", "b"]


def test_relief_ignores_holes() -> None:
    log_depth = np.where(np.arange(100) < 50, 0.0, 1.0) * np.ones((80, 1))
    known = np.ones((80, 100), bool)
    known[:, 45:55] = False
    log_depth[:, 45:55] = 9.0
    assert relief(log_depth, known).max() == 0
    assert relief(log_depth * known, np.ones_like(known))[40, 54] == 1


def test_pixels_sampled_on_a_grid_give_the_parts_of_all_pixels() -> None:
    rng = np.random.default_rng(1)
    v, u = np.mgrid[:300, :400] / 400
    log_depth = np.sin(5 * v) + u
    y = 0.2 * np.cos(3 * v + u) + rng.normal(0, 0.05, v.shape)
    depth_m, known = np.exp(log_depth + y), rng.random(v.shape) < 0.9
    few, all_ = (Pixels.of(depth_m, np.exp(log_depth), known, every=e) for e in (False, True))
    assert len(few.y) < len(all_.y) / 3
    for part, values in decompose(all_).parts.items():
        other = np.square(decompose(few).parts[part]).mean()
        assert np.square(values).mean() == pytest.approx(other, abs=3e-4)


def test_independent_columns_that_add_nothing_are_left_out() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50, 1))
    basis = independent(a, np.empty((50, 0)))
    added = independent(np.concatenate([3 * a, b, a + b, 0 * a], axis=1), basis)
    assert added.shape == (50, 1)
    np.testing.assert_allclose(basis.T @ added, 0, atol=1e-12)
    assert (added.T @ added).item() == pytest.approx(1)


def test_collect_names_missing_frames(tmp_path) -> None:
    images = [seen(0.1 * i * TILT, f"f{i}") for i in range(1, 4)]
    config = {"name": "world", "mde": "m", "splits": ["val"]}
    found = collect({"f1": images[0], "bad": "bad.png: no such file", "f2": images[1]}, config)
    assert found["data"]["missing"] == [{"name": "bad", "error": "bad.png: no such file"}]
    assert (found["data"]["frames"], found["data"]["diagnosed"]) == (3, 2)
    assert found["provenance"]["versions"]["numpy"]
    text = overview(found)
    assert "m on world, 2 of 3 frames" in text
    assert "no result for bad: bad.png" in text
    write_images(tmp_path / "images.csv", found["images"])
    assert (tmp_path / "images.csv").read_text().count("\n") == 3
    with pytest.raises(InputError, match=r"no frame could be diagnosed; the first: bad\.png"):
        collect({"bad": "bad.png: no such file"}, config)
    with pytest.raises(InputError, match="no error at all"):
        summarise([replace(images[0], scale=0.0, squares=dict.fromkeys(images[0].squares, 0.0))])


def test_advice_states_the_numbers() -> None:
    images = [
        seen(0.3 * (-1) ** i + 0.05 * TILT + 0.04 * LOG_DEPTH, f"f{i}", scene=f"s{i % 2}")
        for i in range(4)
    ]
    message = " ".join([*advice(summarise(images)), *extremes(summarise(images))]).replace(
        "\xa0", " "
    )
    assert message.startswith("97 % of the squared log error is one number per image: one anchor ")
    assert "100 % of that scatter is between scenes and not within them: carry it from" in message
    assert "Of what a scale leaves, 9 % follows depth" in message
    assert "91 % is a tilt or a bow over the image" in message
    assert "100 % of it is the same in every image. " in message
    assert "few images (4): about 25 % is the same in every image by chance" in message
    more = " ".join(advice(summarise(images), few_images=4)).replace("\xa0", " ")
    assert "100 % of it is the same in every image: look for a cause in the camera" in more
    assert "few images" not in more
    assert "Worst frame: f" in message
