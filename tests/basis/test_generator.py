import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.trunk import resize
from scalefield.errors import InputError

SMALL = GeneratorConfig(k=5, feature_channels=6, feature_width=4, width=16, dilations=(1, 2))


@pytest.fixture(scope="module")
def generator():
    torch.manual_seed(0)
    return Generator(SMALL).eval()


@settings(max_examples=15)
@given(size=st.tuples(st.integers(1, 30), st.integers(1, 30)))
def test_generator_gates_form_a_simplex_and_the_global_channel_is_its_gate(size):
    generator = Generator(SMALL)
    log_depth = torch.randn(2, 1, *size)
    basis_maps, gating = generator(torch.randn(2, 6, 3, 4), log_depth)
    assert basis_maps.shape == gating.shape == (2, 5, *size)
    assert bool((gating >= 0).all())
    torch.testing.assert_close(gating.sum(dim=1), torch.ones(2, *size))
    torch.testing.assert_close(basis_maps[:, 0], gating[:, 0])  # B₀ ≡ 1


def test_generator_absent_features_are_zeros(generator):
    log_depth = torch.randn(1, 1, 12, 9)
    absent = generator(None, log_depth).basis_maps
    torch.testing.assert_close(absent, generator(torch.zeros(1, 6, 4, 4), log_depth).basis_maps)
    assert not torch.allclose(absent, generator(torch.randn(1, 6, 4, 4), log_depth).basis_maps)


def test_generator_ablation_has_the_same_parameters_and_ignores_features():
    ablated = Generator(GeneratorConfig(k=5, feature_channels=6, width=16, zero_features=True))
    full = Generator(GeneratorConfig(k=5, feature_channels=6, width=16))
    assert ablated.parameter_count == full.parameter_count
    log_depth = torch.randn(1, 1, 12, 9)
    one, other = (ablated(torch.randn(1, 6, 4, 4), log_depth).basis_maps for _ in range(2))
    assert torch.equal(one, other)


def test_generator_default_has_the_promised_size():
    assert 300_000 < Generator(GeneratorConfig(k=8, feature_channels=64)).parameter_count < 500_000


def test_generator_features_of_another_mde_are_refused(generator):
    with pytest.raises(InputError, match="made for features of 6 channels, found 7"):
        generator(torch.randn(1, 7, 4, 4), torch.randn(1, 1, 8, 8))


def test_generator_float64_and_gradients(generator):
    double = Generator(SMALL).double()
    features = torch.randn(1, 6, 4, 4, dtype=torch.float64, requires_grad=True)
    basis_maps, _ = double(features, torch.randn(1, 1, 8, 8, dtype=torch.float64))
    assert basis_maps.dtype == torch.float64
    basis_maps.square().sum().backward()
    assert float(features.grad.abs().sum()) > 0


def test_generator_borders_are_not_printed_into_the_maps(generator):
    """A constant world has constant maps where coordinates are the only cue: no frame appears."""
    flat = torch.zeros(1, 1, 24, 24)
    with torch.no_grad():
        generator.trunk.stem[0].weight[:, -2:] = 0  # blind to coordinates
        maps = generator(None, flat).basis_maps
    assert float((maps.amax(dim=(2, 3)) - maps.amin(dim=(2, 3))).max()) < 1e-5


def test_generator_saving_and_loading(tmp_path, generator):
    generator.save(tmp_path)
    loaded = Generator.load(tmp_path)
    assert loaded.config == generator.config
    log_depth = torch.randn(1, 1, 8, 8)
    assert torch.equal(loaded(None, log_depth).basis_maps, generator(None, log_depth).basis_maps)


def test_generator_damaged_files_are_named(tmp_path, generator):
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        Generator.load(tmp_path)
    generator.save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not the weights of such a generator"):
        Generator.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"colour": 1}))
    with pytest.raises(InputError, match="colour"):
        Generator.load(tmp_path)


def test_resize_averages_when_shrinking():
    maps = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert resize(maps, (2, 2)).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert resize(maps, (8, 8)).shape == (1, 1, 8, 8)
