"""Prepared frames on disk against the same frames in memory."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from scalefield.basis.generator import Generator
from scalefield.errors import InputError
from scalefield.training.bank import ResidentFrames
from scalefield.training.basis import train_basis
from scalefield.training.basis_batches import Batches, step_plan, stream, validation_batches
from scalefield.training.basis_config import BasisTraining, paper_preset
from scalefield.training.cross_fit import CrossFit
from scalefield.training.data import prepare
from scalefield.training.preparation import (
    Preparation,
    frame_file,
    left_out,
    open_prepared,
    prepare_split,
)
from scalefield.training.prepared import PreparedFrames, quantise
from training.world import BiasedMDE, World

CONFIG = BasisTraining(k=4, epochs=2, batch=4, anchors=(5, 15), feature_dropout=0.0)


class Revised(BiasedMDE):
    """An estimator with a revision, which counts its calls and the images of each."""

    revision = "1"

    def __init__(self):
        self.batches = []

    def batch(self, images):
        self.batches.append(len(images))
        return [self(image) for image in images]


class Holed(World):
    """The world with two frames that cannot be read."""

    name = "holed"

    def load(self, name):
        if name in ("room/03", "room/12"):
            raise InputError(f"{name}: no such file")
        return super().load(name)


def same_tensors(one, other):
    """Two batches, or their pixels, are equal to the bit."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(a):
            same_tensors(a, b)
        else:
            assert a is b is None or torch.equal(a, b), field.name


@pytest.fixture
def both(tmp_path):
    def make(world=None, **changed):
        preparation = Preparation(regimes=("low",), **changed)
        return [
            prepare_split(
                world or World(), split, Revised(), tmp_path / split, preparation,
                show_progress=False,
            )
            for split in ("train", "val")
        ]  # fmt: skip

    return make


def test_prepared_frames_are_those_made_in_memory(both):
    train, _ = both(features="float16")
    wanted = prepare(World(), "train", BiasedMDE(), ("low",))
    assert train.buckets == [frame.bucket for frame in wanted]
    for found, frame in zip(train, wanted, strict=True):
        assert (found.name, found.shape, found.group) == (frame.name, frame.shape, frame.group)
        assert (found.level, found.drawn, found.true) == (frame.level, frame.drawn, False)
        torch.testing.assert_close(found.features, frame.features, rtol=0, atol=0)
        torch.testing.assert_close(found.log_depth, frame.log_depth, rtol=0, atol=0)
        torch.testing.assert_close(found.image, frame.image, rtol=0, atol=1 / 127)
        for name in ("pixels", "mde_log_depth", "true_log_depth"):
            np.testing.assert_array_equal(getattr(found, name), getattr(frame, name))
        np.testing.assert_array_equal(found.anchors["low"], frame.anchors["low"])


def test_features_in_8_bits_are_within_half_a_step():
    torch.manual_seed(0)
    features = torch.randn(5, 6, 7) * torch.tensor([1, 10, 1e-4, 1e4, 0])[:, None, None]
    kept, steps = quantise(features)
    assert kept.dtype == torch.uint8
    back = torch.addcmul(steps[1][:, None, None], kept.float(), steps[0][:, None, None])
    limit = (features.amax((1, 2)) - features.amin((1, 2)))[:, None, None] / 255 / 2
    assert ((back - features).abs() <= limit * 1.001 + 1e-12).all()


def test_batches_of_8_bit_features_are_those_of_float16_but_for_half_a_step(both):
    def dequantised(frame):
        step, least = frame.quantisation[..., None, None]
        features = torch.addcmul(least, frame.features.float(), step).half()
        return dataclasses.replace(frame, features=features, quantisation=None)

    bits = both()[0]
    plan = step_plan(bits, CONFIG)[:1]
    half = [dequantised(frame) for frame in bits]
    one, other = (Batches(frames, CONFIG, plan)[0].dequantised() for frames in (half, bits))
    torch.testing.assert_close(one.features, other.features, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.anchors.y, other.anchors.y)


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_batches_do_not_depend_on_the_workers(both, workers):
    train, _ = both()
    batches = Batches(train, CONFIG, step_plan(train, CONFIG)[1:5], 1)
    found = list(stream(batches, torch.device("cpu"), workers))
    assert len(found) == 4
    for index, batch in enumerate(found):
        same_tensors(batch, batches[index].dequantised())


def test_training_reads_prepared_frames_of_several_datasets(both, tmp_path):
    class Other(World):
        name = "other"

        def load(self, name):
            frame = super().load(name)
            return dataclasses.replace(frame, depth_m=frame.depth_m * 2)

    train, val = both()
    more = prepare_split(
        Other(), "train", Revised(), tmp_path / "other", Preparation(regimes=("low",)),
        show_progress=False,
    )  # fmt: skip
    out = tmp_path / "run"
    train_basis(CONFIG, train + more, val, out, device="cpu", workers=2, show_progress=False)
    assert Generator.load(out / "model").config.feature_channels == 2
    assert json.loads((out / "clock.json").read_text())["step"] == 12
    assert "Trained on 24 frames" in (out / "model" / "README.md").read_text()


def test_a_frame_that_cannot_be_read_is_left_out_counted_and_named(both, tmp_path, capsys):
    train, val = both(Holed())
    assert (len(train), len(val)) == (11, 3)
    printed = capsys.readouterr().err
    assert "1 of 12 frames could not be prepared and are left out: room/03" in printed
    assert left_out(tmp_path / "train") == {"room/03": "room/03: no such file"}


class Undeclared(World):
    """The world, none of whose depths has a range."""

    def load(self, name):
        raise InputError("room: no depth range is declared")


