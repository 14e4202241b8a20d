"""`recover`: inputs, outputs, errors and warnings."""

import doctest
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import scalefield as sf
from scalefield import Anchors, InputError, MDEOutput, api, recover
from scalefield.field.config import InferenceConfig, OutlierConfig
from scalefield.inputs import load_image
from scalefield.methods.median import Median
from scalefield.report import Rejection

RELATIVE = np.linspace(1, 3, 48).reshape(6, 8)
ANCHORS = Anchors([0, 3, 7, 2], [0, 2, 5, 4], 2.5 * RELATIVE[[0, 2, 5, 4], [0, 3, 7, 2]])
IMAGE = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)


class Fake:
    """An MDE that remembers what it saw."""

    name = "fake"

    def __call__(self, image: np.ndarray) -> MDEOutput:
        self.seen = image
        return MDEOutput(torch.from_numpy(RELATIVE).float(), "depth", model=self.name)


def test_recover_numpy_in_numpy_out_torch_in_torch_out():
    kind, method = "depth", "median"
    as_numpy = recover(None, ANCHORS, mde_depth=RELATIVE, kind=kind, method=method)
    as_torch = recover(None, ANCHORS, mde_depth=torch.tensor(RELATIVE), kind=kind, method=method)
    assert isinstance(as_numpy.depth_m, np.ndarray)
    assert as_numpy.depth_m.dtype == as_numpy.log_scale.dtype == np.float32
    assert isinstance(as_torch.depth_m, torch.Tensor)
    np.testing.assert_array_equal(as_numpy.depth_m, as_torch.depth_m.numpy())
    np.testing.assert_allclose(as_numpy.depth_m, 2.5 * RELATIVE, rtol=1e-6)
    assert as_numpy.weights is None
    assert as_numpy.basis_maps is None
    assert as_numpy.gating is None


@pytest.mark.parametrize("form", ["path", "str", "pil", "array", "tensor"])
def test_recover_every_form_of_image_reaches_the_mde_as_the_same_pixels(tmp_path, form):
    path = tmp_path / "image.png"
    Image.fromarray(IMAGE).save(path)
    image = {
        "path": path, "str": str(path), "pil": Image.open(path), "array": IMAGE.copy(),
        "tensor": torch.tensor(IMAGE),
    }[form]  # fmt: skip
    mde = Fake()
    r = recover(image, ANCHORS, mde=mde, method="median")
    np.testing.assert_array_equal(mde.seen, IMAGE)
    assert isinstance(r.depth_m, torch.Tensor if form == "tensor" else np.ndarray)
    assert (r.report.model, r.report.method) == ("fake", "median")


def variants() -> dict[str, np.ndarray]:
    wide = np.zeros((6, 16))
    wide[:, ::2] = RELATIVE
    frozen = RELATIVE.copy()
    frozen.flags.writeable = False
    return {
        "flipped twice": RELATIVE[::-1, ::-1].copy()[::-1, ::-1],
        "strided": wide[:, ::2],
        "fortran": np.asfortranarray(RELATIVE),
        "big endian": RELATIVE.astype(">f4"),
        "read only": frozen,
        "float16": RELATIVE.astype(np.float16),
        "uint16": np.round(RELATIVE * 10000).astype(np.uint16),
        "int32": np.round(RELATIVE * 10000).astype(np.int32),
        "batch and channel": RELATIVE[None, None],
        "batch, channel last": RELATIVE[None, ..., None],
    }


@pytest.mark.parametrize("name", variants())
def test_recover_any_memory_layout_and_number_type_is_read(name):
    values = variants()[name]
    before = values.copy()
    r = recover(None, ANCHORS, mde_depth=values, kind="depth", method="median")
    np.testing.assert_allclose(r.depth_m, 2.5 * RELATIVE, rtol=2e-3)
    np.testing.assert_array_equal(values, before)


def test_recover_takes_masked_pixels_as_holes():
    hidden = np.ma.masked_array((1000 * RELATIVE).astype(np.uint16), RELATIVE > 2)
    r = recover(None, ANCHORS, mde_depth=hidden, kind="depth", method="median")
    np.testing.assert_array_equal(np.isnan(r.depth_m), RELATIVE > 2)


