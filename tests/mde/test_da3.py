"""Our DA3 against the published network, on the same random weights."""

import dataclasses
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from scalefield.errors import InputError
from scalefield.mde.da3 import (
    BASE,
    DA3,
    LARGE,
    ONE_VIEW,
    PREPROCESS,
    SMALL,
    DA3Config,
    load_da3,
    single_view,
)
from scalefield.mde.estimator import Estimator

pytestmark = pytest.mark.filterwarnings("ignore:register_new_resolver")  # upstream's own

TINY = DA3Config(32, 6, 2, (2, 3, 4, 5), 2, (8, 12, 16, 20), 16, grid=5)
COMMAND = "pip install --no-deps --target .oracle depth-anything-3==0.1.1 addict omegaconf einops"


@pytest.fixture(scope="module")
def oracle():
    """The folder of the published package, importable while this module's tests run."""
    root = Path(__file__).parents[2]
    folder = Path(os.environ.get("SCALEFIELD_ORACLE", root / ".oracle"))
    if not (folder / "depth_anything_3").is_dir():
        pytest.skip(f"the published network is not in {folder}: {COMMAND}")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


TINY_ONE_VIEW = dataclasses.replace(TINY, alternate_from=TINY.depth, one_view=True)


@pytest.fixture
def upstream_one_view(oracle):
    """The published network for one view (mono, metric), tiny."""
    from depth_anything_3.model.dinov2.vision_transformer import DinoVisionTransformer
    from depth_anything_3.model.dpt import DPT

    c = TINY_ONE_VIEW
    net = torch.nn.Module()
    net.backbone = torch.nn.Module()
    net.backbone.pretrained = DinoVisionTransformer(
        img_size=c.grid * c.patch,
        patch_size=c.patch,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        cat_token=False,
    )
    net.head = DPT(c.width, features=c.fused_channels, out_channels=list(c.head_channels))
    return net.eval()


@pytest.fixture(scope="module")
def upstream(oracle):
    """Builds the published backbone and head in any size."""
    from depth_anything_3.model.dinov2.vision_transformer import DinoVisionTransformer
    from depth_anything_3.model.dualdpt import DualDPT

    def build(c: DA3Config) -> torch.nn.Module:
        net = torch.nn.Module()
        net.backbone = torch.nn.Module()
        net.backbone.pretrained = DinoVisionTransformer(
            img_size=c.grid * c.patch,
            patch_size=c.patch,
            embed_dim=c.width,
            depth=c.depth,
            num_heads=c.heads,
            alt_start=c.alternate_from,
            qknorm_start=c.alternate_from,
            rope_start=c.alternate_from,
        )
        net.head = DualDPT(
            2 * c.width, features=c.fused_channels, out_channels=list(c.head_channels)
        )
        return net.eval()

    return build


def run_upstream(net, pixels, out_layers):
    """Depth, confidence and F as the published code computes them for one view an image."""
    found = {}
    hook = net.head.scratch.refinenet1.register_forward_hook(
        lambda module, args, output: found.update(features=output)
    )
    with torch.no_grad(), hook:
        tokens, _ = net.backbone.pretrained.get_intermediate_layers(pixels[:, None], out_layers)
        output = net.head(tokens, *pixels.shape[-2:], patch_start_idx=0)
    confidence = output["depth_conf"][:, 0] if "depth_conf" in output else None
    return output["depth"][:, 0], confidence, found["features"]


