"""`affine:NAME` and `median:NAME`: an estimator's output without its shift or its unit."""

import numpy as np
import pytest
import torch

from scalefield.commands.data import DataOptions
from scalefield.errors import InputError
from scalefield.mde import MDEOutput, load_mde, open_mde
from scalefield.mde.affine import AffineMDE, Normalisation


def depth_output(**changed) -> MDEOutput:
    depth = torch.linspace(1, 8, 48).reshape(6, 8)
    return MDEOutput(**{"prediction": depth, "kind": "depth", "model": "net"} | changed)


class Net:
    name, revision, options = "net", "r1", {"size": 8}

    def __call__(self, image: np.ndarray) -> MDEOutput:
        return depth_output(prediction=torch.tensor(image[..., 0]).float() + 1)


net = Net()


def test_normalisation_is_the_min_max_normalised_inverse_of_depth():
    output = Normalisation()(depth_output())
    assert (output.kind, output.affine, output.model) == ("disparity", True, "affine:net")
    expected = (1 / depth_output().prediction - 1 / 8) / (1 - 1 / 8)
    torch.testing.assert_close(output.prediction, expected, atol=1e-6, rtol=0)
    assert (float(output.prediction.min()), float(output.prediction.max())) == (0, 1)


def test_normalisation_of_disparity_removes_scale_and_shift():
    disparity = torch.rand(6, 8, generator=torch.Generator().manual_seed(0))
    outputs = [
        Normalisation()(depth_output(prediction=d, kind="disparity", affine=True))
        for d in (disparity, 7 * disparity - 3)
    ]
    torch.testing.assert_close(outputs[0].prediction, outputs[1].prediction)


def test_normalisation_to_8_bits_has_whole_numbers_up_to_255():
    values = Normalisation("affine8")(depth_output()).prediction
    assert torch.equal(values, values.round())
    assert (float(values.min()), float(values.max())) == (0, 255)
    exact = 255 * Normalisation()(depth_output()).prediction
    assert float((values - exact).abs().max()) <= 0.5


def test_normalisation_keeps_holes_and_constant_maps():
    depth = depth_output().prediction.clone()
    depth[0], depth[1] = torch.nan, 0
    output = Normalisation()(depth_output(prediction=depth))
    assert torch.equal(output.valid, depth > 0)
    assert float(output.prediction[output.valid].max()) == 1
    assert not Normalisation()(depth_output(prediction=torch.full((6, 8), 2.0))).prediction.any()
    empty = Normalisation()(depth_output(prediction=torch.full((6, 8), torch.nan)))
    assert not empty.valid.any()


@pytest.mark.parametrize("kind", ["depth", "disparity"])
@pytest.mark.parametrize("unit", [1e-4, 1.0, 250.0])
def test_normalisation_to_the_median_removes_the_unit_alone(kind, unit):
    values = 1 + torch.rand(6, 8, generator=torch.Generator().manual_seed(0))
    values[0, :3] = torch.nan
    output = depth_output(prediction=unit * values, kind=kind, affine=kind == "disparity")
    given, found = (change(output) for change in (lambda o: o, Normalisation("median")))
    assert (found.model, found.kind, found.affine) == ("median:net", kind, given.affine)
    assert torch.equal(found.valid, given.valid)
    assert float(found.mde_depth[found.valid].median()) == pytest.approx(1)
    ratio = found.mde_depth / given.mde_depth
    torch.testing.assert_close(ratio, ratio[-1, -1].expand_as(ratio))


def test_normalisation_of_affine_depth_is_refused():
    with pytest.raises(InputError, match="net gives affine-invariant depth, whose inverse"):
        Normalisation()(depth_output(affine=True))


def test_open_mde_affine_wraps_names_and_import_paths(tmp_path):
    image = np.arange(48, dtype=np.uint8).reshape(6, 8, 1).repeat(3, 2)
    for name, top in (("affine", 1), ("affine8", 255)):
        mde = open_mde(f"{name}:{__name__}:net")
        assert isinstance(mde, AffineMDE)
        assert (mde.name, mde.revision, mde.options) == (f"{name}:net", "r1", {"size": 8})
        assert float(mde(image).prediction.max()) == top
    # The cache keeps what the estimator gave, so that both share it.
    for name in (f"affine:{__name__}:net", f"{__name__}:net"):
        open_mde(name, cache=tmp_path)(image)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_load_mde_affine_names_without_an_estimator_get_a_sentence():
    with pytest.raises(InputError, match="'affine:' lacks the estimator's name"):
        load_mde("affine:")
    with pytest.raises(InputError, match="no MDE 'nothing'"):
        load_mde("affine:nothing")
    for name in ("stored", "affine:stored"):
        with pytest.raises(InputError, match="predictions that come with the frames"):
            load_mde(name)


@pytest.mark.parametrize(
    ("mde", "shown"),
    [
        ("affine:lite", "affine:lite"),
        ("affine8:private/fastdepth.onnx", "affine8:fastdepth"),
        ("median:private/fastdepth.onnx", "median:fastdepth"),
        ("private/fastdepth.onnx", "fastdepth"),
        ("mine:net", "mine:net"),
    ],
)
def test_data_options_mde_name_hides_folders(tmp_path, mde, shown):
    assert DataOptions(tmp_path, mde).mde_name == shown
