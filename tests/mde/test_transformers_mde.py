"""Depth models of transformers against their own output, on random weights."""

import json

import pytest
import torch

from scalefield.errors import InputError, MissingExtra
from scalefield.mde import load_mde
from scalefield.mde.estimator import Estimator, Preprocess
from scalefield.mde.transformers_mde import (
    TransformersNetwork,
    load_transformers,
    model_kind,
    read_preprocess,
    wrap,
)
from worlds import TINY_DINOV2

transformers = pytest.importorskip("transformers")

VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 16,
    "image_size": 64,
}
NECK = {"neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8}


def dpt_large():
    config = transformers.DPTConfig(
        **VIT, **NECK, backbone_out_indices=[0, 1, 2, 3], is_hybrid=False
    )
    return transformers.DPTForDepthEstimation(config)


def dpt_hybrid():
    bit = transformers.BitConfig(
        embedding_size=8,
        hidden_sizes=[16, 32, 64, 128],
        depths=[1, 1, 1],
        layer_type="bottleneck",
        num_groups=4,
        global_padding="same",
        embedding_dynamic_padding=True,
        out_features=["stage1", "stage2", "stage3"],
    )
    config = transformers.DPTConfig(
        **VIT,
        is_hybrid=True,
        backbone_config=bit,
        backbone_out_indices=[0, 1, 2, 3],
        backbone_featmap_shape=[1, 64, 4, 4],
        neck_hidden_sizes=[16, 32, 24, 24],
        neck_ignore_stages=[0, 1],
        reassemble_factors=[1, 1, 1, 0.5],
        fusion_hidden_size=16,
    )
    return transformers.DPTForDepthEstimation(config)


def depth_anything(**options):
    dinov2 = transformers.Dinov2Config(**TINY_DINOV2)
    config = transformers.DepthAnythingConfig(
        backbone_config=dinov2, reassemble_hidden_size=16, head_hidden_size=8, **NECK, **options
    )
    return transformers.DepthAnythingForDepthEstimation(config)


def zoedepth():
    beit = transformers.BeitConfig(
        **VIT,
        out_indices=[1, 2, 3, 4],
        use_relative_position_bias=True,
        reshape_hidden_states=False,
        add_fpn=False,
    )
    config = transformers.ZoeDepthConfig(
        backbone_config=beit,
        **NECK,
        bottleneck_features=8,
        num_relative_features=8,
        bin_embedding_dim=8,
        num_attractors=[4, 2, 1, 1],
        bin_configurations=[{"n_bins": 8, "min_depth": 0.001, "max_depth": 10, "name": "nyu"}],
    )
    return transformers.ZoeDepthForDepthEstimation(config)


def glpn():
    config = transformers.GLPNConfig(
        hidden_sizes=[8, 8, 16, 16],
        depths=[1] * 4,
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=8,
    )
    return transformers.GLPNForDepthEstimation(config)


def depth_pro():
    vit = {**VIT, "model_type": "dinov2", "patch_size": 4, "image_size": 16}
    config = transformers.DepthProConfig(
        patch_size=16,
        fusion_hidden_size=8,
        intermediate_hook_ids=[1, 0],
        intermediate_feature_dims=[8, 8],
        scaled_images_ratios=[0.5, 1.0],
        scaled_images_overlap_ratios=[0.0, 0.2],
        scaled_images_feature_dims=[8, 8],
        merge_padding_value=1,
        use_fov_model=False,
        image_model_config=vit,
        patch_model_config=vit,
        fov_model_config=vit,
    )
    return transformers.DepthProForDepthEstimation(config)


def lively(build, seed=0):
    """Random weights under which no parameter is zero, one, or without influence."""
    torch.manual_seed(seed)
    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if hasattr(model, "head") and hasattr(model.head, "head"):
            # Keep the last ReLU's output away from all zeros.
            *_, last = [m for m in model.head.head if isinstance(m, torch.nn.Conv2d)]
            last.bias.fill_(2.0)
        elif hasattr(model, "head") and hasattr(model.head, "conv3"):
            model.head.conv3.bias.fill_(2.0)
    return model


# Native sizes first, then others that the model's own forward takes.
@pytest.mark.parametrize(
    ("build", "shape", "channels"),
    [
        (dpt_large, (64, 64), 8),
        (dpt_large, (96, 96), 8),
        (dpt_hybrid, (64, 64), 16),
        (depth_anything, (42, 42), 8),
        (depth_anything, (56, 98), 8),
        (zoedepth, (64, 64), 8),
        (zoedepth, (64, 96), 8),
        (glpn, (64, 96), None),
        (depth_pro, (32, 32), None),
    ],
)
def test_equals_the_models_own_output(build, shape, channels):
    model = lively(build)
    pixels = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        own = model(pixels).predicted_depth
        raw = TransformersNetwork(model)(pixels)
    assert torch.equal(raw.prediction, own)
    assert own.std() > 0
    if channels is None:
        assert raw.features is None
    else:
        height, width = shape
        patch = getattr(model.config, "patch_size", None) or 16
        grid = (8 * height // patch, 8 * width // patch)
        assert raw.features.shape == (2, channels, *grid)


@pytest.mark.parametrize("build", [dpt_large, dpt_hybrid])
@pytest.mark.parametrize("shape", [(64, 64), (64, 128), (128, 32)])
def test_dpt_at_any_shape_equals_its_parts_one_after_another(build, shape):
    """The model's own forward refuses these shapes; its parts do not."""
    model = lively(build)
    pixels = torch.randn(1, 3, *shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        raw = TransformersNetwork(model)(pixels)
        hybrid = model.config.is_hybrid
        flag = {"interpolate_pos_encoding": True} if hybrid else {}
        embedded = model.dpt.embeddings(pixels, **flag)
        tokens, states = embedded.last_hidden_states, []
        for layer in model.dpt.encoder.layer:
            tokens = layer(tokens)
            states.append(tokens)
        if hybrid:
            states = [*embedded.intermediate_activations, *states[2:]]
        fused = model.neck(states, shape[0] // 16, shape[1] // 16)
        wanted = model.head(fused)
    assert torch.equal(raw.features, fused[-1])
    assert torch.equal(raw.prediction, wanted)
    assert raw.prediction.shape == (1, *shape)


@pytest.mark.parametrize(
    ("build", "multiple"), [(dpt_large, 32), (dpt_hybrid, 32), (depth_anything, 14)]
)
def test_features_follow_the_image(build, multiple, assert_features_follow_the_image):
    network = TransformersNetwork(lively(build))
    side = 10 * multiple
    preprocess = Preprocess((side, side), "inside", multiple)
    mde = Estimator("t", "r", "disparity", preprocess, network)
    assert_features_follow_the_image(lambda image: _without_grad(mde, image), side)


def _without_grad(mde, image):
    with torch.no_grad():
        return mde(image)


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (dpt_large, "disparity"),
        (dpt_hybrid, "disparity"),
        (depth_anything, "disparity"),
        (lambda: depth_anything(depth_estimation_type="metric", max_depth=20), "depth"),
        (zoedepth, "depth"),
        (glpn, "depth"),
        (depth_pro, "disparity"),
    ],
)
def test_kind(build, kind):
    assert model_kind(build().config) == kind


def test_dinov2_depth_heads_give_depth():
    backbone = transformers.Dinov2Config(out_indices=[1, 2, 3, 4])
    assert model_kind(transformers.DPTConfig(backbone_config=backbone)) == "depth"


def test_load_mde_needs_the_kind_of_an_unknown_architecture(tmp_path):
    model = depth_anything()
    model.config.model_type = "new"
    with pytest.raises(InputError, match="new model gives depth or disparity is not known"):
        wrap("x", model, "r")
    with pytest.raises(InputError, match=r"no preprocessor_config.json"):
        wrap("x", model, "r", kind="depth", folder=tmp_path)
    printed = {"size": {"height": 42, "width": 56}, "image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(printed))
    mde = wrap("x", model, "r", kind="depth", folder=tmp_path)
    assert mde.preprocess == Preprocess((42, 56), "stretch", 1, (0.1,) * 3, (0.2,) * 3)
    for text in ("{}", "[]", "{"):
        (tmp_path / "preprocessor_config.json").write_text(text)
        with pytest.raises(InputError, match="not understood"):
            wrap("x", model, "r", kind="depth", folder=tmp_path)


def test_descriptions_of_the_input():
    printed = {
        "size": {"height": 512, "width": 512}, "keep_aspect_ratio": True, "ensure_multiple_of": 32,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    assert read_preprocess(printed) == Preprocess((512, 512), "least", 32, (0.5,) * 3, (0.5,) * 3)
    raw = {
        "do_resize": False, "size_divisor": 14, "do_rescale": False,
        "image_mean": [127.5] * 3, "image_std": [51.0] * 3,
    }  # fmt: skip
    preprocess = read_preprocess(raw)
    assert preprocess.target((100, 140)) == (98, 140)
    assert (preprocess.mean, preprocess.std) == ((0.5,) * 3, (0.2,) * 3)


@pytest.fixture
def folder(tmp_path):
    """A tiny Depth Anything as the hub has it."""
    model = lively(depth_anything)
    model.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny", model


def test_loads_from_a_folder(folder, photograph):
    path, model = folder
    mde = load_mde(str(path))
    output = mde(photograph(518, 518))
    assert mde.name == "tiny"
    assert mde.revision.startswith("sha256:")
    with torch.no_grad():
        own = model(mde.preprocess([photograph(518, 518)])).predicted_depth[0]
    torch.testing.assert_close(output.prediction, own, rtol=1e-5, atol=1e-6)
    assert output.kind == "disparity"
    assert output.features.shape == (8, 296, 296)


def test_missing_weights_are_refused_and_not_invented(folder):
    from safetensors.torch import load_file, save_file

    path, _ = folder
    state = {k: v.clone() for k, v in load_file(path / "model.safetensors").items()}  # unmapped
    unused = {k: v for k, v in state.items() if "fusion_stage.layers.0.residual_layer1" not in k}
    assert len(unused) < len(state)
    save_file(unused, path / "model.safetensors", metadata={"format": "pt"})
    load_transformers("tiny", path, "r")  # published files lack these, and nothing needs them
    del unused["neck.convs.0.weight"]
    save_file(unused, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights are missing, such as neck.convs.0.weight"):
        load_transformers("tiny", path, "r")


def test_a_folder_without_a_depth_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="transformers finds no depth model"):
        load_transformers("bert", tmp_path, "r")


def test_without_transformers(without, tmp_path):
    without("transformers")
    with pytest.raises(MissingExtra, match=r"pip install 'scalefield\[mde\]'"):
        load_transformers("midas-hybrid", tmp_path, "r")