def test_recover_mirrored_image_reaches_the_mde():
    mirrored = IMAGE[:, ::-1, ::-1]
    recover(mirrored, ANCHORS, mde=(mde := Fake()), method="median")
    np.testing.assert_array_equal(torch.from_numpy(mde.seen).numpy(), mirrored)


@given(
    values=hnp.arrays(np.float32, (4, 5), elements=st.floats(2**-10, 2**10, width=32)),
    kind=st.sampled_from(["depth", "disparity"]),
)
def test_recover_inputs_are_never_changed(values, kind):
    tensor, before = torch.from_numpy(values.copy()), values.copy()
    anchors = Anchors([0, 4], [0, 3], [1.0, 2.0])
    recover(None, anchors, mde_depth=values, kind=kind, method="global")
    recover(None, anchors, mde_depth=tensor, kind=kind, method="global")
    np.testing.assert_array_equal(values, before)
    np.testing.assert_array_equal(tensor.numpy(), before)


@pytest.mark.parametrize(
    ("values", "kind", "sentence"),
    [
        (RELATIVE, None, r'kind is required with your own map.*"depth".*"disparity".*found None'),
        (np.stack([RELATIVE] * 3), "depth", r"shape \(height, width\), found \(3, 6, 8\)"),
        (np.zeros((0, 8)), "depth", "found"),
        (np.full((6, 8), 9, np.uint8), "depth", "8-bit depth has too few steps"),
        (np.full((6, 8), 9, np.int8), "depth", "8-bit depth has too few steps"),
        (RELATIVE > 2, "depth", "array of numbers: found bool"),
        (RELATIVE + 1j, "depth", "array of numbers: found complex128"),
        (np.array([["far"]]), "depth", "array of numbers"),
        (RELATIVE[:3], "depth", r"map is 8×3 pixels and the image 8×6.*--resize"),
        (RELATIVE.T, "depth", "map is 6×8 pixels and the image 8×6: one of them is rotated"),
        (np.full((6, 8), np.nan), "depth", "no usable value"),
        (-RELATIVE, "depth", "no usable value"),
        (np.full((6, 8), np.inf), "disparity", "no usable value"),
        (RELATIVE * 1e300, "depth", r"median of 1.*e\+300, wanted is 1e-20 to 1e\+20"),
        (np.float32(RELATIVE) * np.float32(1e-44), "disparity", "median of 1.*e-44"),
        (torch.ones(6, 8, dtype=torch.bool), "depth", "found a tensor of torch.bool"),
        (torch.ones(6, 8, dtype=torch.complex64), "depth", "found a tensor of torch.complex64"),
        (torch.ones(6, 8).to_sparse(), "depth", "torch.sparse_coo"),
        (torch.ones(6, 8, device="meta"), "depth", "on meta"),
    ],
)
def test_recover_bad_maps_get_a_sentence(values, kind, sentence):
    with pytest.raises(InputError, match=sentence):
        recover(IMAGE, ANCHORS, mde_depth=values, kind=kind, method="median")


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (IMAGE[None], r"\(3, height, width\) or .*found uint8 of shape \(1, 6, 8, 3\)"),
        (np.zeros((6, 8, 5), np.uint8), r"found uint8 of shape \(6, 8, 5\)"),
        (np.full((6, 8, 3), 200.0), r"floats must have values of 0 … 1, found 200.*divide by 255"),
        (np.full((6, 8, 3), -1.0), "found -1 … -1; is it normalised"),
        (np.full((6, 8, 3), np.nan), "floats must have values of 0 … 1"),
        (np.zeros((6, 8, 3), np.int64), "uint8, uint16 or floats of 0 … 1, found int64"),
        (np.full((6, 8), 4095, np.uint16), "grey image of 16 bits .* up to 4095; is it a depth"),
        (np.zeros((0, 8, 3), np.uint8), "found uint8"),
        (Image.new("RGB", (0, 5)), "found uint8"),
        (
            Image.new("I;16", (8, 6)),
            "grey image of 16 bits must use .* values up to 0; is it a depth map",
        ),
        ("missing.jpg", "^missing.jpg: no such file"),
        ("https://a.org/b.jpg", "^https://a.org/b.jpg is a web address; download it"),
        (None, "no input: give an image"),
    ],
)
def test_recover_bad_images_get_a_sentence(image, sentence):
    with pytest.raises(InputError, match=sentence):
        recover(image, ANCHORS, mde=Fake(), method="median")


