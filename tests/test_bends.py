import pytest
import torch

from scalefield.bends import Bends, Sights
from test_kernel import KERNEL, points


@pytest.mark.parametrize("pairs", [5, 1 << 18])
def test_matrix_products_give_what_the_kernel_gives(pairs, monkeypatch):
    monkeypatch.setattr("scalefield.bends.PAIRS_AT_ONCE", pairs)
    seen, anchors = points(11, 0), points(4, 1)
    middle, alpha = torch.tensor([0.5, 0.4]).double(), torch.tensor([1, -2, 0.5, 3]).double()
    place = seen.position - middle
    sights = Sights.of(place, seen.log_depth, seen.embedding, seen.amplitude)
    found = Bends(KERNEL, anchors, middle, torch.float64).weighted(sights, alpha)
    terms = range(len(KERNEL.terms))
    slow = torch.stack([KERNEL.bend(j, seen, anchors) @ alpha for j in terms], dim=1)
    torch.testing.assert_close(found, slow, atol=1e-5, rtol=0)
