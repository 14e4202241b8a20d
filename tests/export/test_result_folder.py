"""What a recovery offers in Python: one-line repr, notebook picture, save, preview, points."""

import base64
import dataclasses
import io
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scalefield import Anchors, Camera, InputError, recover
from scalefield.export.result_folder import (
    MOST_LISTED,
    OUTPUTS,
    depth_png_units,
    summary,
    write_outputs,
)
from scalefield.field.error_scale import ErrorScale
from scalefield.field.model import load_field
from scalefield.io import write_depth_png
from scalefield.recovery import Recovery
from scalefield.report import Rejection

V, U = np.mgrid[:48, :64]
RELATIVE = 1.0 + V / 48 + 0.3 * np.sin(U / 9)
IMAGE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
ROWS = [(5, 6, 3.0), (40, 30, 4.0), (60, 40, 3.3), (20, 44, 4.4)]


@pytest.fixture(scope="module")
def recovery() -> Recovery:
    return recover(IMAGE, ROWS, mde_depth=RELATIVE, kind="depth")


def test_recovery_repr_is_one_short_line(recovery):
    for each in (recovery, recover(None, ROWS, mde_depth=torch.from_numpy(RELATIVE), kind="depth")):
        assert "\n" not in repr(each)
        assert len(repr(each)) < 120
        assert re.match(r"Recovery\(64×48 px, \d.* m, field on array, 4 of 4 anchors", repr(each))


def test_recovery_keeps_the_image_and_the_anchors(recovery):
    np.testing.assert_array_equal(recovery.image, IMAGE)
    assert len(recovery.anchors) == 4
    assert "image" not in recovery.maps()
    assert recover(None, ROWS, mde_depth=RELATIVE, kind="depth").image is None


def test_recovery_html_is_the_preview_as_a_picture(recovery):
    text = recovery._repr_html_()
    data = re.search(r'src="data:image/jpeg;base64,([^"]+)"', text).group(1)
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert picture.size == recovery.preview().size


def test_recovery_save_writes_the_files_of_the_command(recovery, tmp_path):
    folder = recovery.save(tmp_path / "r", formats=("ply", "glb"), fov_deg=60.0, max_points=500)
    assert {p.name for p in folder.iterdir()} == {*OUTPUTS, "cloud.ply", "cloud.glb"}
    saved = np.load(folder / "depth.npz")
    np.testing.assert_array_equal(saved["depth_m"], recovery.depth_m)
    np.testing.assert_allclose(saved["leave_one_out_log"], recovery.report.leave_one_out_log)
    with pytest.raises(InputError, match="its intrinsics or field of view"):
        recovery.save(tmp_path / "other", formats=("ply",))
    assert not (tmp_path / "other").exists()


def test_recovery_to_point_cloud_has_the_depth_of_the_pixels(recovery):
    cloud = recovery.to_point_cloud(Camera(60.0, 60.0, 31.5, 23.5))
    assert cloud.points_m[:, 2].min() == pytest.approx(recovery.depth_m.min(), rel=1e-3)
    assert cloud.std_log is not None
    assert len(recovery.to_point_cloud(fov_deg=60.0, max_points=100).points_m) <= 100
    with pytest.raises(InputError, match="camera and fov_deg are alternatives"):
        recovery.to_point_cloud(Camera(60.0, 60.0, 31.5, 23.5), fov_deg=60.0)
    grey = dataclasses.replace(recovery, image=None).to_point_cloud(fov_deg=60.0)
    assert np.unique(grey.colours).size == 1


def test_summary_has_the_leave_one_out_error_of_field(recovery):
    text = summary(recovery)
    error = 100 * np.expm1(np.median(np.abs(recovery.report.leave_one_out_log)))
    assert f"median error {error:.1f} % (leave-one-out)" in text
    assert "residual" not in text


def test_field_leave_one_out_is_the_prediction_without_the_anchor():
    """With one scale of the errors: the others may suggest another scale than all of them. The
    prior mean of the global scale, the median of the anchors, differs a little as well."""
    model = dataclasses.replace(load_field("field"), error_scales=(ErrorScale(1.0, 1.0, 1.0, 1.0),))
    kept = {"mde_depth": RELATIVE, "kind": "depth", "robust": False, "model": model}
    found = recover(None, ROWS, **kept).report.leave_one_out_log
    for i, (u, v, depth_m) in enumerate(ROWS):
        others = recover(None, [row for row in ROWS if row is not ROWS[i]], **kept)
        assert found[i] == pytest.approx(np.log(others.depth_m[v, u] / depth_m), abs=6e-3)
    assert recover(None, ROWS[:1], **kept).report.leave_one_out_log == ()


def test_recovery_json_lists_few_anchors_and_depth_npz_has_all(recovery, tmp_path):
    n = 5000
    report = dataclasses.replace(
        recovery.report,
        residuals_log=(0.0123456,) * n,
        leave_one_out_log=(0.2,) * n,
        rejected=tuple(Rejection(i, "outlier", "contradicted by the others") for i in range(n)),
    )
    anchors = Anchors(np.zeros(n), np.zeros(n), np.ones(n))
    large = dataclasses.replace(recovery, report=report, anchors=anchors, image=IMAGE)
    write_outputs(tmp_path / "r", large, inputs={}, png_units=1000.0)
    text = (tmp_path / "r" / "recovery.json").read_text()
    record = json.loads(text)
    assert len(text) < 40_000
    assert len(record["report"]["rejected"]) == MOST_LISTED
    lists = ("rejected", "residuals_log", "leave_one_out_log")
    assert record["report"]["shortened"] == dict.fromkeys(lists, n)
    assert record["leave_one_out_error"] == pytest.approx(np.expm1(0.2))
    saved = np.load(tmp_path / "r" / "depth.npz")
    assert len(saved["residuals_log"]) == len(saved["rejected_anchors"]) == n
    assert "shortened" not in report.as_short_dict(n)


@given(st.floats(1e-3, 1e12))
def test_depth_png_units_cut_no_pixel(tmp_path_factory, farthest_m):
    depth_m = np.array([[farthest_m, 1e-4, np.nan]])
    units = depth_png_units(depth_m)
    assert units == 1000 or farthest_m * 1000 > 65535
    assert write_depth_png(tmp_path_factory.mktemp("png") / "d.png", depth_m, units) == 0
