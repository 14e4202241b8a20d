"""The same inputs and the same seed give the same bytes, whatever the number of workers.

That a second run of every command is the first one again, test_interruption.py shows as well.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import scalefield as sf
from scalefield.basis.pretrained import load_generator
from scalefield.cli import main
from scalefield.io.weights import shipped
from scalefield.mde.lite import load_lite
from scalefield.methods import METHODS
from scalefield.methods.field import load_field

REPEAT = int(os.environ.get("SCALEFIELD_REPEAT", "1"))
"""Times that workers are compared, for a suspicion that comes only now and then."""


def content(out: Path) -> dict[str, bytes]:
    """Every file of a run without times."""
    paths = (p for p in out.rglob("*") if p.is_file())
    found = {p.relative_to(out).as_posix(): p.read_bytes() for p in paths}
    return {name: data for name, data in found.items() if not name.startswith("timings")}


@pytest.mark.slow
@pytest.mark.parametrize("time", range(REPEAT))
@pytest.mark.parametrize("command", ["label", "evaluate"])
def test_commands_give_the_same_bytes_for_any_number_of_workers(command, time, world, tmp_path):
    """The number of threads of the parent process does not matter either."""
    runs = []
    for workers, threads in (("1", 2), ("2", 1)):
        words = [w.replace("global", "basis") for w in world.words(command, tmp_path / workers)]
        words[words.index("--workers") + 1] = workers
        torch.set_num_threads(threads)
        try:
            assert main(words) == 0
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
        runs.append(content(tmp_path / workers))
    assert runs[0].keys() == runs[1].keys()
    assert len(runs[0]) > 4
    assert not [name for name in runs[0] if runs[0][name] != runs[1][name]]


def test_loaded_weights_are_aligned_in_memory():
    """MKL uses other code for addresses that are not multiples of 16; the last digit differs."""
    networks = [
        load_lite().network.net,
        *map(load_generator, shipped("basis-")),
        load_field("field").net,
    ]
    for network in networks:
        placed = [t.data_ptr() % 16 for t in network.state_dict().values() if t.numel()]
        assert not any(placed)


@pytest.mark.parametrize("name", METHODS)
def test_recover_gives_the_same_bytes_for_any_number_of_threads(name):
    """Aligners give the same bytes. Convolutions split their sums among threads, so that what
    has basis maps agrees to a part in 10⁵; commands that promise bytes run on one thread."""
    v, u = np.indices((96, 128))
    relative = 2 + np.sin(u / 17) + v / 60
    pixels = np.random.default_rng(0).integers(0, 96, (2, 40))
    anchors = sf.Anchors(pixels[1], pixels[0], 3 * relative[pixels[0], pixels[1]] ** 1.1)
    options = {"superpixels": 20} if name == "region" else {}
    depths = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = sf.recover(
                None, anchors, mde_depth=relative, kind="depth", method=name, **options
            )
            depths.append(found.depth_m)
    finally:
        torch.set_num_threads(1)
    for other in depths[1:]:
        rtol = 0 if found.basis_maps is None else 1e-5
        np.testing.assert_allclose(other, depths[0], rtol=rtol)
