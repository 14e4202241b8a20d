import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from scalefield.errors import InputError
from scalefield.mde import open_mde
from scalefield.mde.lite import load_lite
from scalefield.training import loop
from scalefield.training.augmentation import colour_jitter, random_crops, random_erasing
from scalefield.training.cross_fit import known_scenes, trained_on
from scalefield.training.loop import Trainer, save_checkpoint, step_generator
from scalefield.training.mde import (
    MDETraining,
    aligned_absrel,
    fold_of,
    gradient_loss,
    load_frames,
    relative_loss,
    train_mde,
)
from training.world import World


class Photographs(World):
    """The same world at a size that the network can see."""

    def load(self, name):
        frame = super().load(name)
        grow = lambda x: x.repeat(4, 0).repeat(4, 1)  # noqa: E731
        return type(frame)(
            name, "room", frame.scene, grow(frame.image), grow(frame.depth_m), (0.1, 10.0)
        )


def test_image_and_depth_stay_together_under_augmentation():
    """Brightness is depth in this world, so after any window both must still agree."""
    bank = load_frames(Photographs(), MDETraining(), torch.device("cpu"))
    images, log_depth = random_crops(bank, torch.arange(12), (64, 96), step_generator(0, 5))
    assert images.shape == (12, 3, 64, 96)
    assert log_depth.shape == (12, 1, 32, 48)
    for i in range(12):
        known = torch.isfinite(log_depth[i, 0])
        assert float(known.float().mean()) > 0.8
        seen = torch.nn.functional.avg_pool2d(images[i, :1], 2)[0][known]
        relation = np.corrcoef(seen.numpy(), log_depth[i, 0][known].exp().numpy())[0, 1]
        assert relation > 0.95


def test_colours_change_and_stay_in_range():
    images = torch.rand(4, 3, 16, 16) * 2 - 1
    out = colour_jitter(images, step_generator(0, 1))
    assert float(out.min()) >= -1
    assert float(out.max()) <= 1
    assert not torch.allclose(out, images, atol=0.05)


def test_half_of_the_images_lose_a_rectangle_and_nothing_else():
    images = torch.linspace(-1, 1, 40).expand(200, 3, 30, 40)
    out = random_erasing(images, step_generator(0, 1))
    changed = (out != images).any(dim=1)
    hit = changed.flatten(1).any(dim=1)
    assert 80 <= int(hit.sum()) <= 120
    assert float(changed[hit].float().mean(dim=(1, 2)).max()) <= 0.17  # 0.4 × 0.4, and its rim
    for image, hole in zip(out[hit], changed[hit], strict=True):
        assert all(len(channel[hole].unique()) == 1 for channel in image)
    assert float(out.abs().max()) <= 1


def test_the_offset_removed_is_the_median_of_known_pixels():
    truth = torch.full((2, 1, 3, 5), torch.nan)
    truth[0, 0, 0] = torch.tensor([0.0, 0.0, 0.0, 4.0, 9.0])  # the second image knows nothing
    config = MDETraining(metric_weight=0.0, gradient_weight=0.0)
    loss = relative_loss(torch.full((2, 1, 3, 5), 7.0), truth, config)
    assert loss.item() == pytest.approx((4 + 9) / 5 / 2)


def test_the_loss_forgives_scale_and_nothing_else():
    config = MDETraining(metric_weight=0.0)
    truth = torch.randn(2, 1, 16, 20)
    truth[:, :, :3] = torch.nan
    exact = relative_loss(truth.nan_to_num() + 1.7, truth, config)
    assert exact.item() == pytest.approx(0, abs=1e-6)
    wrong = relative_loss(truth.nan_to_num() * 1.5 + 1.7, truth, config)
    assert wrong.item() > 0.1


def test_gradients_count_only_between_known_pixels():
    residual = torch.zeros(1, 1, 8, 8)
    residual[..., 4:] = 3.0
    everywhere = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    hole = everywhere.clone()
    hole[..., 3:5] = False
    assert gradient_loss(residual, everywhere).item() > 0.4
    fine = gradient_loss(residual[..., :3], everywhere[..., :3])
    assert fine.item() == 0


def test_folds_depend_on_the_scene_s_name_alone():
    folds = {scene: fold_of(scene, 3) for scene in ("kitchen", "desk", "street")}
    assert folds == {scene: fold_of(scene, 3) for scene in reversed(list(folds))}
    assert {fold_of(f"place {i}", 3) for i in range(50)} == {0, 1, 2}


