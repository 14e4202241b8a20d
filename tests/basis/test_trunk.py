import pytest
import torch
import torch.nn.functional as nnf

from scalefield.basis.trunk import Trunk, conv, convolve, norm
from scalefield.runtime.threads import one_thread


@pytest.fixture
def five_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 3), (1, 8)])
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 9), (23, 17)])
@torch.no_grad()
def test_convolve_in_bands_equals_the_layers_one_after_another(
    five_threads, size, stride, dilation
):
    torch.manual_seed(0)
    layer, before, x = conv(16, 8, stride, dilation), norm(16), torch.randn(2, 16, *size)
    torch.nn.init.normal_(before.weight)
    torch.nn.init.normal_(before.bias)
    with one_thread():
        plain, normalised = convolve(layer, x), convolve(layer, x, before)
    torch.testing.assert_close(plain, layer(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normalised, layer(nnf.gelu(before(x))), rtol=1e-4, atol=1e-5)
    assert torch.get_num_threads() == 5


def test_trunk_is_the_same_in_bands_and_with_gradients(five_threads):
    torch.manual_seed(0)
    trunk, cues = Trunk(5, 16, (1, 2)), torch.randn(1, 5, 22, 31)
    with one_thread():
        whole = trunk(cues)
        with torch.no_grad():
            bands = trunk(cues)
    assert whole.requires_grad
    torch.testing.assert_close(bands, whole.detach(), rtol=1e-4, atol=1e-5)
