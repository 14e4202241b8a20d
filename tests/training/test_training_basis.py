import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.ridge import LITERAL
from scalefield.errors import InputError
from scalefield.training.bank import make_bank
from scalefield.training.basis import LOGGED, train_basis, validation
from scalefield.training.basis_batches import training_batch
from scalefield.training.basis_config import BasisTraining, default_preset, paper_preset
from scalefield.training.cross_fit import CrossFit
from scalefield.training.data import draw_anchors, epoch_batches, prepare, prepare_frame
from training.world import BiasedMDE, World

CONFIG = BasisTraining(k=4, epochs=3, batch=4, anchors=(5, 15))


@pytest.fixture(scope="module")
def frames():
    return {split: prepare(World(), split, BiasedMDE(), ("low",)) for split in ("train", "val")}


def test_training_makes_the_field_better(tmp_path, frames):
    torch.manual_seed(0)
    before = validation(Generator(GeneratorConfig(k=4, feature_channels=2)), frames["val"], CONFIG)
    train_basis(CONFIG, frames["train"], frames["val"], tmp_path, device="cpu", show_progress=False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 9]
    assert lines[-1]["val_absrel"] < 0.8 * before["absrel"]
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["config"]["k"] == 4
    assert "torch" in record["provenance"]["versions"]
    assert Generator.load(tmp_path / "model").config.k == 4
    assert "K = 4" in (tmp_path / "model" / "README.md").read_text()
    assert (tmp_path / "progress.png").stat().st_size > 10_000


def test_another_configuration_is_not_mixed_in(tmp_path, frames):
    data = frames["train"][:2], frames["val"][:1]
    one = BasisTraining(k=4, epochs=1, batch=2)
    train_basis(one, *data, tmp_path, device="cpu", show_progress=False)
    other = BasisTraining(k=4, epochs=1, batch=2, rate=0.5)
    with pytest.raises(InputError, match="another rate"):
        train_basis(other, *data, tmp_path, device="cpu", show_progress=False)


def test_train_basis_that_diverges_is_a_sentence(tmp_path, frames):
    config = BasisTraining(k=4, epochs=1, batch=2, rate=1e30, clip=0.0)
    data = frames["train"][:4], frames["val"][:1]
    with pytest.raises(InputError, match="the training has diverged"):
        train_basis(config, *data, tmp_path, device="cpu", show_progress=False)


def test_a_loss_that_is_not_finite_ends_the_training(frames, monkeypatch):
    """A GPU does not report that the solve has failed; the validation loss shows it."""
    losses = dict.fromkeys(LOGGED, torch.tensor(torch.nan))
    monkeypatch.setattr("scalefield.training.basis.step_losses", lambda *_: losses)
    generator = Generator(GeneratorConfig(k=4))
    with pytest.raises(InputError, match="the training has diverged"):
        validation(generator, frames["val"], CONFIG)


def test_fine_tuning_starts_from_the_other_model(tmp_path, frames):
    data = frames["train"][:2], frames["val"][:1]
    config = BasisTraining(k=4, epochs=1, batch=2)
    first = train_basis(config, *data, tmp_path / "a", device="cpu", show_progress=False)
    still = BasisTraining(k=4, epochs=1, batch=2, rate=0.0)
    second = train_basis(
        still, *data, tmp_path / "b", device="cpu", start_from=first, show_progress=False
    )
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(InputError, match="K = 4, not 8"):
        train_basis(BasisTraining(k=8), *data, tmp_path / "c", start_from=first)


def run_world(out: Path, epochs: int, processes: int = 1) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [sys.executable, *(launcher if processes > 1 else []), __file__.replace(
        "test_training_basis", "world"), str(out), str(epochs)]  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    finish(run_world(out, 4))
    return out


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, undisturbed):
    process = run_world(tmp_path, 4)
    checkpoint = tmp_path / "checkpoint.safetensors"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it finished before it could be killed"
    finish(run_world(tmp_path, 4))
    for name in ("model/model.safetensors", "checkpoint.safetensors", "metrics.jsonl"):
        assert (tmp_path / name).read_bytes() == (undisturbed / name).read_bytes(), name


def test_a_run_goes_on_from_within_an_epoch(tmp_path, frames, monkeypatch):
    from scalefield.training import basis

    config = BasisTraining(k=4, epochs=2, batch=2, anchors=(5, 15))
    data = frames["train"], frames["val"]
    options = {"device": "cpu", "show_progress": False, "checkpoint_every": 2}
    train_basis(config, *data, tmp_path / "whole", **options)
    real = basis.training_step

    def cut(*args, **kwargs):
        if args[4] == 9:  # the fourth step of the second epoch; the last checkpoint was at eight
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(basis, "training_step", cut)
        with pytest.raises(KeyboardInterrupt):
            train_basis(config, *data, tmp_path / "cut", **options)
    steps = []
    monkeypatch.setattr(basis, "training_step", lambda *a, **k: steps.append(a[4]) or real(*a, **k))
    train_basis(config, *data, tmp_path / "cut", **options)
    assert steps == [8, 9, 10, 11]
    for name in ("model/model.safetensors", "checkpoint.safetensors", "metrics.jsonl"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("whole", "cut"))
        assert one == other, name


