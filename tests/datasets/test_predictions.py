import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scalefield.benchmark.method_spec import parse_methods
from scalefield.benchmark.run import Evaluation, Evaluator, run
from scalefield.benchmark.score import score_files
from scalefield.cli import main
from scalefield.datasets import Predictions, open_dataset
from scalefield.datasets.source import FrameSource
from scalefield.errors import InputError
from scalefield.io import write_depth_png, write_map

SHAPE = (24, 32)


def depth_map() -> np.ndarray:
    v, u = np.indices(SHAPE)
    return (2 + 0.05 * v + np.where(u > 16, 1.5, 0)).astype(np.float32)


def write_frame(folder: Path, pred=None, gt=None, size=SHAPE, **meta) -> Path:
    """A frame whose prediction is half its depth; zeros of the truth are unknown."""
    folder.mkdir(parents=True)
    truth = depth_map()
    truth[:4] = 0
    np.savez(folder / "pred.npz", pred=depth_map() / 2 if pred is None else pred)
    np.savez(folder / "gt.npz", gt=truth if gt is None else gt)
    Image.fromarray(np.full((*size, 3), 90, np.uint8)).save(folder / "rgb.jpg")
    (folder / "meta.json").write_text(json.dumps({"kind": "depth"} | meta))
    return folder


def load(folder: Path):
    return Predictions(folder.parent).load(folder.name)


def test_predictions_frame_has_the_stored_map_and_the_truth_in_metres(tmp_path) -> None:
    frame = load(write_frame(tmp_path / "a", metric=True, source="lab/x", model="net"))
    known = np.isfinite(frame.depth_m)
    assert known.sum() == 20 * 32
    np.testing.assert_allclose(frame.depth_m[known], depth_map()[known])
    np.testing.assert_allclose(frame.mde_output.prediction, depth_map() / 2)
    assert (frame.group, frame.scene, frame.mde_output.model) == ("lab/x", "lab/x", "net")
    assert (frame.mde_output.kind, frame.mde_output.affine) == ("depth", False)
    assert frame.mde_output.image.shape == (*SHAPE, 3)


def test_predictions_truth_of_arbitrary_scale_has_a_median_of_3_m(tmp_path) -> None:
    frame = load(write_frame(tmp_path / "a", gt=1e4 * depth_map()))
    assert np.median(frame.depth_m) == pytest.approx(3)
    ratio = frame.depth_m / depth_map()
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-5)


def test_predictions_nan_and_infinite_truth_is_unknown(tmp_path) -> None:
    gt = depth_map()
    gt[0], gt[1], gt[2] = np.nan, np.inf, -1
    frame = load(write_frame(tmp_path / "a", gt=gt))
    assert np.array_equal(np.isfinite(frame.depth_m).all(axis=1), np.arange(24) > 2)
    assert np.array_equal(np.isfinite(frame.depth_m).any(axis=1), np.arange(24) > 2)


@pytest.mark.parametrize(
    ("meta", "affine"),
    [
        ({"kind": "disparity"}, True),
        ({"kind": "disparity", "affine": False}, False),
        ({"kind": "depth", "affine": True}, True),
    ],
)
def test_predictions_shift_of_disparity_is_unknown_unless_declared(tmp_path, meta, affine) -> None:
    assert load(write_frame(tmp_path / "a", **meta)).mde_output.affine is affine


def test_predictions_group_is_declared_or_the_source_or_the_name(tmp_path) -> None:
    groups = [
        load(write_frame(tmp_path / name, **meta)).group
        for name, meta in {
            "a": {"group": "family", "source": "repo"},
            "b": {"source": "repo"},
            "c": {},
        }.items()
    ]
    assert groups == ["family", "repo", "c"]


def test_predictions_image_of_another_size_is_resized_to_the_map(tmp_path) -> None:
    frame = load(write_frame(tmp_path / "a", size=(48, 64)))
    assert frame.image.shape == (*SHAPE, 3)
    assert abs(frame.image.astype(int) - 90).max() <= 3


@pytest.mark.parametrize("suffix", [".npy", ".pfm", ".exr"])
def test_predictions_maps_of_other_formats(tmp_path, suffix) -> None:
    if suffix == ".exr":
        pytest.importorskip("OpenEXR")
    folder = write_frame(tmp_path / "a", metric=True)
    for name in ("pred", "gt"):
        (folder / f"{name}.npz").unlink()
        write_map(folder / f"{name}{suffix}", depth_map())
    frame = load(folder)
    np.testing.assert_allclose(frame.depth_m, depth_map())
    np.testing.assert_allclose(frame.mde_output.prediction, depth_map())


