"""Readers of published benchmarks on generated samples in their layouts."""

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from scalefield.cli import main
from scalefield.datasets import open_dataset
from scalefield.datasets.published import LAYOUTS, pooled
from scalefield.errors import InputError

RNG = np.random.default_rng(1)


def photo(height: int, width: int) -> np.ndarray:
    v, u = np.indices((height, width))
    return np.stack([u % 256, v % 256, (u + v) % 256], axis=2).astype(np.uint8)


def slope(height: int, width: int) -> np.ndarray:
    v, u = np.indices((height, width))
    return (2 + u / width + v / height).astype(np.float32)


def write_png16(path, depth_m, units=256):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((depth_m * units).round().astype(np.uint16)).save(path)


def write_photo(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def write_nyu_h5(root, count=1):
    h5py = pytest.importorskip("h5py")
    for i in range(1, count + 1):
        path = root / "val" / "official" / f"{i:05d}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file["rgb"] = np.roll(photo(480, 640), i, axis=1).transpose(2, 0, 1)
            file["depth"] = slope(480, 640) * i


def test_nyu_h5_is_halved_and_cropped(tmp_path):
    write_nyu_h5(tmp_path)
    dataset = open_dataset("nyu", tmp_path)
    assert dataset.names("test") == ["val/official/00001"]
    frame = dataset.load("val/official/00001")
    assert frame.image.shape == (228, 304, 3)
    # Of a slope the mean of four pixels is their middle; the crop leaves 6 rows and 8 columns.
    middle = slope(480, 640)[12:468:2, 16:624:2] + 0.5 / 640 + 0.5 / 480
    np.testing.assert_allclose(frame.depth_m, middle, rtol=1e-3)
    assert frame.intrinsics is not None


def test_nyu_official_mat_has_the_test_images_of_its_splits(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"] = np.stack([photo(480, 640).transpose(2, 1, 0)] * 3)
        file["depths"] = np.stack([slope(480, 640).T * k for k in (1, 2, 3)])
    savemat(tmp_path / "splits.mat", {"testNdxs": np.array([[2], [3]], np.uint16)})
    dataset = open_dataset("nyu", tmp_path)
    assert dataset.names("test") == ["00002", "00003"]
    frame = dataset.load("00003")
    middle = slope(480, 640)[12:468:2, 16:624:2] + 0.5 / 640 + 0.5 / 480
    np.testing.assert_allclose(frame.depth_m, 3 * middle, rtol=1e-3)
    (tmp_path / "nyu_depth_v2_labeled.mat").write_bytes(b"no")
    with pytest.raises(InputError, match="not the expected HDF5 file"):
        dataset.load("00003")


def test_void_follows_the_lists_of_the_test_set(tmp_path):
    root = tmp_path / "void_150"
    root.mkdir()
    depth, sparse = slope(48, 64), np.zeros((48, 64))
    sparse[::9, ::7] = depth[::9, ::7]
    depth[:5] = 0
    write_photo(tmp_path / "void_150/data/a/image/1.png", photo(48, 64))
    write_png16(tmp_path / "void_150/data/a/ground_truth/1.png", depth)
    write_png16(tmp_path / "void_150/data/a/sparse_depth/1.png", sparse)
    (tmp_path / "void_150/data/a/K.txt").write_text("50 0 32\n0 51 24\n0 0 1\n")
    kinds = {"image": "image/1.png", "ground_truth": "ground_truth/1.png",
             "sparse_depth": "sparse_depth/1.png", "intrinsics": "K.txt"}  # fmt: skip
    for kind, file in kinds.items():
        (root / f"test_{kind}.txt").write_text(f"void_150/data/a/{file}\n")
    dataset = open_dataset("void", root)
    (name,) = dataset.names("test")
    frame = dataset.load(name)
    assert np.isnan(frame.depth_m[:5]).all()
    np.testing.assert_allclose(frame.depth_m[5:], depth[5:], atol=1 / 256)
    assert np.count_nonzero(np.isfinite(frame.sparse_m)) == np.count_nonzero(sparse)
    assert frame.intrinsics == (50, 51, 32, 24)
    (root / "test_sparse_depth.txt").write_text("")
    with pytest.raises(InputError, match=r"test_sparse_depth\.txt: has no line for"):
        dataset.load(name)


def test_ibims_struct_and_raw_release_agree(tmp_path):
    image, depth = photo(48, 64), slope(48, 64)
    depth[:4] = 0
    (tmp_path / "imagelist.txt").write_text("corridor_01\n")
    dataset = open_dataset("ibims", tmp_path)
    write_photo(tmp_path / "rgb/corridor_01.png", image)
    write_png16(tmp_path / "depth/corridor_01.png", depth, 65535 / 50)
    raw = dataset.load("corridor_01")
    (tmp_path / "gt_depth").mkdir()
    path = tmp_path / "gt_depth/corridor_01.mat"
    savemat(path, {"data": {"rgb": image, "depth": depth.astype(float), "calib": np.eye(3)}})
    packed = dataset.load("corridor_01")
    np.testing.assert_array_equal(raw.image, packed.image)
    np.testing.assert_allclose(raw.depth_m, packed.depth_m, atol=50 / 65535)
    np.testing.assert_allclose(packed.depth_m[4:], depth[4:])
    savemat(path, {"data": {"rgb": image}})
    with pytest.raises(InputError, match="no field 'depth'"):
        dataset.load("corridor_01")
    savemat(path, {"data": depth})
    with pytest.raises(InputError, match="it is no struct"):
        dataset.load("corridor_01")


def diode_by_shifts(depth, mask, share):
    """The public filter written out: differences to all eight neighbours, zero beyond the image."""
    depth = np.where((mask > 0) & (depth >= 0.1), depth, 0)
    padded = np.pad(depth, 1)
    differences = [
        np.abs(padded[1 + i : 769 + i, 1 + j : 1025 + j] - depth)
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
    ]
    return np.where(np.max(differences, axis=0) > share * depth, 0, depth)


@pytest.mark.parametrize(("place", "share"), [("indoors", 0.05), ("outdoor", 0.15)])
def test_diode_is_filtered_cropped_and_resized(tmp_path, place, share):
    folder = tmp_path / place / "scene_00019" / "scan_00183"
    folder.mkdir(parents=True)
    depth = slope(768, 1024)
    depth[:, 600:] += 0.3
    mask = (RNG.random(depth.shape) < 0.999).astype(np.float32)
    np.save(folder / "x_depth.npy", depth[..., None])
    np.save(folder / "x_depth_mask.npy", mask)
    write_photo(folder / "x.png", photo(768, 1024))
    dataset = open_dataset("diode", tmp_path)
    (name,) = dataset.names("test")
    frame = dataset.load(name)
    wanted = diode_by_shifts(depth, mask, share)[9:759, 12:1012]
    resized = np.asarray(Image.fromarray(wanted).resize((640, 480), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(np.nan_to_num(frame.depth_m), resized)
    assert 0.3 < np.isfinite(frame.depth_m).mean() < 1
    assert frame.image.shape == (480, 640, 3)


@pytest.mark.parametrize("published", [True, False])
def test_eth3d_depth_is_the_mean_of_known_pixels(tmp_path, published):
    """An image of a 32nd of the published size in both layouts, the second that of Marigold."""
    image, depth = photo(126, 189), slope(126, 189)
    depth[RNG.random(depth.shape) < 0.7] = np.inf
    for scene in ("pipes", "office"):
        photos = "" if published else "rgb/"
        depths = "" if published else f"depth/{scene}_dslr_depth/"
        write_photo(tmp_path / f"{photos}{scene}/images/dslr_images/D1.JPG", image)
        path = tmp_path / f"{depths}{scene}/ground_truth_depth/dslr_images/D1.JPG"
        path.parent.mkdir(parents=True)
        depth.astype("<f4").tofile(path)
    dataset = open_dataset("eth3d", tmp_path)
    (name,) = dataset.names("test")
    assert "pipes" in name
    assert "office" in dataset.names("val")[0]
    frame = dataset.load(name)
    assert frame.depth_m.shape == (15, 20)
    block = depth[3 + 8 : 3 + 16, 14 + 8 : 14 + 16]
    assert frame.depth_m[1, 1] == pytest.approx(block[np.isfinite(block)].mean(), rel=1e-5)
    path.write_bytes(b"1234")
    with pytest.raises(InputError, match="1 depths for an image of"):
        dataset.load(name.replace("pipes", "office"))


def test_pooled_leaves_squares_without_depth_unknown():
    depth = np.zeros((4, 4), np.float32)
    depth[0, 0], depth[2:, 2:] = 3, 5
    assert pooled(depth, 2).tolist() == [[3, 0], [0, 5]]


def test_kitti_dc_pairs_files_and_cuts_the_top(tmp_path):
    top = tmp_path / "data_depth_selection" / "val_selection_cropped"
    stem = "2011_10_03_drive_0047_sync_{}_0000000761_image_02"
    depth, scan = slope(352, 121) * 9, np.zeros((352, 121))
    scan[100::4, ::3] = depth[100::4, ::3]
    write_photo(top / "image" / f"{stem.format('image')}.png", photo(352, 121))
    write_png16(top / "groundtruth_depth" / f"{stem.format('groundtruth_depth')}.png", depth)
    write_png16(top / "velodyne_raw" / f"{stem.format('velodyne_raw')}.png", scan)
    (top / "intrinsics").mkdir()
    numbers = "721.5 0 609.6 0 721.6 172.9 0 0 1"
    (top / "intrinsics" / f"{stem.format('image')}.txt").write_text(numbers)
    dataset = open_dataset("kitti-dc", tmp_path)
    frame = dataset.load(*dataset.names("test"))
    assert frame.image.shape == (256, 121, 3)
    np.testing.assert_allclose(frame.depth_m, depth[96:], atol=1 / 256)
    assert np.count_nonzero(np.isfinite(frame.sparse_m)) == np.count_nonzero(scan)
    assert frame.intrinsics == pytest.approx((721.5, 721.6, 609.6, 172.9 - 96))
    (top / "intrinsics" / f"{stem.format('image')}.txt").write_text("721 x")
    with pytest.raises(InputError, match="a 3×3 matrix of a camera is wanted"):
        dataset.load(*dataset.names("test"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_empty_folder_names_what_is_wanted(layout, tmp_path):
    with pytest.raises(InputError, match=f"no frame of {layout} found; wanted"):
        open_dataset(layout, tmp_path).names("test")


def test_evaluate_protocol_prints_published_rows_beside_ours(tmp_path, capsys):
    write_nyu_h5(tmp_path / "nyu", count=2)
    words = ["evaluate", "--protocol", "nyu", "--root", str(tmp_path / "nyu"), "--mde", "lite",
             "--methods", "median", "--workers", "1", "--no-gallery",
             "--out", str(tmp_path / "out")]  # fmt: skip
    assert main(words) in (0, None)
    lines = capsys.readouterr().out.splitlines()
    ours = [line.split()[0] for line in lines if line.split()[1:2] == ["median"]]
    assert ours == ["points-500", "points-200", "points-100", "points-50", "points-5"]
    assert sum("OMNI-DC v1.1 (published)" in line for line in lines) == 5