def test_anchors_of_the_protocol_are_the_same_in_every_step(frames):
    config = paper_preset(4, "low")
    one, other = (training_batch(frames["train"][:3], config, step) for step in (0, 7))
    assert torch.equal(one.anchors.positions, other.anchors.positions)
    assert torch.equal(one.pixels.positions, other.pixels.positions)
    with pytest.raises(InputError, match="prepared without the anchors of the regime high"):
        training_batch(frames["train"][:1], paper_preset(4, "high"), 0)


def test_uniform_counts_reach_both_ends(frames):
    from scalefield.training.basis_batches import draw_count

    config = BasisTraining(anchors=(3, 6), counts="uniform")
    rng = np.random.default_rng(0)
    found = np.bincount([draw_count(config, rng) for _ in range(400)], minlength=7)[3:]
    assert found.min() > 70


def test_without_an_average_the_last_weights_are_saved(tmp_path, frames):
    config = BasisTraining(k=4, epochs=1, batch=4, ema=0.0)
    train_basis(config, *frames.values(), tmp_path, device="cpu", show_progress=False)
    from safetensors.torch import load_file

    state = load_file(tmp_path / "checkpoint.safetensors")
    for name in [k for k in state if k.startswith("model/")]:
        assert torch.equal(state[name], state[name.replace("model/", "ema/", 1)])


def test_two_processes_train_as_one(tmp_path, undisturbed):
    finish(run_world(tmp_path, 4, processes=2))
    read = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (undisturbed, tmp_path)
    ]
    for alone, together in zip(*read, strict=True):
        assert together["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-3)
        assert together["val_dense"] == pytest.approx(alone["val_dense"], rel=1e-3)


def test_presets():
    paper = paper_preset(30, "medium")
    assert (paper.epochs, paper.anchors, paper.ridge) == (25, (100, 120), LITERAL)
    assert (paper.losses.anchor, paper.losses.decor, paper.losses.gate) == (0.1, 1e-4, 1e-4)
    assert paper_preset(8, "high", fine_tune=True).epochs == 5
    assert default_preset(8, "low").anchors == (1, 30)
    assert default_preset(50, "medium", seed=3).seed == 3


def test_every_frame_comes_once_an_epoch_in_batches_of_one_bucket(frames):
    batches = epoch_batches(frames["train"], 5, seed=1, epoch=2)
    assert sorted(i for batch in batches for i in batch) == list(range(12))
    assert max(map(len, batches)) <= 5
    assert batches == epoch_batches(frames["train"], 5, seed=1, epoch=2)
    assert batches != epoch_batches(frames["train"], 5, seed=1, epoch=3)


def test_a_frame_s_draw_does_not_depend_on_its_company(frames):
    alone = training_batch(frames["train"][:1], CONFIG, 7)
    among = training_batch(frames["train"][:4], CONFIG, 7)
    n = alone.anchors.y.shape[1]
    torch.testing.assert_close(alone.anchors.y[0], among.anchors.y[0, :n])
    assert float(among.anchor_weights[0, n:].sum()) == 0


def test_anchors_are_table_rows_spread_over_the_image(frames):
    frame = frames["train"][0]
    rows = draw_anchors(frame, 12, 0.0, np.random.default_rng(0))
    assert len(np.unique(rows)) == 12
    u, v = frame.pixels[rows].T
    assert u.min() < 8 < 24 < u.max()
    assert v.min() < 8 < 16 < v.max()


def test_mirroring_and_stretching_change_both_sides_alike(frames):
    """A mirrored frame holds the same anchors at mirrored places; D^γ shows in map and table."""
    frame, rows = frames["train"][0], np.arange(6)
    plain = make_bank([frame]).batch([rows], [rows])
    turned = make_bank([frame]).batch([rows], [rows], mirror=[True], stretch=[2.0])
    flip = torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(turned.anchors.positions, plain.anchors.positions * flip)
    torch.testing.assert_close(turned.log_depth, plain.log_depth.flip(-1) * 2)
    torch.testing.assert_close(turned.pixels.mde_log_depth, plain.pixels.mde_log_depth * 2)
    torch.testing.assert_close(turned.pixels.true_log_depth, plain.pixels.true_log_depth)
    torch.testing.assert_close(turned.anchors.y, turned.pixels.y)


def test_the_protocol_s_anchors_stand_in_the_table(frames):
    for frame in frames["val"]:
        assert 10 <= len(frame.anchors["low"]) <= 15
        assert frame.anchors["low"].max() < len(frame.pixels)


def test_a_frame_is_never_predicted_by_a_model_that_saw_its_scene():
    class Marked(BiasedMDE):
        def __init__(self, mark):
            self.mark = mark

        def __call__(self, image):
            output = super().__call__(image)
            return type(output)(output.prediction * self.mark, "depth")

    blind_to_0, blind_to_1 = Marked(1.0), Marked(100.0)
    models = CrossFit(
        ((blind_to_0, frozenset({"scene1", "scene2"})), (blind_to_1, frozenset({"scene0"})))
    )
    assert models.for_scene("scene0") is blind_to_0
    assert models.for_scene("scene1") is blind_to_1
    world = World()
    predicted = prepare_frame(world.load("room/01"), models).mde_log_depth
    reference = prepare_frame(world.load("room/01"), Marked(1.0)).mde_log_depth
    np.testing.assert_allclose(predicted - reference, np.log(100), rtol=1e-4)
    with pytest.raises(InputError, match="trained on the scene 'scene9'"):
        CrossFit(((blind_to_0, frozenset({"scene9"})),)).for_scene("scene9")