@pytest.mark.parametrize(
    ("anchors", "sentence"),
    [
        (Anchors([], [], []), "no anchors: at least one"),
        (Anchors([8], [0], [1.0]), r"1 of 1 anchors lie outside.*8×6.*anchors\[0\] at u=8, v=0"),
        (Anchors([0, 0], [0, -1], [1.0, 1.0]), r"anchors\[1\] at u=0, v=-1"),
    ],
)
def test_recover_bad_anchors_get_a_sentence(anchors, sentence):
    with pytest.raises(InputError, match=sentence):
        recover(None, anchors, mde_depth=RELATIVE, kind="depth", method="median")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"method": "magic"}, "no method 'magic'; there are .*median"),
        ({"method": "median", "bandwidth": 3}, "method median has no option 'bandwidth'"),
        ({"method": Median(), "space": "depth"}, "options are for a method given by name"),
        ({"method": "median", "kind": "disparity"}, "fake gives depth, but kind=disparity"),
        ({"method": "median", "resize": True}, "resize applies only to mde_depth"),
        ({"mde_depth": RELATIVE, "kind": "depth"}, "mde_depth is your own depth map"),
        ({"method": Median}, r"Median is a class; give an instance, for example Median\(\)"),
        ({"method": lambda mde_output, anchors: None}, "<lambda> must return a Recovery"),
        ({"method": "lwlr", "bandwidth": np.inf}, "bandwidth must be .*float.*, found inf"),
        ({"method": "lwlr", "blend": 10**30}, "blend must be float, found 10000"),
        ({"method": "global", "seed": np.nan}, "seed must be int, found nan"),
        ({"method": "global", "seed": True}, "seed must be int, found True"),
        ({"method": "basis", "ridge": 0.1}, r"ridge must be .*Ridge.*None, found 0.1"),
        ({"method": "field", "model": None}, "model must be .*found None"),
        ({"method": "piecewise", "edges": b"x"}, "edges must be .*found b'x'"),
    ],
)
def test_recover_bad_choices_get_a_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        recover(IMAGE, ANCHORS, mde=Fake(), **arguments)


def test_recover_wrong_types_get_a_sentence_where_nobody_checks_annotations(said_of):
    estimator = "an MDE must be a name or return an MDEOutput for an image"
    calls = {
        "anchors=7": "anchors: wanted Anchors, rows of u, v, depth_m, named columns or a file "
        "(Anchors.of), found int",
        "method=None": "a method is a name or a function, found None",
        "mde=None": f"{estimator}, found NoneType",
        "mde=lambda image: 3": f"{estimator}, found int",
    }
    prepare = [
        "image = numpy.zeros((6, 8, 3), numpy.uint8)",
        "right = dict(anchors=scalefield.Anchors([1], [2], [3]), method='median')",
    ]
    tried = [f"scalefield.recover(image, **{{**right, **dict({wrong})}})" for wrong in calls]
    assert said_of(prepare, tried) == list(calls.values())


def test_recover_refuses_a_rotated_map():
    with pytest.raises(InputError, match="rotate the map"):
        recover(IMAGE, ANCHORS, mde_depth=RELATIVE.T, kind="depth", resize=True)


def test_recover_resize_must_be_allowed_and_keeps_edges():
    small = RELATIVE[::2, ::2]
    r = recover(IMAGE, ANCHORS, mde_depth=small, kind="depth", method="median", resize=True)
    assert r.depth_m.shape == (6, 8)
    ratio = r.depth_m / np.repeat(np.repeat(small, 2, 0), 2, 1)
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-5)  # values are copied, none invented


