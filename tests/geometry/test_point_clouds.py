"""Point clouds: equal points from every format, damaged files, visible points as anchors."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalefield.errors import InputError
from scalefield.geometry.camera import Camera
from scalefield.geometry.point_clouds import (
    SeeThrough,
    anchors_from_points,
    lzf_decompress,
    read_points,
)

POINTS = np.random.default_rng(0).uniform(-5, 5, (40, 3)).astype(np.float32)


def ply(kind: str) -> bytes:
    head = (
        f"ply\nformat {kind} 1.0\ncomment a scan\nelement camera 2\nproperty uchar id\n"
        "element vertex 40\nproperty double x\nproperty float intensity\nproperty float z\n"
        "property float y\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"
    )
    if kind == "ascii":
        rows = "".join(f"{x!r} 0.5 {z!r} {y!r}\n" for x, y, z in POINTS.tolist())
        return (head + "7\n8\n" + rows + "3 0 1 2\n").encode()
    order = "<" if "little" in kind else ">"
    rows = b"".join(struct.pack(order + "dfff", x, 0.5, z, y) for x, y, z in POINTS.tolist())
    return head.encode() + b"\x07\x08" + rows + b"\x03" + struct.pack(order + "3i", 0, 1, 2)


def lzf_literal(data: bytes) -> bytes:
    """LZF without any compression: runs of up to 32 bytes."""
    runs = [data[i : i + 32] for i in range(0, len(data), 32)]
    return b"".join(bytes([len(run) - 1]) + run for run in runs)


def pcd(kind: str) -> bytes:
    head = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS rgb x y z _\nSIZE 4 4 4 4 1\nTYPE U F F F U\n"
        f"COUNT 1 1 1 1 3\nWIDTH 40\nHEIGHT 1\nPOINTS 40\nDATA {kind}\n"
    ).encode()
    if kind == "ascii":
        return (
            head + "".join(f"9 {x!r} {y!r} {z!r} 1 2 3\n" for x, y, z in POINTS.tolist()).encode()
        )
    if kind == "binary":
        return head + b"".join(struct.pack("<I3f3s", 9, *p, b"abc") for p in POINTS.tolist())
    columns = b"\x09\0\0\0" * 40 + POINTS.T.astype("<f4").tobytes() + b"abc" * 40
    packed = lzf_literal(columns)
    return head + struct.pack("<II", len(packed), len(columns)) + packed


FILES = {
    **{f"{kind}.ply": ply(kind) for kind in ("ascii", "binary_little_endian", "binary_big_endian")},
    **{f"{kind}.pcd": pcd(kind) for kind in ("ascii", "binary", "binary_compressed")},
    "kitti.bin": np.c_[POINTS, np.ones(40)].astype("<f4").tobytes(),
}


@pytest.mark.parametrize("name", FILES)
def test_read_points_every_format_gives_the_same_points(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    np.testing.assert_array_equal(read_points(tmp_path / name), POINTS)


def test_read_points_of_arrays_wider_records_and_gaps(tmp_path):
    np.save(tmp_path / "a.npy", np.c_[POINTS, POINTS])
    np.savez(tmp_path / "a.npz", points=POINTS)
    (tmp_path / "a.bin").write_bytes(np.c_[POINTS, np.abs(POINTS[:, :2])].astype("<f4").tobytes())
    np.testing.assert_array_equal(read_points(tmp_path / "a.npy"), POINTS)
    np.testing.assert_array_equal(read_points(tmp_path / "a.npz"), POINTS)
    np.testing.assert_array_equal(read_points(tmp_path / "a.bin", bin_columns=5), POINTS)
    gaps = POINTS.copy()
    gaps[::2, 1] = np.nan
    np.save(tmp_path / "a.npy", gaps)
    np.testing.assert_array_equal(read_points(tmp_path / "a.npy"), POINTS[1::2])


def test_read_points_trimesh_agrees(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    for name in ("ascii.ply", "binary_little_endian.ply"):
        cloud = trimesh.PointCloud(POINTS)
        encoding = "ascii" if name.startswith("ascii") else "binary"
        (tmp_path / name).write_bytes(cloud.export(file_type="ply", encoding=encoding))
        np.testing.assert_allclose(read_points(tmp_path / name), POINTS, atol=1e-7)


@given(st.sampled_from(sorted(FILES)), st.data())
def test_read_points_damaged_files_get_a_sentence_and_never_another_error(
    tmp_path_factory, name, data
):
    whole = FILES[name]
    cut = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, min(300, len(whole) - 1)))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / name
    for damaged in (whole[:cut], bytes(flipped)):
        path.write_bytes(damaged)
        try:
            points = read_points(path)
        except InputError:
            continue
        assert np.isfinite(points).all()
        assert points.shape[1] == 3


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.ply", b"plyformat", "not a PLY file"),
        ("a.ply", ply("ascii").replace(b"double x", b"double q"), "no x, y, z, only q, intensity"),
        ("a.ply", ply("ascii").replace(b"vertex 40", b"vertices 40"), "no element called vertex"),
        (
            "a.ply",
            ply("ascii").replace(b"vertex 40", b"vertex 999"),
            r"\(999 vertices wanted, ",
        ),
        ("a.pcd", b"VERSION 0.7\n", "header has no line DATA"),
        ("a.pcd", pcd("ascii").replace(b"rgb x", b"rgb q"), "no x, y, z, only rgb, q"),
        ("a.bin", b"12345", "5 bytes are not a whole number of points with 4 float32"),
        ("a.bin", np.full(4, np.nan, "<f4").tobytes(), "no point with finite coordinates"),
        ("a.xyz", b"1 2 3", "points are read from .ply, .pcd"),
    ],
)
def test_read_points_bad_clouds_are_named(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=why):
        read_points(tmp_path / name)


def test_lzf_decompress_copies_may_overlap():
    # "a", then eight bytes from one before: nine times a; then "b" and a far copy.
    packed = bytes([0, ord("a"), 6 << 5, 0, 0, ord("b"), 7 << 5, 3, 9])
    assert lzf_decompress(packed, 22) == b"a" * 9 + b"b" + (b"a" * 9 + b"b" + b"a" * 2)
    with pytest.raises(ValueError, match="before their beginning"):
        lzf_decompress(bytes([0, 65, 2 << 5, 5]), 10)


def test_anchors_from_points_are_the_visible_points():
    camera = Camera(20.0, 20.0, 9.5, 7.5)
    wall = np.array([[x, y, 2.0] for x in np.arange(-0.3, 0.3, 0.2) for y in (0.0, 0.1, 0.2)])
    behind = np.array([[0.02, 0.34, 4.0]])  # falls into a pixel of its own, among the wall's
    back, aside = np.array([[0.0, 0.0, -2.0]]), np.array([[9.0, 0.0, 2.0]])
    points = np.concatenate([wall, behind, back, aside])
    seen = anchors_from_points(points, camera, (16, 20))
    assert set(seen.depth_m) == {2.0}
    through = anchors_from_points(points, camera, (16, 20), see_through=None)
    assert sorted(set(through.depth_m)) == [2.0, 4.0]
    # The same cloud in a frame of its own: z up, x forward.
    camera_from_points = np.array([[0, -1, 0, 0], [0, 0, -1, 0.1], [1, 0, 0, 0.2], [0, 0, 0, 1.0]])
    points_of_cloud = (points - camera_from_points[:3, 3]) @ camera_from_points[:3, :3]
    again = anchors_from_points(
        points_of_cloud, camera, (16, 20), camera_from_points=camera_from_points
    )
    np.testing.assert_allclose(again.depth_m, seen.depth_m)
    np.testing.assert_array_equal(np.c_[again.u, again.v], np.c_[seen.u, seen.v])
    with pytest.raises(InputError, match="see-through must"):
        SeeThrough((0, 5))


def test_read_points_recognises_a_depth_map(tmp_path):
    np.save(tmp_path / "d.npy", np.ones((48, 65)))
    with pytest.raises(InputError, match=r"65×48 is a depth map .* takes it as --depth"):
        read_points(tmp_path / "d.npy")
