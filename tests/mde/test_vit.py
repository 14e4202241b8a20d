import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from scalefield.errors import InputError
from scalefield.mde.vit import PATCH, VitNet, VitSize, load_vit

TINY = VitSize(width=32, depth=4, heads=2, grid=5, decoder=16)


def written(folder, size=TINY):
    torch.manual_seed(0)
    net = VitNet(size)
    folder.mkdir()
    save_file({k: v.half() for k, v in net.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"size": asdict(size), "revision": "r1"}))


def test_vit_encoder_is_transformers_dinov2():
    """Random weights copied into the reference library; both list them in the same order."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=5 * PATCH,
        patch_size=PATCH,
        layerscale_value=0.5,
    )
    theirs = transformers.Dinov2Model(config).eval()
    state = {k: torch.randn_like(v) * 0.2 for k, v in theirs.state_dict().items()}
    theirs.load_state_dict(state)
    positions = state["embeddings.position_embeddings"]
    ours = {
        "embed.weight": state["embeddings.patch_embeddings.projection.weight"],
        "embed.bias": state["embeddings.patch_embeddings.projection.bias"],
        "cls": state["embeddings.cls_token"],
        "cls_position": positions[:, :1],
        "positions": positions[:, 1:].transpose(1, 2).unflatten(2, (5, 5)),
        "norm.weight": state["layernorm.weight"],
        "norm.bias": state["layernorm.bias"],
    }
    for i in range(4):
        block = [v for k, v in state.items() if k.startswith(f"encoder.layer.{i}.")]
        # norm1, then query, key, value and output with their biases, then scale, norm2, MLP, scale
        w1, b1, qw, qb, kw, kb, vw, vb, ow, ob, s1, w2, b2, f1w, f1b, f2w, f2b, s2 = block
        ours |= {
            f"blocks.{i}.norm1.weight": w1, f"blocks.{i}.norm1.bias": b1,
            f"blocks.{i}.qkv.weight": torch.cat([qw, kw, vw]),
            f"blocks.{i}.qkv.bias": torch.cat([qb, kb, vb]),
            f"blocks.{i}.project.weight": ow, f"blocks.{i}.project.bias": ob,
            f"blocks.{i}.scale1": s1, f"blocks.{i}.scale2": s2,
            f"blocks.{i}.norm2.weight": w2, f"blocks.{i}.norm2.bias": b2,
            f"blocks.{i}.fc1.weight": f1w, f"blocks.{i}.fc1.bias": f1b,
            f"blocks.{i}.fc2.weight": f2w, f"blocks.{i}.fc2.bias": f2b,
        }  # fmt: skip
    net = VitNet(TINY).eval()
    net.encoder.load_state_dict(ours)
    pixels = torch.randn(2, 3, 4 * PATCH, 7 * PATCH)
    with torch.no_grad():
        expected = theirs(pixels).last_hidden_state[:, 1:].transpose(1, 2).unflatten(2, (4, 7))
        torch.testing.assert_close(net.encoder(pixels)[-1], expected, atol=2e-5, rtol=1e-4)


def test_vit_it_is_an_mde_like_any_other(tmp_path):
    written(tmp_path / "model")
    mde = load_vit(tmp_path / "model")
    image = np.random.default_rng(0).integers(0, 256, (90, 130, 3), np.uint8)
    output = mde(image)
    assert (output.kind, output.shape) == ("depth", (90, 130))
    rows, columns = (side // PATCH * 4 for side in mde.preprocess.target((90, 130)))
    assert output.features.shape[1:] == (rows, columns)
    assert (output.model, output.revision) == ("vit-s", "r1")
    assert bool((output.prediction > 0).all())
    assert np.array_equal(output.image.numpy(), image)


def test_vit_branches_are_left_out_in_training_only():
    torch.manual_seed(0)
    net = VitNet(VitSize(width=32, depth=4, heads=2, grid=5, decoder=16, drop_path=0.5))
    pixels = torch.rand(1, 3, 28, 28)
    with torch.no_grad():
        assert torch.equal(net.eval()(pixels), net(pixels))
        assert not torch.equal(net.train()(pixels), net(pixels))


def test_vit_what_a_branch_gives_stays_the_same_on_average():
    torch.manual_seed(0)
    block = VitNet(VitSize(width=32, depth=4, heads=2, drop_path=0.3)).encoder.blocks[0].train()
    kept = block.drop_path(torch.ones(20_000, 1, 1))
    assert sorted(kept.unique().tolist()) == pytest.approx([0, 1 / 0.7])
    assert kept.mean().item() == pytest.approx(1, abs=0.02)


def test_vit_other_weights_are_refused(tmp_path):
    with pytest.raises(InputError, match="not the weights of vit-s"):
        load_vit(tmp_path)
    written(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["size"]["depth"] = 8
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="not the weights of vit-s"):
        load_vit(tmp_path / "model")