def test_prepare_split_states_a_reason_once_and_leaves_no_claim(tmp_path, capsys):
    chosen = Preparation(regimes=("low",))
    with pytest.raises(InputError, match="none of its 12 frames could be prepared"):
        prepare_split(Undeclared(), "train", Revised(), tmp_path, chosen, show_progress=False)
    printed = capsys.readouterr().err.splitlines()
    assert printed == ["left out: 12 frames: room: no depth range is declared"]
    mended = World()
    mended.ranges_m = {"room": (0.1, 10.0)}
    frames = prepare_split(mended, "train", Revised(), tmp_path, chosen, show_progress=False)
    assert len(frames) == 12
    assert left_out(tmp_path) == {}


def test_preparation_goes_on_where_it_was_cut_off(tmp_path):
    mde, folder = Revised(), tmp_path / "train"
    chosen = Preparation(regimes=("low",))
    first = prepare_split(
        World(), "train", mde, folder, chosen, limit=5, batch=2, show_progress=False
    )
    assert mde.batches == [2, 2, 1]
    frame_file(folder, first[0].name).unlink()
    mde.batches.clear()
    whole = prepare_split(World(), "train", mde, folder, chosen, batch=8, show_progress=False)
    assert mde.batches == [8]  # what is there is not made again
    assert len(whole) == 12


def test_two_processes_share_the_preparation(tmp_path, monkeypatch):
    monkeypatch.setattr("scalefield.training.preparation.wait_for_all", lambda world: None)
    chosen = Preparation(regimes=("low",))
    for rank in (1, 0):
        mde = Revised()
        frames = prepare_split(
            World(), "train", mde, tmp_path, chosen, rank=rank, world=2, show_progress=False
        )
        assert sum(mde.batches) == 6
    assert [frame.name for frame in frames] == World().names("train")


def test_frames_of_another_estimator_are_not_mixed_in(both, tmp_path):
    both()
    other = Revised()
    other.revision = "2"
    with pytest.raises(InputError, match="prepared with another mde"):
        prepare_split(World(), "train", other, tmp_path / "train", Preparation(regimes=("low",)))
    with pytest.raises(InputError, match="has no `revision`"):
        prepare_split(World(), "train", BiasedMDE(), tmp_path / "x")


def test_prepare_split_refuses_frames_of_other_depth_ranges(both, tmp_path):
    both()
    near = World()
    near.ranges_m = {"room": (0.1, 3.0)}
    with pytest.raises(InputError, match="prepared with another ranges_m"):
        prepare_split(near, "train", Revised(), tmp_path / "train", Preparation(regimes=("low",)))


def test_a_frame_that_every_model_saw_stops_the_preparation(tmp_path):
    models = CrossFit(((Revised(), frozenset({"scene1"})),))
    with pytest.raises(InputError, match="was trained on the scene 'scene1'"):
        prepare_split(World(), "train", models, tmp_path, show_progress=False)


def test_an_empty_split_is_a_sentence_before_anything_is_computed(tmp_path):
    class Empty(World):
        def names(self, split):
            return []

    with pytest.raises(InputError, match="the split val of world has no frame"):
        prepare_split(Empty(), "val", Revised(), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_damaged_prepared_frames_are_named(both, tmp_path):
    train, _ = both()
    file = frame_file(tmp_path / "train", train[0].name)
    file.write_bytes(b"no frame")
    with pytest.raises(InputError, match=r"00.safetensors: not a prepared frame"):
        open_prepared(tmp_path / "train", ["room/00"])
    with pytest.raises(InputError, match=r"not a prepared frame"):
        train[0]


def test_zero_features_are_never_read(both, tmp_path):
    train, val = both()
    config = dataclasses.replace(CONFIG, zero_features=True, epochs=1)
    batches = Batches(train, config, step_plan(train, config)[:1])
    assert batches[0].features is None
    model = train_basis(config, train, val, tmp_path / "run", device="cpu", show_progress=False)
    assert model.config.zero_features
    assert model.config.feature_channels == 2


@pytest.mark.parametrize("zero_features", [False, True])
def test_resident_frames_gather_the_batches_that_are_made_of_prepared_ones(both, zero_features):
    prepared = both()[0]
    config = paper_preset(4, "low", batch=3, zero_features=zero_features)
    resident = ResidentFrames.of(prepared, "cpu")
    assert ResidentFrames.of(PreparedFrames(tuple(prepared.entries)), "cpu") is resident
    plan = step_plan(prepared, config)[2:7]
    for make in (lambda frames: Batches(frames, config, plan, 2),
                 lambda frames: validation_batches(frames, config)):  # fmt: skip
        wanted, found = (
            list(stream(make(frames), torch.device("cpu"))) for frames in (prepared, resident)
        )
        assert len(wanted) == len(found) > 1
        for one, other in zip(wanted, found, strict=True):
            same_tensors(one, other)


def test_resident_frames_without_the_anchors_of_a_regime_are_named(both):
    resident = ResidentFrames.of(both()[0], "cpu")
    config = paper_preset(4, "high", batch=3)
    with pytest.raises(InputError, match="without the anchors of the regime high"):
        Batches(resident, config, step_plan(resident, config))[0]


def test_train_basis_records_the_time_that_it_took(both, tmp_path):
    config = paper_preset(4, "low", epochs=1, batch=3)
    frames = ResidentFrames.of(both()[0], "cpu")
    train_basis(config, frames, frames, tmp_path, device="cpu", show_progress=False)
    assert json.loads((tmp_path / "clock.json").read_text())["elapsed_s"] > 0
