import math

import pytest
import torch

from scalefield.basis.losses import (
    LossWeights,
    anchor_loss,
    decorrelation_loss,
    dense_loss,
    gate_loss,
    weighted_mean,
)


def test_loss_weights_weights_are_the_papers():
    assert (LossWeights().anchor, LossWeights().decor, LossWeights().gate) == (0.1, 1e-4, 1e-4)


def test_dense_loss_is_smooth_l1_over_known_pixels():
    predicted = torch.tensor([[0.0, 0.5, 3.0, 99.0]])
    truth = torch.zeros(1, 4)
    known = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    expected = (0 + 0.5 * 0.5**2 + (3 - 0.5)) / 3
    assert dense_loss(predicted, truth, known).item() == pytest.approx(expected)


def test_anchor_loss_is_a_mean_of_squares_in_each_image():
    predicted, y = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.zeros(2, 2)
    weights = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert anchor_loss(predicted, y, weights).item() == pytest.approx((2.5 + 0.0) / 2)


def test_decorrelation_loss_decorrelation_is_zero_for_orthogonal_maps_and_one_for_equal_ones():
    orthogonal = torch.eye(4).reshape(1, 4, 2, 2) * 3
    assert decorrelation_loss(orthogonal).item() == pytest.approx(0, abs=1e-9)
    equal = torch.ones(1, 4, 2, 2) * torch.tensor([1.0, -2.0, 3.0, 4.0])[None, :, None, None]
    assert decorrelation_loss(equal).item() == pytest.approx(1)


def test_decorrelation_loss_decorrelation_equals_the_double_sum():
    maps = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    total = 0.0
    for image in maps.flatten(2):
        unit = [e / e.norm() for e in image]
        total += sum(float(unit[i] @ unit[j]) ** 2 for i in range(3) for j in range(3) if i != j)
    assert decorrelation_loss(maps).item() == pytest.approx(total / 2 / 6)


def test_gate_loss_is_negative_entropy_lowest_for_uniform_gates():
    uniform = torch.full((1, 4, 3, 3), 0.25)
    assert gate_loss(uniform).item() == pytest.approx(-math.log(4))
    assert gate_loss(uniform, "sum").item() == pytest.approx(-9 * math.log(4))
    assert gate_loss(uniform, "patches").item() == pytest.approx(-9 / 64 * math.log(4))
    one_hot = torch.zeros(1, 4, 3, 3)
    one_hot[:, 2] = 1
    assert gate_loss(one_hot).item() == 0


def test_losses_have_gradients():
    maps = torch.rand(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(decorrelation_loss, maps)
    assert torch.autograd.gradcheck(lambda g: gate_loss(g.softmax(1)), maps)


def test_losses_image_without_weight_counts_as_zero_not_as_nan():
    assert weighted_mean(torch.ones(2, 3), torch.tensor([[1.0, 1, 1], [0, 0, 0]])).item() == 0.5