def randomise(net, seed=0):
    """Random weights that leave no parameter without influence; identities hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * noise if parameter.ndim == 1 else 0.05 * noise)


# 70×70 is the learned grid itself; odd numbers of patches exercise the head's rounding.
@pytest.mark.parametrize("shape", [(70, 70), (14, 14), (28, 98), (126, 42), (84, 112)])
def test_da3_equals_the_published_network(upstream, shape):
    theirs = upstream(TINY)
    randomise(theirs)
    ours = DA3(TINY).eval()
    ours.load_state_dict(single_view(theirs.state_dict()))
    pixels = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1))
    depth, confidence, features = run_upstream(theirs, pixels, TINY.out_layers)
    with torch.no_grad():
        raw = ours(pixels)
    assert depth.std() > 0.01 * depth.mean()  # the comparison is not one of constants
    torch.testing.assert_close(raw.prediction, depth, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(raw.confidence, confidence, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(raw.features, features, rtol=1e-4, atol=1e-5)
    assert raw.features.shape[-2:] == (8 * shape[0] // 14, 8 * shape[1] // 14)


@pytest.mark.parametrize("shape", [(70, 70), (28, 98), (126, 42)])
def test_da3_for_one_view_equals_the_published_network(upstream_one_view, shape):
    theirs = upstream_one_view
    randomise(theirs)
    ours = DA3(TINY_ONE_VIEW).eval()
    ours.load_state_dict(single_view(theirs.state_dict()))
    pixels = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1))
    depth, _, features = run_upstream(theirs, pixels, TINY.out_layers)
    with torch.no_grad():
        raw = ours(pixels)
    assert depth.std() > 0.01 * depth.mean()
    assert raw.confidence is None
    torch.testing.assert_close(
        raw.prediction, depth.reshape_as(raw.prediction), rtol=2e-5, atol=1e-6
    )
    torch.testing.assert_close(raw.features, features, rtol=1e-4, atol=1e-5)


def test_small_equals_the_published_network_at_full_width(upstream):
    theirs = upstream(SMALL)
    randomise(theirs)
    ours = DA3(SMALL).eval()
    ours.load_state_dict(single_view(theirs.state_dict()))
    pixels = torch.randn(1, 3, 84, 140, generator=torch.Generator().manual_seed(2))
    depth, confidence, features = run_upstream(theirs, pixels, SMALL.out_layers)
    with torch.no_grad():
        raw = ours(pixels)
    torch.testing.assert_close(raw.prediction, depth, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(raw.confidence, confidence, rtol=1e-4, atol=1e-6)
    scale = float(features.abs().max())
    torch.testing.assert_close(raw.features / scale, features / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("-small", SMALL),
        ("-base", BASE),
        ("-large", LARGE),
        ("mono-large", ONE_VIEW),
        ("metric-large", ONE_VIEW),
    ],
)
def test_da3_published_configurations_names_and_shapes(oracle, monkeypatch, name, config):
    """The whole published network, less what we leave out, is ours: no weight more or less."""
    from depth_anything_3.cfg import create_object, load_config

    # Without memory; only the rates of stochastic depth must be real numbers.
    monkeypatch.setattr(torch, "linspace", partial(torch.linspace, device="cpu"))
    with torch.device("meta"):
        theirs = create_object(
            load_config(str(oracle / f"depth_anything_3/configs/da3{name}.yaml"))
        )
        ours = DA3(config)
    wanted = {k: v.shape for k, v in single_view(theirs.state_dict()).items()}
    assert {k: v.shape for k, v in ours.state_dict().items()} == wanted
    assert len(wanted) < len(theirs.state_dict())


def test_da3_features_follow_the_image(assert_features_follow_the_image):
    torch.manual_seed(0)
    preprocess = dataclasses.replace(PREPROCESS, size=(280, 280))
    network = DA3(TINY).eval().requires_grad_(False)
    mde = Estimator("tiny", "r", "depth", preprocess, network)
    assert_features_follow_the_image(mde, 280)


@pytest.fixture
def small_file(tmp_path):
    """Random weights of DA3-SMALL in the form of the published file, cameras included."""
    model = DA3(SMALL)
    state = {f"model.{k}": v.clone() for k, v in model.state_dict().items()}
    state["model.cam_dec.fc_t.weight"] = torch.zeros(3, 768)
    state["model.head.scratch.refinenet1_aux.out_conv.bias"] = torch.zeros(64)
    save_file(state, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", state


def test_da3_published_file_loads_by_name(small_file):
    path, state = small_file
    mde = load_da3("da3-small", path, "r1")
    assert (mde.kind, mde.revision) == ("depth", "r1")
    for key, value in mde.network.state_dict().items():
        assert torch.equal(value, state[f"model.{key}"])
    image = np.random.default_rng(0).integers(0, 256, (30, 90, 3), dtype=np.uint8)
    output = mde(image)
    assert output.prediction.shape == (30, 90)
    assert output.features.shape == (64, 8 * 12, 8 * 36)  # 168×504 pixels
    assert not output.features.requires_grad
    assert bool((output.confidence > 1).all())
    assert bool((output.prediction > 0).all())
    assert output.options["size"] == [504, 504]


def test_da3_foreign_weights_are_refused(small_file, tmp_path):
    path, state = small_file
    del state["model.head.norm.weight"]
    save_file({**state, "model.head.sky": torch.zeros(1)}, path)
    with pytest.raises(InputError, match=r"1 are missing \(head.norm.weight \[768\]\).*\(head.sky"):
        load_da3("da3-small", path, "r1")
    save_file({"something": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="wanted the weights of da3-small, found others"):
        load_da3("da3-small", path, "r1")
    with pytest.raises(
        InputError, match="wanted the weights of da3-small, da3-base, da3-large, da3-mono"
    ):
        load_da3("owner/name", path, "r1")
    path.write_bytes(b"no tensors here")
    with pytest.raises(InputError, match="not a readable safetensors"):
        load_da3("da3-small", path, "r1")
