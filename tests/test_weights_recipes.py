"""The recipes that train the weights that ship, and put them into the package."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from recipes import ship_weights, train_weights

from scalefield.datasets import Frame
from scalefield.errors import InputError
from scalefield.io import write_json
from scalefield.mde import MDEOutput


def write_frames(root, names):
    rng = np.random.default_rng(0)
    for kind in ("rgb", "depth"):
        (root / "scenes/indoor" / kind).mkdir(parents=True, exist_ok=True)
    for name in names:
        noise = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(root / f"scenes/indoor/rgb/{name}.jpg")
        depth = rng.integers(500, 5000, (16, 16)).astype(np.uint16)
        Image.fromarray(depth).save(root / f"scenes/indoor/depth/{name}.png")
    (root / "train.txt").write_text("".join(f"scenes/indoor/{name}\n" for name in names))
    (root / "val.txt").write_text("")
    frames = [{"name": name, "scene": name} for name in names]
    write_json(root / "scenes/indoor/meta.json", {"depth_scale_per_metre": 1000, "frames": frames})


def test_segments_are_separated_by_depth_and_by_label():
    depth_m = np.full((120, 160), 4.0, np.float32)
    depth_m[:, 80:] = 2.0
    labels = np.zeros((120, 160), np.int64)
    labels[60:, :80] = 3
    frame = Frame("scenes/indoor/x", "g", "s", np.zeros((120, 160, 3), np.uint8), depth_m,
                  (0.1, 10.0), labels=labels)  # fmt: skip
    segments = train_weights.segments_of(frame, MDEOutput(torch.from_numpy(depth_m), "depth"))
    assert segments.shape == (120, 160)
    assert len(segments.unique()) == 3
    assert len(segments[60:, :80].unique()) == len(segments[:, 80:].unique()) == 1


def test_spread_takes_evenly_spaced_names():
    assert train_weights.spread(list("abcdef"), 3) == ["a", "c", "e"]
    assert train_weights.spread(["a"], 3) == ["a"]


def test_joined_datasets_list_and_load_the_frames_of_all(tmp_path):
    write_frames(tmp_path / "a", ["x", "y"])
    rooms = train_weights.Rooms(1, size=(12, 16))
    ranges = {"*": (0.1, 12.0)}
    joined = train_weights.Joined((train_weights.Folder(tmp_path / "a", ranges), rooms))
    names = joined.names("train")
    assert names == ["scenes/indoor/x", "scenes/indoor/y", *rooms.names("train")]
    assert [joined.load(name).name for name in names] == names
    assert joined.names("val") == []
    with pytest.raises(InputError, match="no frame 'z'"):
        joined.load("z")


def test_read_frames_gives_what_write_frames_was_given(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3, 9)).astype(np.float32)
    frame = train_weights.TrainingFrame(
        name="scenes/indoor/x", shape=(6, 8), features=None, log_depth=torch.randn(1, 3, 4),
        image=torch.randn(3, 3, 4).half(), level=0.5, group="scenes/indoor truth", true=True,
        pixels=np.stack([table[0], table[1]], axis=1), mde_log_depth=table[1],
        true_log_depth=table[2], anchors={1: np.array([4]), "low": np.arange(3)}, drawn=8,
        segments=torch.arange(12).reshape(3, 4),
    )  # fmt: skip
    other = train_weights.replace(frame, true=False, segments=None, anchors={})
    train_weights.write_frames(tmp_path / "frames.safetensors", [frame, other])
    for before, after in zip(
        (frame, other), train_weights.read_frames(tmp_path / "frames.safetensors"), strict=True
    ):
        for field in fields(before):
            a, b = getattr(before, field.name), getattr(after, field.name)
            if field.name == "anchors":
                assert list(a) == list(b)
                assert all(np.array_equal(a[regime], b[regime]) for regime in a)
            elif isinstance(a, torch.Tensor):
                assert a.dtype == b.dtype
                assert torch.equal(a, b)
            elif isinstance(a, np.ndarray):
                assert a.dtype == b.dtype
                assert np.array_equal(a, b)
            else:
                assert a == b
    with pytest.raises(InputError, match="has features"):
        train_weights.write_frames(
            tmp_path / "x", [train_weights.replace(frame, features=torch.ones(1, 2, 2))]
        )


def test_make_frames_joins_the_outputs_of_an_early_model_on_scenes_new_to_it(tmp_path, monkeypatch):
    names = [f"x{k}" for k in range(4)]
    write_frames(tmp_path / "scenes", names)
    (tmp_path / "runs/lite-early/model").mkdir(parents=True)

    class Early:
        name = "lite"

        def batch(self, images):
            return [MDEOutput(torch.full(i.shape[:2], 2.0), "depth") for i in images]

    monkeypatch.setattr(train_weights, "load_lite", lambda *_: Early())
    monkeypatch.setattr(train_weights, "trained_on", lambda _: {"scenes/indoor/x0"})
    train_weights.make_frames(
        SimpleNamespace(
            root=[tmp_path / "scenes"],
            out=tmp_path / "runs",
            mde=[],
            rooms=2,
            seed=0,
            trial=True,
            most_frames=100,
            val_frames=2,
        )
    )
    frames = train_weights.read_frames(tmp_path / "runs/frames-train.safetensors")
    found = sorted((frame.name, frame.group.split()[-1]) for frame in frames)
    rendered = [f"scenes/indoor/{name}" for name in names]
    rooms = ["rooms/00000", "rooms/00001"]
    new = [(name, "lite") for name in (*rendered[1:], *rooms)]
    assert found == sorted([(name, "truth") for name in (*rendered, *rooms)] + new)


def test_ship_writes_each_model_with_a_card_that_states_its_licence(tmp_path, monkeypatch):
    runs, weights = tmp_path / "runs", tmp_path / "weights"
    scenes = ["scenes/indoor/x", "infinigen/rooms/y", "rooms-0"]
    run = {"config": {"batch": 16, "seed": 0}}
    for name, config in (
        ("lite", {"trained_on": scenes}),
        ("field-s0", {"estimators": ["fastdepth", "lite"]}),
    ):
        write_json(runs / name / "run.json", run)
        write_json(runs / name / "model" / "config.json", config)
        (runs / name / "model" / "model.safetensors").write_bytes(name.encode())
        (runs / name / "metrics.jsonl").write_text('{"step": 3}\n{"step": 5617}\n')
    monkeypatch.setattr(ship_weights, "WEIGHTS", weights)
    args = SimpleNamespace(runs=runs, views=20, seed=0)
    for name in ("lite", "field"):
        ship_weights.ship(args, name)
        card = (weights / name / "README.md").read_text()
        assert card.startswith(f"---\nlicense: apache-2.0\n---\n\n# {name}\n")
        words = " ".join(card.split())
        assert "20 views of 1 scenes" in words
        assert "on 1 rooms of an earlier version" in words
        assert "5617 steps of 16" in words
    assert "FastDepth (MIT, trained on NYU Depth v2 by its authors) and of an early" in words
    assert (weights / "field" / "model.safetensors").read_bytes() == b"field-s0"


def test_limit_s_is_the_given_one_or_the_default():
    args = SimpleNamespace(limits=["lite=400"])
    assert train_weights.limit_s(args, "lite") == 400
    assert train_weights.limit_s(args, "field") == train_weights.LIMITS_S["field"]
