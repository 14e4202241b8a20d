"""`Recovery.explain()` for `basis` and `field`, and `scalefield explain`."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from scalefield import InputError, MDEOutput, samples
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.grids import upsample
from scalefield.basis.ridge import LITERAL, Ridge
from scalefield.basis.spectral import spectral_statistics
from scalefield.cli import main
from scalefield.methods.basis import Basis, anchor_embeddings, basis_maps
from scalefield.methods.field import Field
from scalefield.methods.median import Median

SHAPE = (48, 64)


@pytest.fixture
def output():
    v, u = torch.meshgrid(*(torch.linspace(0, 1, n) for n in SHAPE), indexing="ij")
    return MDEOutput(1 + u + 0.5 * v + 0.3 * (u > 0.5), "depth", model="made up")


def anchors_on(output, n=12, seed=0):
    rng = np.random.default_rng(seed)
    cells = rng.choice(SHAPE[0] * SHAPE[1], n, replace=False)
    v, u = np.divmod(cells, SHAPE[1])
    depth = output.prediction.numpy()[v, u]
    return Anchors(u, v, depth * np.exp(0.7 + 0.2 * np.sin(u / 9)))


def generator(ridge):
    torch.manual_seed(0)
    return Generator(GeneratorConfig(k=5, width=8, dilations=(1,), cells=64, ridge=ridge)).eval()


METHODS = {
    "literal": lambda: Basis(generator(LITERAL)),
    "centred": lambda: Basis(generator(Ridge())),
    "field": lambda: Field(robust=False),
}


@pytest.mark.parametrize("name", METHODS)
def test_explain_parts_sum_to_log_scale_and_shares_to_one(output, name):
    recovery = recover_from(output, anchors_on(output), METHODS[name]()).numpy()
    explanation = recovery.explain()
    whole = torch.from_numpy(np.sum(list(explanation.parts.values()), axis=0))
    if whole.shape != recovery.log_scale.shape:
        whole = upsample(whole[None, None], SHAPE)[0, 0]
    np.testing.assert_allclose(whole.numpy(), recovery.log_scale, atol=2e-5)
    assert sum(explanation.shares.values()) == pytest.approx(1, abs=1e-4)
    sizes = [abs(explanation.shares[part]) for part in explanation.ranked]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", METHODS)
def test_explain_influence_is_the_mean_change_of_the_field(output, name):
    """Each anchor's log-depth is raised a little; the field moves by its influence on average."""
    method, anchors, step = METHODS[name](), anchors_on(output), 1e-3
    base = recover_from(output, anchors, method)
    influence = base.explain().influence
    assert influence.shape == (len(anchors),)
    order = np.argsort(influence)
    for i in (order[-1], order[0]):
        depth_m = anchors.depth_m.copy()
        depth_m[i] *= np.exp(step)
        moved = recover_from(output, Anchors(anchors.u, anchors.v, depth_m), method)
        change = float((moved.log_scale - base.log_scale).abs().mean()) / step
        # The median of the targets, which is taken off and put back, moves in steps; the mean over
        # the lattice is not the mean over all pixels.
        assert change == pytest.approx(influence[i], rel=0.25, abs=0.06)


def test_explain_of_basis_has_weights_gates_and_the_spectrum(output):
    method, anchors = METHODS["literal"](), anchors_on(output)
    recovery = recover_from(output, anchors, method)
    explanation = recovery.explain()
    assert list(explanation.weights) == [f"E{m}" for m in range(5)]
    np.testing.assert_allclose(list(explanation.weights.values()), recovery.weights, rtol=1e-6)
    part = recovery.basis_maps[2] * recovery.weights[2]
    np.testing.assert_allclose(explanation.parts["E2"], part, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(np.sum(list(explanation.gating.values()), axis=0), 1, rtol=1e-5)
    maps = basis_maps(method.load(), output)
    y = np.log(anchors.depth_m) - np.log(output.prediction.numpy()[anchors.pixels(SHAPE)])
    expected = spectral_statistics(
        anchor_embeddings(maps, output, anchors), maps.gating[0], torch.from_numpy(y)
    )
    assert explanation.spectrum.eigenvalues == pytest.approx(expected.eigenvalues)
    assert explanation.spectrum.alpha1_share == pytest.approx(expected.alpha1_share)
    arrays = explanation.arrays()
    assert arrays["parts"].shape == (6, *recovery.basis_maps.shape[1:])
    assert arrays["names"].tolist() == ["offset", *explanation.weights]


def test_explain_of_field_agrees_with_decompose_and_influence(output):
    method, anchors = METHODS["field"](), anchors_on(output)
    explanation = recover_from(output, anchors, method).explain()
    decomposition = method.decompose(output, anchors)
    assert list(explanation.parts) == list(decomposition.parts)
    assert explanation.shares == pytest.approx(decomposition.shares)
    assert explanation.spectrum is None


@pytest.mark.parametrize("name", METHODS)
def test_explain_draws_one_picture_and_writes_files(output, name, tmp_path):
    recovery = recover_from(output, anchors_on(output), METHODS[name]())
    folder = recovery.explain().save(tmp_path / "explained")
    assert sorted(p.name for p in folder.iterdir()) == ["explanation.jpg", "explanation.npz"]
    picture = Image.open(folder / "explanation.jpg")
    assert picture.size[0] > 1000
    with np.load(folder / "explanation.npz") as arrays:
        assert {"names", "parts", "shares", "influence", "anchors_uv"} <= set(arrays)


def test_explain_names_methods_that_have_no_explanation(output):
    anchors = anchors_on(output)
    recovery = recover_from(output, anchors, Basis(generator(LITERAL)))
    restored = pickle.loads(pickle.dumps(recovery))
    np.testing.assert_array_equal(restored.depth_m, recovery.depth_m)
    for other in (recover_from(output, anchors, Median()), restored):
        with pytest.raises(InputError, match="has no explanation; those by basis and field"):
            other.explain()
    with pytest.raises(InputError, match="has no explanation"):
        recover_from(output, Anchors([], [], []), Field()).explain()


def test_explain_command_writes_the_picture_and_prints_shares(tmp_path, capsys, output):
    room = samples.load()
    np.save(tmp_path / "d.npy", np.sqrt(room.depth_m))
    flags = ["--depth", str(tmp_path / "d.npy"), "--kind", "depth", "--out", str(tmp_path / "out")]
    command = ["explain", str(room.image_path), "--anchors", str(room.anchors_path), *flags]
    assert main([*command, "--method", "basis", "--option", "k=8"]) == 0
    assert "% of the field's variance" in capsys.readouterr().out
    assert (tmp_path / "out" / "explanation.jpg").is_file()
    assert (tmp_path / "out" / "depth.png").is_file()
    assert main([*command[:2], "--anchors", str(tmp_path / "none.csv"), *flags]) == 2
    assert "none.csv: no such file" in capsys.readouterr().err