def test_predictions_png_truth_needs_units_and_8_bit_disparity_is_accepted(tmp_path) -> None:
    folder = write_frame(tmp_path / "a", kind="disparity", metric=True)
    for name in ("pred", "gt"):
        (folder / f"{name}.npz").unlink()
    disparity = np.arange(24 * 32, dtype=np.uint16).reshape(SHAPE).clip(max=255).astype(np.uint8)
    Image.fromarray(disparity).save(folder / "pred.png")
    write_depth_png(folder / "gt.png", depth_map(), 1000.0)  # with the units in its metadata
    frame = load(folder)
    np.testing.assert_allclose(frame.depth_m, depth_map(), atol=1e-3)
    assert bool(frame.mde_output.valid.all())  # zero is the farthest value
    Image.fromarray((1000 * depth_map()).astype(np.uint16)).save(folder / "gt.png")
    with pytest.raises(InputError, match="does not record its units; put units_per_metre"):
        load(folder)
    meta = {"kind": "disparity", "metric": True, "units_per_metre": 1000}
    (folder / "meta.json").write_text(json.dumps(meta))
    np.testing.assert_allclose(load(folder).depth_m, depth_map(), atol=1e-3)


def test_predictions_of_several_arrays_the_one_named_as_the_file_is_read(tmp_path) -> None:
    folder = write_frame(tmp_path / "a")
    np.savez(folder / "pred.npz", other=np.ones((2, 2)), pred=depth_map())
    np.testing.assert_allclose(load(folder).mde_output.prediction, depth_map())


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        ({"kind": "metres"}, "kind must be \"depth\" or \"disparity\", found 'metres'"),
        ({"kind": None}, 'kind must be "depth" or "disparity", found nothing'),
        ({"affine": "yes"}, "affine must be true or false, found 'yes'"),
        ({"group": 3}, "group must be a text, found 3"),
        ({"source": ""}, "source must be a text, found ''"),
        ({"metric": 1}, "metric must be true or false, found 1"),
        ({"units_per_metre": 0}, "units_per_metre must be a number above 0, found 0"),
        ({"depth_range_m": [5, 1]}, "depth_range_m must be .* above 0, found .5, 1."),
    ],
)  # fmt: skip
def test_predictions_wrong_meta_gets_a_sentence(tmp_path, meta, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        load(write_frame(tmp_path / "a", **meta))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gt": np.ones((3, 3))}, "the truth is 3×3 and the prediction 32×24 pixels"),
        ({"gt": np.zeros(SHAPE)}, "no depth is known"),
        ({"pred": np.full(SHAPE, np.nan)}, "pred.npz: the depth map has no usable value"),
        ({"pred": np.full(SHAPE, 1e-30)}, "pred.npz: the depth map has a median of 1e-30"),
        ({"pred": np.ones((2, *SHAPE))}, "must have shape"),
        ({"size": SHAPE[::-1]}, "one of them is rotated"),
    ],
)
def test_predictions_wrong_maps_get_a_sentence(tmp_path, change, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        load(write_frame(tmp_path / "a", **change))


def test_predictions_missing_and_double_files_are_named(tmp_path) -> None:
    folder = write_frame(tmp_path / "a")
    np.save(folder / "pred.npy", depth_map())
    with pytest.raises(InputError, match=r"has pred.npy and pred.npz; wanted one file pred"):
        load(folder)
    for name in ("pred.npy", "pred.npz"):
        (folder / name).unlink()
    with pytest.raises(InputError, match="has no pred"):
        load(folder)
    (folder / "meta.json").write_text("[]")
    with pytest.raises(InputError, match=r"wanted a JSON object with kind, found \[\]"):
        load(folder)
    with pytest.raises(InputError, match=r"no such folder; wanted rgb.jpg"):
        Predictions(tmp_path).load("b")


def test_predictions_names_are_the_folders_of_one_split(tmp_path) -> None:
    dataset = open_dataset("predictions", tmp_path)
    with pytest.raises(InputError, match="no frame found; wanted folders NAME"):
        dataset.names("test")
    for name in ("b", "a", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "README.md").write_text("")
    assert dataset.names("test") == dataset.names("all") == ["a", "b"]
    assert dataset.names("train") == dataset.names("val") == []
    with pytest.raises(InputError, match="no split"):
        dataset.names("dev")


def test_predictions_fingerprint_depends_on_the_stored_map(tmp_path) -> None:
    frames = [
        load(write_frame(tmp_path / name / "x", **change))
        for name, change in {
            "a": {},
            "b": {"pred": depth_map()},
            "c": {"kind": "disparity"},
        }.items()
    ]
    assert len({frame.sha256() for frame in frames}) == 3


# ---- the estimators stored and affine:stored --------------------------------------------------


def evaluation(mde: str) -> Evaluation:
    methods = parse_methods(["median", "global(space=disparity)"])
    return Evaluation("x", "predictions", "test", mde, methods, ("low",), True, 0)


@pytest.mark.parametrize("mde", ["stored", "affine:stored"])
def test_frame_source_evaluates_stored_predictions(tmp_path, mde) -> None:
    for name in ("a", "b"):
        write_frame(tmp_path / "data" / name, model="net")
    source = FrameSource(open_dataset("predictions", tmp_path / "data"), mde)
    source.check()
    names = run(Evaluator(source, evaluation(mde), tmp_path / "out"))
    results = score_files(tmp_path / "out", names)
    errors = {
        (c["method"], c["condition"]): c["clamped"]["abs_rel"][0]
        for c in results["cells"]
        if c["group"] == "all"
    }
    # The stored map has the right shape: one scale is exact, unless its shift was removed.
    assert (errors["median", "low"] < 1e-5) is (mde == "stored")
    assert errors["global(space=disparity)", "low"] < 1e-5
    assert results["data"]["mde"] == [mde.replace("stored", "net")]


def test_evaluate_with_own_maps_scores_as_the_stored_predictions(tmp_path, capsys) -> None:
    for name in ("a", "b"):
        write_frame(tmp_path / "data" / name)
        (tmp_path / "maps").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "data" / name / "pred.npz", tmp_path / "maps" / f"{name}.npz")
    data = ["evaluate", "--root", str(tmp_path / "data"), "--dataset", "predictions"]
    data += ["--methods", "median", "--regimes", "low", "--workers", "1", "--no-gallery"]
    maps = ["--depth", str(tmp_path / "maps"), "--kind", "depth"]
    for out, source in (("stored", ["--mde", "stored"]), ("own", maps)):
        assert main([*data, *source, "--out", str(tmp_path / out)]) == 0
    stored, own = ((tmp_path / out / "images.csv").read_text() for out in ("stored", "own"))
    assert own == stored
    for flags in ([], [*maps, "--mde", "lite"]):
        assert main([*data, *flags, "--out", str(tmp_path / "other")]) == 2
        assert "one of --mde NAME and --depth FOLDER is wanted" in capsys.readouterr().err


