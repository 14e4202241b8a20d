"""`recover_from_pipeline` on real pipelines of transformers with random weights."""

import numpy as np
import pytest
import torch
from PIL import Image

import scalefield as sf
from scalefield.errors import InputError
from scalefield.huggingface import predicted_depth
from worlds import TINY_DINOV2

transformers = pytest.importorskip("transformers")

SHAPE = (60, 80)


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    ramp = np.linspace(0, 255, SHAPE[0] * SHAPE[1] * 3).reshape(*SHAPE, 3)
    return Image.fromarray(ramp.astype(np.uint8))


@pytest.fixture(scope="module", params=["relative", "metric"])
def pipe(request):
    """Depth Anything with few, random weights; relative gives disparity, metric gives depth."""
    torch.manual_seed(0)
    config = transformers.DepthAnythingConfig(
        backbone_config=transformers.Dinov2Config(**TINY_DINOV2),
        reassemble_hidden_size=16,
        head_hidden_size=8,
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=8,
        depth_estimation_type=request.param,
        max_depth=10,
    )
    size = {"height": 42, "width": 42}
    processors = (
        getattr(transformers, name, None) for name in ("DPTImageProcessorPil", "DPTImageProcessor")
    )
    processor = next(p for p in processors if p is not None)
    return transformers.pipeline(
        "depth-estimation",
        model=transformers.DepthAnythingForDepthEstimation(config).eval(),
        image_processor=processor(size=size, keep_aspect_ratio=True, ensure_multiple_of=14),
    )


def test_recover_from_pipeline_equals_recover_on_the_predicted_map(pipe, photo):
    output = pipe(photo)
    anchors = sf.Anchors([10, 40, 70, 30], [50, 20, 40, 10], [2.0, 3.5, 2.5, 4.0])
    found = sf.recover_from_pipeline(output, anchors, model=pipe.model, image=photo)
    kind = "depth" if pipe.model.config.depth_estimation_type == "metric" else "disparity"
    relative = output["predicted_depth"].numpy()
    expected = sf.recover(photo, anchors, mde_depth=relative, kind=kind)
    assert found.depth_m.shape == SHAPE
    assert isinstance(found.depth_m, np.ndarray)
    np.testing.assert_array_equal(found.depth_m, expected.depth_m)
    assert found.report.kind == kind
    without_image = sf.recover_from_pipeline(output, anchors, kind=kind, method="median")
    assert without_image.report.method == "median"
    by_pipeline = sf.recover_from_pipeline(output, anchors, model=pipe, method="median")
    np.testing.assert_array_equal(by_pipeline.depth_m, without_image.depth_m)


def test_recover_from_pipeline_needs_the_kind_and_one_result(pipe, photo):
    output = pipe(photo)
    anchors = sf.Anchors([10], [50], [2.0])
    with pytest.raises(InputError, match=r"give model=pipe, or"):
        sf.recover_from_pipeline(output, anchors)
    with pytest.raises(InputError, match="pipeline, its model or its hub id, found 7; or give"):
        sf.recover_from_pipeline(output, anchors, model=7)
    with pytest.raises(InputError, match="2 results; give them one by one"):
        sf.recover_from_pipeline(pipe([photo, photo]), anchors, model=pipe.model)
    with pytest.raises(InputError, match=r"found \['depth'\]"):
        sf.recover_from_pipeline({"depth": output["depth"]}, anchors, kind="depth")


def test_recover_from_pipeline_takes_a_hub_id(pipe, photo, tmp_path, monkeypatch):
    output, anchors = pipe(photo), sf.Anchors([10], [50], [2.0])
    pipe.model.config.save_pretrained(tmp_path)  # a folder is read as the hub is
    by_name = sf.recover_from_pipeline(output, anchors, model=str(tmp_path), method="median")
    by_model = sf.recover_from_pipeline(output, anchors, model=pipe.model, method="median")
    np.testing.assert_array_equal(by_name.depth_m, by_model.depth_m)

    def offline(name: str) -> None:
        raise OSError("cannot connect")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", offline)
    with pytest.raises(InputError, match=r"'owner/name': .*cannot connect.*; give the pipeline as"):
        sf.recover_from_pipeline(output, anchors, model="owner/name")


def test_predicted_depth_of_older_versions_is_resized_to_the_picture():
    coarse = torch.linspace(1, 2, 12).reshape(1, 3, 4)
    found = predicted_depth({"predicted_depth": coarse, "depth": Image.new("L", (80, 60))})
    assert found.shape == SHAPE
    assert float(found.mean()) == pytest.approx(1.5)
    with pytest.raises(InputError, match=r"one map, found shape \(2, 3, 4\)"):
        predicted_depth({"predicted_depth": torch.ones(2, 3, 4)})
