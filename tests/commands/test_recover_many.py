"""`scalefield recover` on folders, globs, several images and videos."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield import Anchors, recover
from scalefield.cli import main
from scalefield.export.result_folder import OUTPUTS
from scalefield.io.videos import count_frames, is_video, read_frames

SHAPE = (48, 64)
ROWS = "u,v,depth_m\n10,12,2.0\n50,20,3.0\n30,40,1.5\n"


def picture(i: int) -> np.ndarray:
    v, u = np.mgrid[: SHAPE[0], : SHAPE[1]]
    channels = [4 * u, 5 * v, 60 + 2 * ((u + 3 * i) // 8 + v // 8) % 2 * 60]
    return np.clip(np.stack(channels, axis=-1), 0, 255).astype(np.uint8)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two images with anchors beside them, one of them in a sub-folder, and one without."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(("a", "sub/b", "c")):
        path = tmp_path / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(i)).save(path)
        if name != "c":
            path.with_name(f"{path.stem}.anchors.csv").write_text(ROWS)
    return tmp_path


def records(out: str) -> dict[str, dict]:
    lines = Path(out, "recoveries.jsonl").read_text().splitlines()
    return {record.pop("key"): record for record in map(json.loads, lines)}


def test_recover_folder_writes_a_folder_for_each_image(folder, capsys):
    assert main(["recover", "photos"]) == 0
    for key in ("a", "sub/b", "c"):
        assert {p.name for p in Path("photos_metric", key).iterdir()} >= set(OUTPUTS)
    found = records("photos_metric")
    assert [found[key]["anchors_used"] for key in ("a", "sub/b", "c")] == [3, 3, 0]
    assert found["c"]["warnings"] == ["no_anchors"]
    printed = capsys.readouterr().out
    assert "a: 3 of 3 anchors, median depth" in printed
    assert "3 images recovered, 0 failed" in printed
    assert main(["recover", "photos/a.png", "--anchors", "photos/a.anchors.csv"]) == 0
    alone, among = (np.load(Path(f, "depth.npz")) for f in ("a_metric", "photos_metric/a"))
    np.testing.assert_array_equal(alone["depth_m"], among["depth_m"])


def test_recover_one_image_several_and_the_library_agree(folder):
    """One estimator, one method and one report, whichever way an image comes in."""
    Image.fromarray(picture(9)).save("photos/c.png")
    Path("photos/c.anchors.csv").write_text(ROWS.replace("30,40", "50,20"))  # one pixel twice
    assert main(["recover", "photos/*.png", "--out", "several"]) == 0
    for key in ("a", "c"):
        given = [f"photos/{key}.png", "--anchors", f"photos/{key}.anchors.csv"]
        assert main(["recover", *given, "--out", key]) == 0
        one, among = (
            json.loads(Path(f, "recovery.json").read_text()) for f in (key, f"several/{key}")
        )
        assert one == among
        expected = recover(given[0], given[2], leave_one_out=True)
        assert one["report"] == json.loads(json.dumps(expected.report.as_dict()))
        for path in (key, f"several/{key}"):
            written = np.load(Path(path, "depth.npz"))
            for name, values in expected.maps().items():
                np.testing.assert_array_equal(written[name], values)


def test_recover_glob_and_list_use_a_folder_of_anchors(folder, capsys):
    Path("measured").mkdir()
    Path("measured/a.csv").write_text(ROWS)
    for words in (["photos/*.png"], ["photos/a.png", "photos/c.png"]):
        assert main(["recover", *words, "--anchors", "measured", "--out", "out"]) == 0
        assert {key: r["anchors_used"] for key, r in records("out").items()} == {"a": 3, "c": 0}
    assert main(["recover", "photos/*.png", "--limit", "1", "--out", "one"]) == 0
    assert list(records("one")) == ["a"]


def test_recover_folder_names_a_bad_image_and_goes_on(folder, capsys):
    Path("photos/bad.jpg").write_text("text")
    Path("photos/c.anchors.csv").write_text("u,v,depth_m\n99,1,2\n")
    assert main(["recover", "photos"]) == 1
    message = capsys.readouterr()
    assert "scalefield: bad failed: photos/bad.jpg: not a readable image" in message.err
    assert "c failed: 1 of 1 anchors lie outside" in message.err
    assert "2 images recovered, 2 failed" in message.out
    assert not Path("photos_metric/bad").exists()
    assert "failed" in records("photos_metric")["bad"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["photos", "--out", "photos/out"], "photos/out is inside photos"),
        (["photos", "--anchors", "photos/a.anchors.csv"], "one file of anchors and several images"),
        (["photos", "--anchors", "missing"], "missing: no such file or folder"),
        (["photos", "--anchors", "empty"], "no file of anchors in it is named as an image"),
        (["photos", "--depth", "d.npy", "--kind", "depth"], "d.npy: no such file or folder"),
        (["photos", "--depth", "photos/a.png", "--kind", "depth"], "is a map of one image and"),
        (["photos", "--depth", "empty", "--kind", "depth"], "empty: no map for a (.npy"),
        (["photos", "--depth", "empty"], "--depth needs --kind depth"),
        (["photos", "--stream", "on", "--method", "median"], "recovered by `field`, not by median"),
        (["photos", "--every", "0"], "--every must be 1 or more, found 0"),
        (["photos", "--limit", "0"], "--limit must be 1 or more, found 0"),
        (["photos", "photos/a.png"], "photos: a folder or a video is given alone"),
        (["photos/a.png", "other/a.png"], "would have the same output folder 'a'"),
        (["*.webp"], "no file matches"),
        (["empty"], "empty: no images in it"),
        (["photos/a.png", "--stream", "on"], "are for several images or a video"),
        ([], "no image is given"),
        (["no.jpg", "--anchors", "no.csv"], "no.jpg, no.csv: no such files"),
        (["https://a.org/b.jpg?w=9"], "https://a.org/b.jpg?w=9 is a web address; download it"),
        (
            ["photos/a.png", "--anchors", "http://a.org/b.csv"],
            "http://a.org/b.csv is a web address",
        ),
    ],
)
def test_recover_many_refuses_with_a_sentence(folder, capsys, words, sentence):
    Path("empty").mkdir()
    assert main(["recover", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(Path().glob("*_metric"))


@pytest.fixture
def video(folder) -> Path:
    av = pytest.importorskip("av")
    path = folder / "drive.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = *SHAPE, "yuv420p"
        stream.bit_rate = 4_000_000
        for i in range(5):
            frame = av.VideoFrame.from_ndarray(picture(i), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_read_frames_gives_upright_rgb_frames(video, tmp_path):
    frames = list(read_frames(video, every=2))
    assert [frame.index for frame in frames] == [0, 2, 4]
    for frame in frames:
        error = np.abs(frame.image.astype(int) - picture(frame.index))
        assert error.mean() < 15  # the codec loses some
    assert count_frames(video) == 5
    assert is_video("A.MOV")
    assert not is_video("a.jpg")


def test_read_frames_of_a_file_with_metadata_in_another_encoding(video):
    data = video.read_bytes()
    start = data.index(b"Lavf")  # the name of the program that wrote the file
    video.write_bytes(data[:start] + b"caf\xe9" + data[start + 4 :])
    assert len(list(read_frames(video))) == count_frames(video) == 5


def test_recover_video_is_a_stream_with_the_anchors_of_the_first_frame(video, capsys):
    Path("first.csv").write_text(ROWS)
    words = ["recover", "drive.mp4", "--anchors", "first.csv", "--every", "2"]
    assert main([*words, "--limit", "2"]) == 0
    found = records("drive_metric")
    assert {key: r["anchors_used"] for key, r in found.items()} == {"000000": 3, "000002": 0}
    assert "no_anchors" not in found["000002"]["warnings"]  # the scale is carried on
    assert "2 frames recovered as a stream, 0 failed" in capsys.readouterr().out
    scale = found["000002"]["median_depth_m"] / found["000000"]["median_depth_m"]
    assert 0.5 < scale < 2


def test_recover_video_with_a_folder_of_anchors_by_frame_number(video):
    Path("measured").mkdir()
    for name in ("0000", "2"):
        Path("measured", f"{name}.csv").write_text(ROWS)
    assert main(["recover", "drive.mp4", "--anchors", "measured", "--limit", "3"]) == 0
    assert [r["anchors_used"] for r in records("drive_metric").values()] == [3, 0, 3]


def test_recover_damaged_video_and_missing_extra_get_a_sentence(video, capsys, monkeypatch):
    Path("bad.mp4").write_bytes(b"no video" * 20)
    assert main(["recover", "bad.mp4"]) == 2
    assert "bad.mp4: not a readable video" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "av", None)
    assert main(["recover", "drive.mp4"]) == 2
    assert "pip install 'scalefield[video]'" in capsys.readouterr().err


def test_recover_missing_extra_of_a_format_is_found_before_any_work(folder, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["recover", "photos/a.png", "--formats", "exr"]) == 2
    assert "pip install 'scalefield[exr]'" in capsys.readouterr().err


def test_recover_max_points_limits_the_cloud(folder):
    words = ["recover", "photos/a.png", "--anchors", "photos/a.anchors.csv", "--fov-deg", "60"]
    assert main([*words, "--formats", "ply", "--max-points", "300"]) == 0
    header = Path("a_metric/cloud.ply").read_bytes()[:400].decode(errors="replace")
    count = int(header.partition("element vertex ")[2].split()[0])
    assert 0 < count <= 300


def test_recover_anchors_of_the_sub_folder_are_found_by_key(folder):
    Anchors.read("photos/a.anchors.csv").write("measured/sub/b.npz")
    assert main(["recover", "photos", "--anchors", "measured"]) == 0
    assert {k: r["anchors_used"] for k, r in records("photos_metric").items()} == {
        "a": 0,
        "c": 0,
        "sub/b": 3,
    }


def test_recover_names_a_table_in_the_place_of_an_image(tmp_path, capsys):
    assert main(["recover", "photo.jpg", "anchors.csv", "--out", str(tmp_path / "out")]) == 2
    message = "anchors.csv is no image; give anchors as --anchors anchors.csv"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def write_maps(path: Path, suffix: str = ".npy") -> np.ndarray:
    """A folder with a map for `a` and `sub/b`; the map of `a` is returned."""
    maps = {key: np.linspace(1 + i, 3, 48 * 64).reshape(SHAPE) for i, key in enumerate("ab")}
    for key, values in maps.items():
        (path / "sub").mkdir(parents=True, exist_ok=True)
        file = path / {"a": "a.png", "b": "sub/b.png"}[key]
        np.save(file.with_suffix(suffix), 1 / values)
    return 1 / maps["a"]


def test_recover_folder_with_own_maps_is_recover_with_each_map(folder, capsys):
    disparity = write_maps(Path("maps"))
    words = ["recover", "photos", "--depth", "maps", "--kind", "disparity"]
    assert main(words) == 1  # c has no map
    assert "c failed: " in capsys.readouterr().err
    for affine, flags in ((None, []), (False, ["--affine", "no"])):
        assert main([*words, *flags, "--out", "out"]) == 1
        expected = recover(
            "photos/a.png",
            "photos/a.anchors.csv",
            mde_depth=disparity,
            kind="disparity",
            affine=affine,
        )
        written = np.load("out/a/depth.npz")
        np.testing.assert_array_equal(written["depth_m"], expected.depth_m)
    found = records("out")
    assert found["sub/b"]["anchors_used"] == 3
    assert "no map for c" in found["c"]["failed"]


def test_recover_video_with_own_maps_takes_them_by_the_number_of_the_frame(video):
    Path("maps").mkdir()
    for i in range(count_frames(video)):
        np.save(f"maps/{i}.npy", np.full(SHAPE, 1.0 + i))
    Path("first.csv").write_text(ROWS)
    words = ["recover", str(video), "--anchors", "first.csv", "--depth", "maps", "--kind", "depth"]
    assert main([*words, "--stream", "off", "--every", "2", "--method", "median"]) == 2
    assert main([*words, "--limit", "3", "--out", "out"]) == 0
    relative = [
        np.median(np.load(f"out/{i:06d}/depth.npz")["depth_m"] / np.load(f"maps/{i}.npy"))
        for i in range(3)
    ]
    np.testing.assert_allclose(relative, relative[0], rtol=0.2)