def test_frame_source_stored_wants_a_prediction_with_the_frame(tmp_path) -> None:
    frame = load(write_frame(tmp_path / "a"))
    bare = type(frame)(**{**vars(frame), "mde_output": None})
    source = FrameSource(Predictions(tmp_path), "stored")
    assert source.output(frame) is frame.mde_output
    with pytest.raises(InputError, match="a: the frame comes without a prediction"):
        source.output(bare)


def test_frame_source_runs_a_named_estimator_on_images_with_predictions(tmp_path, red) -> None:
    frame = load(write_frame(tmp_path / "a"))
    assert FrameSource(Predictions(tmp_path), red).output(frame).model == "red"


@pytest.fixture
def red():
    """An estimator that takes the red channel as depth."""
    from scalefield.mde import MDEOutput

    class Red:
        name = "red"

        def __call__(self, image):
            return MDEOutput(torch.tensor(image[..., 0]).float() + 1, "depth", model="red")

    return Red()


# ---- real predictions -------------------------------------------------------------------------


def test_predictions_real_outputs_of_strong_estimators_are_readable() -> None:
    shared = os.environ.get("SCALEFIELD_SHARED")
    root = Path(shared or ".") / "strong"
    if not shared or not root.is_dir():
        pytest.skip("SCALEFIELD_SHARED names no folder with strong/")
    dataset = open_dataset("predictions", root)
    frames = [dataset.load(name) for name in dataset.names("test")]
    assert len(frames) == 25
    assert {f.group for f in frames if f.mde_output.affine} == {"mmaj1/Midas-project"}
    assert len({f.group for f in frames}) == 3
    for frame in frames:
        assert np.nanmedian(frame.depth_m) == pytest.approx(3, rel=1e-3)
        assert np.array_equal(frame.mask, np.isfinite(frame.depth_m))  # nothing outside the range