def test_recover_keeps_holes_and_names_their_anchors():
    relative = RELATIVE.copy()
    relative[0, 0], relative[4, 2], relative[1, 1] = np.nan, 0, np.inf
    r = recover(None, ANCHORS, mde_depth=relative, kind="depth", method="median")
    assert [(x.anchor, x.code) for x in r.report.rejected] == [
        (0, "no_relative_depth"),
        (3, "no_relative_depth"),
    ]
    assert (r.report.anchors_given, r.report.anchors_used, r.report.hole_pixels) == (4, 2, 3)
    np.testing.assert_array_equal(np.isnan(r.depth_m), ~(np.isfinite(relative) & (relative > 0)))
    with pytest.raises(InputError, match="none of the 1 anchors lies on a pixel with a relative"):
        recover(None, ANCHORS[:1], mde_depth=relative, kind="depth", method="median")


def test_recover_rejections_have_the_index_of_the_users_anchor():
    relative = RELATIVE.copy()
    relative[0, 0] = np.nan  # the user's anchor 0 never reaches the method

    def picky(mde_output: MDEOutput, anchors: Anchors) -> sf.Recovery:
        dropped = (Rejection(1, "test", "disliked"),)  # the second that it was handed
        log_scale = torch.zeros(())
        return sf.Recovery.from_log_scale(mde_output, anchors, log_scale, rejected=dropped)

    r = recover(None, ANCHORS, mde_depth=relative, kind="depth", method=picky)
    assert [(x.anchor, x.reason) for x in r.report.rejected] == [
        (0, "no relative depth here"), (2, "disliked"),
    ]  # fmt: skip
    assert "picky" in r.report.method


@pytest.mark.parametrize("method", ["field", "median"])
@pytest.mark.parametrize("factor", [0, -1e-15, -1, -1e15])
def test_recover_disparity_that_is_nowhere_above_zero_is_a_plane(factor, method):
    bring = {"kind": "disparity", "affine": False, "method": method}
    r = recover(None, ANCHORS, mde_depth=factor / RELATIVE, **bring)
    plane = recover(None, ANCHORS, mde_depth=np.ones((6, 8)), **bring)
    np.testing.assert_allclose(r.depth_m, plane.depth_m, rtol=1e-5)
    assert r.report.warnings[0].text.startswith("100 % of the disparity map is not above zero")


def test_recover_options_are_recorded():
    r = recover(None, ANCHORS, mde_depth=RELATIVE, kind="depth", method="global", space="disparity")
    assert r.report.options["space"] == "disparity"


def test_recover_records_nested_options_by_their_values():
    config = InferenceConfig(neighbours=9, outliers=OutlierConfig(min_anchors=7))
    r = recover(None, ANCHORS, mde_depth=RELATIVE, kind="depth", inference=config)
    recorded = r.report.options["inference"]
    assert (recorded["neighbours"], recorded["cell_px"]) == (9, (8, 16))
    assert recorded["outliers"]["min_anchors"] == 7
    folder = Path(__file__).parent  # an option that is no plain value is written as text
    assert api._plain((folder, RELATIVE)) == (str(folder), "ndarray")


def test_recover_docstrings_example_runs():
    results = doctest.testmod(api)
    assert results.attempted > 0
    assert results.failed == 0