def test_training_writes_a_model_that_records_its_scenes(tmp_path):
    config = MDETraining(steps=2, batch=2, folds=2, fold=0)
    world = Photographs()
    train_mde(config, world, tmp_path, encoder=None, device="cpu")
    seen = trained_on(tmp_path / "model")
    scenes = {world.load(name).scene for name in world.names("train")}
    assert seen == {scene for scene in scenes if fold_of(scene, 2) != 0}
    mde, known = open_mde(str(tmp_path / "model")), known_scenes(str(tmp_path / "model"))
    assert known == seen
    assert 0 < aligned_absrel(mde, world.load("room/12")) < 1
    steps = [json.loads(x)["step"] for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [2]


def test_trained_on_refuses_a_folder_without_a_record(tmp_path):
    with pytest.raises(InputError, match="does not state what it was trained on"):
        trained_on(tmp_path)
    with pytest.raises(InputError, match="not the weights of lite"):
        load_lite(tmp_path)


def test_a_model_trained_at_full_resolution_is_loaded_as_such(tmp_path):
    config = MDETraining(
        steps=2, batch=2, full_resolution=True, coarse_pass=True, crops=((64, 96),)
    )
    train_mde(config, Photographs(), tmp_path, encoder=None, device="cpu")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["full_resolution"]
    mde = load_lite(tmp_path / "model")
    assert mde.network.net.upsampling is not None
    assert mde.network.coarse_pass
    frame = Photographs().load("room/12")
    assert mde(frame.image).mde_depth.shape == frame.mask.shape


def test_a_time_limit_ends_training_before_the_steps_do(tmp_path):
    config = MDETraining(steps=10_000, batch=2, crops=((64, 96),), time_limit_s=0.2)
    train_mde(config, Photographs(), tmp_path, encoder=None, device="cpu")
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] < 1000


def test_train_mde_prints_lines_with_the_loss_and_no_bar_into_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("scalefield.runtime.progress.LINES_EVERY_S", 0.0)
    monkeypatch.setattr(Trainer, "REPORT_EVERY", 2)
    config = MDETraining(steps=4, batch=2, crops=((64, 96),))
    train_mde(config, Photographs(), tmp_path / "lite", encoder=None, device="cpu")
    text = capsys.readouterr().err
    assert "\r" not in text
    lines = [line for line in text.splitlines() if "training steps" in line]
    assert [line.split(" of ")[0][-1] for line in lines] == ["1", "2", "3", "4"]
    assert lines[1].startswith("scalefield: lite (loss ")


def test_train_mde_continues_the_weights_it_starts_from(tmp_path):
    config = MDETraining(steps=1, batch=2, crops=((64, 96),), rate=0.0, encoder_rate=0.0, ema=0.0)
    first, second = tmp_path / "first", tmp_path / "second"
    train_mde(config, Photographs(), first, encoder=None, device="cpu")
    other = replace(config, seed=1)
    train_mde(other, Photographs(), second, encoder=None, start_from=first / "model", device="cpu")
    before, after = (
        load_file(folder / "model" / "model.safetensors") for folder in (first, second)
    )
    weights = [name for name in before if name.endswith("weight")]
    assert weights
    assert all(torch.equal(before[name], after[name]) for name in weights)
    fine = replace(config, full_resolution=True)
    with pytest.raises(InputError, match="full_resolution is False there, wanted True"):
        train_mde(
            fine, Photographs(), tmp_path / "x", encoder=None, start_from=first / "model",
            device="cpu",
        )  # fmt: skip


class Stopped(Exception):
    """Stands for the power cut."""


def test_train_mde_that_was_stopped_ends_in_the_same_bytes(tmp_path, monkeypatch):
    config = MDETraining(steps=4, batch=2, folds=2, fold=0, crops=((96, 128), (64, 160)))

    def train(out, **options):
        train_mde(config, Photographs(), out, encoder=None, device="cpu", **options)
        return (out / "model" / "model.safetensors").read_bytes()

    def save_and_stop(*args, step, **rest):
        save_checkpoint(*args, step=step, **rest)
        if step == 2:
            raise Stopped

    whole = train(tmp_path / "whole")
    with monkeypatch.context() as stopping:
        stopping.setattr(loop, "save_checkpoint", save_and_stop)
        with pytest.raises(Stopped):
            train(tmp_path / "stopped", save_every=1)
    assert train(tmp_path / "stopped") == whole
