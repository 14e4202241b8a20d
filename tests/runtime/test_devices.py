"""Settings of the process that hold inside a block: threads and precision."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from scalefield.runtime.devices import full_precision, on_device
from scalefield.runtime.threads import one_thread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_thread_holds_inside_its_block_only():
    with one_thread():
        assert torch.get_num_threads() == 1
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_one_thread_restores_the_setting_after_an_error():
    with pytest.raises(RuntimeError), one_thread():
        torch.linalg.cholesky(-torch.eye(2))
    assert torch.get_num_threads() == 2


def test_one_thread_restores_the_setting_after_overlapping_blocks():
    """The second begins before the first has ended, and ends after it."""
    both, first_left = Barrier(2), Barrier(2)

    def first() -> None:
        with one_thread():
            both.wait(600)
        first_left.wait(600)

    def second() -> None:
        with one_thread():
            both.wait(600)
            first_left.wait(600)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()
    assert torch.get_num_threads() == 2


def test_full_precision_ends_with_its_block():
    assert torch.backends.cudnn.allow_tf32
    with full_precision():
        kept = getattr(torch.backends.cudnn, "conv", None)  # by operation since torch 2.9
        by_name = hasattr(kept, "fp32_precision")
        assert kept.fp32_precision == "ieee" if by_name else not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32


def test_a_network_is_copied_to_another_device_and_stays_where_it_is():
    """Other threads may be using it there."""
    network, elsewhere = torch.nn.Linear(2, 3), torch.device("meta")
    moved = on_device(network, elsewhere)
    assert moved is not network
    assert {x.device.type for x in moved.parameters()} == {"meta"}
    assert {x.device.type for x in network.parameters()} == {"cpu"}
    assert on_device(network, elsewhere) is moved
    assert on_device(network, torch.device("cpu")) is network