def test_recover_public_names_load_lazily_and_wrong_ones_fail():
    assert set(sf.__all__) <= set(dir(sf))
    assert all(hasattr(sf, name) for name in sf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'recovr'"):
        sf.recovr


COLOURED = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
GREY = COLOURED[..., :1]


@pytest.mark.parametrize(
    ("image", "pixels"),
    [
        (COLOURED / 255, COLOURED),
        ((COLOURED / 255).astype(np.float32).transpose(2, 0, 1), COLOURED),
        (torch.from_numpy(COLOURED).permute(2, 0, 1), COLOURED),
        (torch.from_numpy(COLOURED).permute(2, 0, 1) / 255, COLOURED),
        (COLOURED.astype(np.uint16) * 257, COLOURED),
        (np.dstack([COLOURED, COLOURED[..., :1]]), COLOURED),
        (GREY[..., 0], GREY),
        (GREY, GREY),
        (torch.from_numpy(GREY).permute(2, 0, 1) / 255, GREY),
        (GREY[..., 0].astype(np.uint16) * 257, GREY),
        (Image.fromarray(GREY[..., 0]), GREY),
        (Image.fromarray(GREY[..., 0].astype(np.uint16) * 257), GREY),
        (Image.fromarray((GREY[..., 0] / 255).astype(np.float32)), GREY),
    ],
)
def test_load_image_accepts_grey_16_bit_float_and_channels_first(image, pixels):
    loaded = load_image(image)
    assert loaded.dtype == np.uint8
    assert loaded.flags.c_contiguous
    np.testing.assert_array_equal(loaded, np.broadcast_to(pixels, (6, 8, 3)))


def test_read_image_reads_heic(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    flat = np.full((64, 96, 3), (200, 120, 40), np.uint8)
    pillow_heif.from_pillow(Image.fromarray(flat)).save(tmp_path / "photo.heic", quality=95)
    loaded = load_image(tmp_path / "photo.heic")
    assert loaded.shape == flat.shape
    assert np.abs(loaded.astype(int) - flat).max() < 12


def test_read_image_names_the_extra_that_heic_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(InputError, match=r"HEIC photo; .*pip install 'scalefield\[heic\]'"):
        load_image(tmp_path / "photo.heic")


@pytest.mark.parametrize("method", ["global", "lwlr", "interpolate", "median"])
def test_recover_leave_one_out_predicts_each_anchor_from_the_others(method):
    relative = np.random.default_rng(0).uniform(1, 3, (6, 8))
    rows = [(0, 0, 2.0), (3, 2, 3.1), (7, 5, 6.5), (2, 4, 2.9)]
    kept = {"mde_depth": relative, "kind": "depth", "method": method}
    assert recover(None, rows, **kept).report.leave_one_out_log == ()
    report = recover(None, rows, leave_one_out=True, **kept).report
    assert report.left_out_folds == 0
    for i, (u, v, depth_m) in enumerate(rows):
        others = recover(None, rows[:i] + rows[i + 1 :], **kept)
        error = np.log(others.depth_m[v, u] / depth_m)
        assert report.leave_one_out_log[i] == pytest.approx(error, abs=1e-5)


def test_recover_leave_one_out_uses_folds_for_many_anchors():
    relative = np.random.default_rng(0).uniform(1, 3, (20, 30))
    pixels = np.random.default_rng(1).permutation(600)[:40]
    v, u = np.divmod(pixels, 30)
    calls = []

    def method(output, anchors):
        calls.append(len(anchors))
        return Median()(output, anchors)

    anchors = Anchors(u, v, 2 * relative[v, u])
    report = recover(
        None, anchors, mde_depth=relative, kind="depth", method=method, leave_one_out=True
    ).report
    assert calls == [40] + [35] * 8
    assert report.left_out_folds == 8
    np.testing.assert_allclose(report.leave_one_out_log, 0, atol=1e-6)


def test_recover_leave_one_out_ignores_rejected_anchors():
    v, u = np.divmod(np.arange(0, 48, 5), 8)
    depth_m = 2 * RELATIVE[v, u]
    depth_m[3] *= 5
    report = recover(
        None,
        Anchors(u, v, depth_m),
        mde_depth=RELATIVE,
        kind="depth",
        method="global",
        fit="ransac",
        leave_one_out=True,
    ).report
    assert [r.anchor for r in report.rejected] == [3]
    assert len(report.leave_one_out_log) == len(report.residuals_log) == 9
    np.testing.assert_allclose(report.leave_one_out_log, 0, atol=1e-6)


def test_recover_leave_one_out_is_skipped_for_a_method_that_needs_more_anchors(monkeypatch):
    def needs_four(output, anchors):
        if len(anchors) < 4:
            raise InputError("four anchors are wanted")
        return Median()(output, anchors)

    kept = {"mde_depth": RELATIVE, "kind": "depth", "leave_one_out": True}
    assert recover(None, ANCHORS, method=needs_four, **kept).report.leave_one_out_log == ()
    monkeypatch.setattr(api, "MAX_REFIT_PIXELS", 1)
    assert recover(None, ANCHORS, method="median", **kept).report.leave_one_out_log == ()


def test_recover_takes_rows_as_anchors():
    rows = [(1, 1, 2.0), (5, 3, 4.0)]
    kept = {"mde_depth": RELATIVE, "kind": "depth", "method": "median"}
    expected = recover(None, Anchors.of(rows), **kept).depth_m
    np.testing.assert_array_equal(recover(None, rows, **kept).depth_m, expected)
