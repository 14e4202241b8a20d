"""The recipes that carry rendered frames to another machine and train there."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from recipes import pack_frames, permissive, ship_permissive

from scalefield.datasets import Frame
from scalefield.errors import InputError
from scalefield.io import read_json, write_json
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


def test_compressed_maps_come_back_from_decompressed_without_loss():
    rng = np.random.default_rng(0)
    plane = np.add.outer(3 * np.arange(40), 2 * np.arange(30)).astype(np.uint16)
    noise = rng.integers(0, 2**16, (7, 11)).astype(np.uint16)
    ends = np.array([[0, 65535], [65535, 0]], np.uint16)
    for values in (plane, noise, ends):
        again = pack_frames.decompressed(pack_frames.compressed(values))
        assert again.dtype == np.uint16
        assert np.array_equal(again, values)
    assert len(pack_frames.compressed(plane)) < 0.2 * plane.nbytes


def test_pack_frames_splits_two_roots_and_unpacks_to_the_same_maps(tmp_path):
    roots, parts = [tmp_path / "a", tmp_path / "b"], tmp_path / "parts"
    unpacked = tmp_path / "unpacked"
    for i, root in enumerate(roots):
        write_frames(root, [f"x{i}{k}" for k in range(20)])
    options = {"root": roots, "out": parts, "part_mb": 0.04, "splits": ["train", "val"]}
    pack_frames.pack(SimpleNamespace(**options, processes=1))
    every = sorted(parts.glob("*.tar"))
    assert len(every) > 1
    assert all(path.stat().st_size <= 0.04e6 for path in every)
    pack_frames.unpack(SimpleNamespace(parts=every[::-1], root=unpacked, processes=1))
    files = sorted(path.relative_to(tmp_path) for root in roots for path in root.rglob("*.*"))
    assert files == sorted(path.relative_to(unpacked) for path in unpacked.rglob("*.*"))
    for file in files:
        if file.suffix == ".png":
            assert np.array_equal(Image.open(unpacked / file), Image.open(tmp_path / file))
        else:
            assert (unpacked / file).read_bytes() == (tmp_path / file).read_bytes()


def test_write_member_refuses_paths_outside_of_the_folder(tmp_path):
    with pytest.raises(SystemExit, match="wanted a path inside the folder"):
        pack_frames.write_member(tmp_path, "../x.jpg", b"")


def test_segments_are_separated_by_depth_and_by_label():
    depth_m = np.full((120, 160), 4.0, np.float32)
    depth_m[:, 80:] = 2.0
    labels = np.zeros((120, 160), np.int64)
    labels[60:, :80] = 3
    frame = Frame("scenes/indoor/x", "g", "s", np.zeros((120, 160, 3), np.uint8), depth_m,
                  (0.1, 10.0), labels=labels)  # fmt: skip
    segments = permissive.segments_of(frame, MDEOutput(torch.from_numpy(depth_m), "depth"))
    assert segments.shape == (120, 160)
    assert len(segments.unique()) == 3
    assert len(segments[60:, :80].unique()) == len(segments[:, 80:].unique()) == 1


def test_spread_takes_evenly_spaced_names():
    assert permissive.spread(list("abcdef"), 3) == ["a", "c", "e"]
    assert permissive.spread(["a"], 3) == ["a"]


def test_joined_datasets_list_and_load_the_frames_of_all(tmp_path):
    write_frames(tmp_path / "a", ["x", "y"])
    rooms = permissive.Rooms(1, size=(12, 16))
    ranges = {"*": (0.1, 12.0)}
    joined = permissive.Joined((permissive.Folder(tmp_path / "a", ranges), rooms))
    names = joined.names("train")
    assert names == ["scenes/indoor/x", "scenes/indoor/y", *rooms.names("train")]
    assert [joined.load(name).name for name in names] == names
    assert joined.names("val") == []
    with pytest.raises(InputError, match="no frame 'z'"):
        joined.load("z")


def test_read_frames_gives_what_write_frames_was_given(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3, 9)).astype(np.float32)
    frame = permissive.TrainingFrame(
        name="scenes/indoor/x", shape=(6, 8), features=None, log_depth=torch.randn(1, 3, 4),
        image=torch.randn(3, 3, 4).half(), level=0.5, group="scenes/indoor truth", true=True,
        pixels=np.stack([table[0], table[1]], axis=1), mde_log_depth=table[1],
        true_log_depth=table[2], anchors={1: np.array([4]), "low": np.arange(3)}, drawn=8,
        segments=torch.arange(12).reshape(3, 4),
    )  # fmt: skip
    other = permissive.replace(frame, true=False, segments=None, anchors={})
    permissive.write_frames(tmp_path / "frames.safetensors", [frame, other])
    for before, after in zip(
        (frame, other), permissive.read_frames(tmp_path / "frames.safetensors"), strict=True
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
        permissive.write_frames(
            tmp_path / "x", [permissive.replace(frame, features=torch.ones(1, 2, 2))]
        )


def test_make_frames_joins_the_outputs_of_an_early_model_on_scenes_new_to_it(tmp_path, monkeypatch):
    names = [f"x{k}" for k in range(4)]
    write_frames(tmp_path / "scenes", names)
    (tmp_path / "runs/lite-early/model").mkdir(parents=True)

    class Early:
        name = "lite"

        def batch(self, images):
            return [MDEOutput(torch.full(i.shape[:2], 2.0), "depth") for i in images]

    monkeypatch.setattr(permissive, "load_lite", lambda *_: Early())
    monkeypatch.setattr(permissive, "trained_on", lambda _: {"scenes/indoor/x0"})
    permissive.make_frames(
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
    frames = permissive.read_frames(tmp_path / "runs/frames-train.safetensors")
    found = sorted((frame.name, frame.group.split()[-1]) for frame in frames)
    rendered = [f"scenes/indoor/{name}" for name in names]
    rooms = ["rooms/00000", "rooms/00001"]
    new = [(name, "lite") for name in (*rendered[1:], *rooms)]
    assert found == sorted([(name, "truth") for name in (*rendered, *rooms)] + new)


def test_put_aside_moves_a_model_and_those_that_use_its_features(tmp_path, monkeypatch):
    for name in ("lite", "field", "field-lite", "basis-lite-k8", "basis-depth-k8"):
        config = {"estimators": ["lite", "fastdepth"]} if name.startswith("field") else {"k": 8}
        write_json(tmp_path / name / "config.json", config)
        (tmp_path / name / "README.md").write_text(f"# {name}\n\nA model.\n")
    monkeypatch.setattr(ship_permissive, "WEIGHTS", tmp_path)
    monkeypatch.setattr("scalefield.io.weights.WEIGHTS", tmp_path)
    ship_permissive.put_aside("lite", drop=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "basis-depth-k8", "basis-research-lite-k8", "field", "field-research-lite", "lite-research",
    ]  # fmt: skip
    config = read_json(tmp_path / "field-research-lite" / "config.json")
    assert config["estimators"] == ["lite-research", "fastdepth"]
    card = (tmp_path / "basis-research-lite-k8" / "README.md").read_text()
    assert card == "# basis-research-lite-k8\n\nA model.\n"
    ship_permissive.put_aside("basis-depth-k8", drop=True)
    ship_permissive.put_aside("small", drop=False)
    assert not (tmp_path / "basis-depth-k8").exists()
    assert not (tmp_path / "small-research").exists()
