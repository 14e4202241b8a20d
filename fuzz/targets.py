"""Every reader of the package, with small valid files to damage and what it promises to give."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, PngImagePlugin

from fuzz.engine import Target
from fuzz.recoveries import check_recovery, seeds_of_recover
from scalefield.anchors import Anchors
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.benchmark.method_spec import MethodSpec
from scalefield.benchmark.run import Evaluation, claim
from scalefield.datasets import open_dataset
from scalefield.datasets.kitti import read_calibration
from scalefield.datasets.splits import read_list
from scalefield.errors import InputError
from scalefield.export.nerfstudio import add_depth, make_transforms
from scalefield.geometry.camera import read_rigid
from scalefield.geometry.colmap import model_frames, read_model
from scalefield.geometry.point_clouds import read_points
from scalefield.io import UNITS_TAG, read_image, read_labels, read_map
from scalefield.io.videos import read_frames
from scalefield.labelling.labeller import LabelConfig, read_records
from scalefield.labelling.rules import Rules
from scalefield.labelling.run import Summary
from scalefield.labelling.run import claim as claim_labels
from scalefield.labelling.samples import Job, Piece, Sample, find_jobs
from scalefield.mde.cache import MDECache, checksum
from scalefield.mde.estimator import Estimator, Preprocess, Raw
from scalefield.mde.hub import Weights
from scalefield.mde.lite import LiteNet, load_lite
from scalefield.mde.onnx_mde import load_onnx, read_description
from scalefield.methods.field import FieldModel, load_field
from scalefield.training.loop import RunFolder
from scalefield.web.app import create_app
from scalefield.web.uploads import Limits, read_depth, read_photo

SHAPE = (6, 8)
Seeds = Callable[[Path], Sequence[bytes]]


def depth() -> np.ndarray:
    """A small smooth map."""
    v, u = np.indices(SHAPE)
    return (1.5 + np.sin(u / 2) * 0.6 + v / 5).astype(np.float32)


def picture() -> np.ndarray:
    """A small coloured image."""
    v, u = np.indices(SHAPE)
    return np.stack([30 * u, 40 * v, 10 * (u + v)], axis=-1).astype(np.uint8)


def fixed(*contents: bytes) -> Seeds:
    """Seeds that need nothing beside them."""
    return lambda folder: contents


# ---- containers: damage their content, repair their checksums --------------------------------


def npy(values: np.ndarray) -> bytes:
    """An array as NPY."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


MARK = b"\n<member>\n"


def members(**contents: bytes) -> bytes:
    """Several files in one string of bytes, to be damaged before they are zipped."""
    return b"".join(MARK + name.encode() + MARK + data for name, data in contents.items())


def zipped(data: bytes) -> bytes:
    """A zip of what `members` joined, with the right checksums."""
    parts = data.split(MARK)[1:]
    buffer = io.BytesIO()
    deflate = zipfile.ZIP_DEFLATED if len(data) % 2 else zipfile.ZIP_STORED
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", deflate) as archive:
        warnings.simplefilter("ignore")  # two members of one name are a case to test
        for name, content in zip(parts[::2], parts[1::2], strict=False):
            archive.writestr(zipfile.ZipInfo(name.decode("latin1").replace("\0", "")), content)
    return buffer.getvalue()


def png(values: np.ndarray, **text: str) -> bytes:
    """An array as PNG, with text chunks."""
    tags, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    for key, value in text.items():
        tags.add_text(key.replace("__", ":"), value)
    Image.fromarray(values).save(buffer, "PNG", pnginfo=tags)
    return buffer.getvalue()


def with_crcs(data: bytes) -> bytes:
    """A PNG whose chunks have the right checksums again."""
    out, at = bytearray(data), 8
    while at + 8 <= len(out):
        end = at + 8 + int.from_bytes(out[at : at + 4], "big")
        if end + 4 > len(out):
            break
        out[end : end + 4] = zlib.crc32(out[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(out)


def encoded(form: str, **options: Any) -> bytes:
    """The picture in an image format."""
    buffer = io.BytesIO()
    Image.fromarray(picture()).save(buffer, form, **options)
    return buffer.getvalue()


def exif() -> Any:
    """Turned by 90°, with a focal length."""
    tags = Image.Exif()
    tags[274] = 6
    tags.get_ifd(0x8769)[41989] = 28
    return tags


def safetensors(data: bytes, header: bytes) -> bytes:
    """A safetensors file with the right length before its header."""
    return len(header).to_bytes(8, "little") + header + data


# ---- what readers promise ---------------------------------------------------------------------


def check_anchors(path: Path) -> None:
    """Finite, positive, inside float32."""
    anchors = Anchors.read(path)
    assert np.isfinite(anchors.u).all()
    assert np.isfinite(anchors.v).all()
    assert (anchors.depth_m > 0).all()
    assert np.isfinite(anchors.depth_m).all()


def check_map(path: Path) -> None:
    """Two-dimensional floats."""
    values = read_map(path)
    assert values.ndim == 2
    assert values.size > 0
    assert values.dtype in (np.float32, np.float64)


def check_labels(path: Path) -> None:
    """Two-dimensional integers."""
    labels = read_labels(path)
    assert labels.ndim == 2
    assert labels.dtype == np.int64


def check_image(path: Path) -> None:
    """uint8 RGB."""
    image = read_image(path)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3


def check_points(path: Path) -> None:
    """Finite rows of three."""
    points = read_points(path)
    assert points.shape[1] == 3
    assert len(points) > 0
    assert np.isfinite(points).all()


def check_colmap(path: Path) -> None:
    """Anchors that `Anchors` accepts, in cameras of some size."""
    for frame in model_frames(read_model(path.parent), min_track=2):
        assert min(frame.shape) > 0
        assert np.isfinite(frame.anchors.depth_m).all()


def check_transforms(path: Path) -> None:
    """A depth file for every frame, and nothing else changed."""
    model = read_model(path.parent)
    names = [image.name for image in model.images.values()]
    files = {name: path.parent / "images" / name for name in names}
    content = add_depth(path, model, files, files)
    assert all(isinstance(frame["depth_file_path"], str) for frame in content["frames"])


def check_calibration(path: Path) -> None:
    """A finite way from scanner to pixel."""
    raw = path.name.startswith("calib_")
    calibration = read_calibration(path.parent if raw else path)
    assert np.isfinite(calibration.camera_from_velo).all()
    assert np.isfinite(calibration.camera.intrinsics).all()


def check_frame(name: str, dataset: str, root: Callable[[Path], Path], path: Path) -> None:
    """A frame whose maps have the image's size."""
    frame = open_dataset(dataset, root(path)).load(name)
    assert frame.depth_m.shape == frame.image.shape[:2]
    if frame.intrinsics is not None:
        assert np.isfinite(frame.intrinsics).all()


def check_generator(path: Path) -> None:
    """What loads gives maps; any numbers are valid weights, so their values are not checked."""
    generator = Generator.load(path.parent)
    maps = generator(None, torch.from_numpy(depth()).log()[None, None])
    assert maps.gating.shape[2:] == SHAPE


def check_field(path: Path) -> None:
    """Whatever loads has a kernel of numbers."""
    load_field.cache_clear()
    model = FieldModel.load(path.parent)
    assert np.isfinite(float(model.kernel.constant_std))


def check_lite(path: Path) -> None:
    """The estimator is built; wrong weights are not run, because any numbers are weights."""
    load_lite.cache_clear()
    load_lite(path.parent)
    load_lite.cache_clear()


def check_onnx(path: Path) -> None:
    """A network that runs on a picture, or a sentence."""
    estimator = load_onnx(path.parent / "net.onnx")
    assert estimator(picture()).prediction.shape == SHAPE


def check_cache(path: Path) -> None:
    """What is damaged is made again, and equals what was there."""
    output = MDECache(path.parent, flat_mde())(picture())
    assert output.prediction.shape == SHAPE
    assert output.kind in ("depth", "disparity")


def flat_mde() -> Estimator:
    """A trivial estimator."""
    preprocess = Preprocess((8, 8), "stretch")
    return Estimator("flat", "r1", "depth", preprocess, lambda x: Raw(x.mean(1) + 9, x))


def cache_entry(record: bytes) -> bytes:
    """A cache file with this record, its checksum right."""
    from safetensors.torch import save

    tensors = {"prediction": torch.from_numpy(depth()), "features": torch.zeros(3, 2, 2).half()}
    try:
        fields = json.loads(record)
        # The record may also say that tensors are missing, or have another shape.
        for name, change in (fields.pop("tensors", None) or {}).items():
            if change is None:
                tensors.pop(name, None)
            else:
                tensors[name] = torch.zeros([int(n) % 9 for n in change])
        fields["checksum"] = checksum(tensors, fields)
        record = json.dumps(fields).encode()
        return save(tensors, metadata={"record": record.decode()})
    except (ValueError, TypeError, AttributeError, RuntimeError, OverflowError):
        return save(tensors, metadata={"record": record.decode("latin1")})


def check_jobs(path: Path) -> None:
    """Keys that stay inside their folder, samples that can be read or are refused."""
    jobs, _ = find_jobs(path)
    for job in jobs:
        for sample in job.samples:
            assert not sample.key.startswith("/")
            assert ".." not in Path(sample.key).parts
            sample.read_image()
            sample.read_anchors()


def check_claim(path: Path) -> None:
    """A damaged configuration is another one, or unreadable."""
    methods = (MethodSpec("median", "median"),)
    claim(path.parent, Evaluation("x", "folder", "all", "lite", methods, ("low",), False, 0),
          overwrite=False)  # fmt: skip


def check_label_claim(path: Path) -> None:
    """A damaged configuration is another one, or unreadable."""
    claim_labels(path.parent, LabelConfig("lite", "median"), [])


def check_label_record(path: Path) -> None:
    """A damaged record is another one, or no record of a label."""
    photograph = Piece(path.with_suffix(".jpg"))
    job = Job(path.stem, (Sample(path.stem, photograph, photograph),))
    for record in read_records(path.parent, job):
        Summary().add(record)


def labelled(folder: Path) -> list[bytes]:
    """The configuration that `label` leaves in its folder."""
    check_label_claim(folder / "label.json")
    return [(folder / "label.json").read_bytes()]


def check_run(path: Path) -> None:
    """A damaged record of training is another one, or unreadable."""
    RunFolder(path.parent, Rules())


def trained(folder: Path) -> list[bytes]:
    """The record that training leaves in its folder."""
    check_run(folder / "run.json")
    return [(folder / "run.json").read_bytes()]


def check_hub(path: Path) -> None:
    """A model's type, if it says one."""
    Weights(path.parent, "").architecture  # noqa: B018


def check_photo(path: Path) -> None:
    """uint8 RGB within the limits."""
    photo = read_photo(path.read_bytes(), Limits(pixels=10_000))
    assert photo.pixels.dtype == np.uint8
    assert photo.pixels.shape[0] * photo.pixels.shape[1] <= 10_000


def check_upload(suffix: str, path: Path) -> None:
    """A map within the limits, or a sentence that does not name our files."""
    try:
        values = read_depth(path.read_bytes(), suffix, Limits(pixels=10_000))
    except InputError as e:
        if tempfile.gettempdir() in str(e):
            raise AssertionError(f"it names our files: {e}") from None
        raise
    assert values.ndim == 2


# ---- seeds that need company ------------------------------------------------------------------


@cache
def colmap_files() -> dict[str, bytes]:
    """A synthetic model as text and as binary."""
    import pycolmap

    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_frames_per_rig, options.num_points3D = 1, 3, 6
    options.num_points2D_without_point3D = 1
    pycolmap.set_random_seed(0)
    model = pycolmap.synthesize_dataset(options)
    with tempfile.TemporaryDirectory() as folder:
        model.write_binary(folder)
        model.write_text(folder)
        return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


def colmap(name: str, folder: Path) -> list[bytes]:
    """The other files of the same kind beside the one in question."""
    files = colmap_files()
    suffix = Path(name).suffix
    for other, content in files.items():
        if other.endswith(suffix):
            (folder / other).write_bytes(content)
    return [files[name]]


def transforms(folder: Path) -> list[bytes]:
    """A model, and a transforms.json of its images as other programs make it."""
    for name, content in colmap_files().items():
        if name.endswith(".bin"):
            (folder / name).write_bytes(content)
    model = read_model(folder)
    names = [image.name for image in model.images.values()]
    files = {name: folder / "images" / name for name in names}
    shapes = dict.fromkeys(names, (48, 64))
    content = make_transforms(model, files, files, shapes, folder) | {"applied_scale": 1.0}
    del content["made_by"]
    return [json.dumps(content).encode()]


def kitti(folder: Path, file: str) -> list[bytes]:
    """A recording day's two files, of which one is damaged."""
    eye = "1 0 0 0 1 0 0 0 1"
    files = {
        "calib_cam_to_cam.txt": f"R_rect_00: {eye}\nP_rect_02: 7e2 0 6e2 4.4e1 0 7e2 1.7e2 0.2 "
        "0 0 1 2.7e-3\n",
        "calib_velo_to_cam.txt": f"calib_time: 15-Mar\nR: {eye}\nT: 4e-3 -7.6e-2 -2.7e-1\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return [files[file].encode()]


KITTI_OBJECT = b"""P2: 7e2 0 6e2 4.4e1 0 7e2 1.7e2 0.2 0 0 1 2.7e-3
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 -0.1 1 0 0 -0.3
"""


def folder_dataset(folder: Path) -> list[bytes]:
    """A plain folder with one frame; its meta.json is damaged."""
    for name in ("rgb", "depth", "label"):
        (folder / name).mkdir()
    (folder / "rgb" / "a.png").write_bytes(encoded("PNG"))
    (folder / "depth" / "a.png").write_bytes(png((1000 * depth()).astype(np.uint16)))
    (folder / "label" / "a.png").write_bytes(png(np.ones(SHAPE, np.uint8)))
    meta = {
        "depth_scale_per_metre": 1000,
        "depth_range_m": [0.1, 10],
        "sky_label": 2,
        "frames": [{"name": "a", "scene": "s", "K": [5, 5, 4, 3]}],
    }
    return [json.dumps(meta).encode()]


def predictions(folder: Path, file: str = "meta.json") -> list[bytes]:
    """One frame with a stored prediction, of which one file is damaged."""
    frame = folder / "a"
    frame.mkdir()
    (frame / "rgb.png").write_bytes(encoded("PNG"))
    truth = members(**{"gt.npy": npy(depth())})
    (frame / "gt.npz").write_bytes(zipped(truth))
    (frame / "pred.npz").write_bytes(zipped(members(**{"pred.npy": npy(1 / depth())})))
    meta = {
        "kind": "disparity",
        "affine": True,
        "group": "g",
        "scene": "s",
        "model": "m",
        "metric": True,
        "units_per_metre": 1.0,
        "depth_range_m": [0.1, 10],
    }
    (frame / "meta.json").write_text(json.dumps(meta))
    return [truth] if file == "gt.npz" else [json.dumps(meta).encode()]


def sunrgbd(folder: Path, file: str) -> list[bytes]:
    """One frame of SUN RGB-D in its layout."""
    from scipy.io import savemat

    buffer = io.BytesIO()
    savemat(buffer, {"seglabel": np.ones(SHAPE, np.uint16)})
    for name in ("image", "depth_bfx"):
        (folder / name).mkdir()
    (folder / "image" / "a.jpg").write_bytes(encoded("JPEG"))
    (folder / "depth_bfx" / "a.png").write_bytes(png((8000 * depth()).astype(np.uint16)))
    files = {"intrinsics.txt": b"5 0 4 0 5 3 0 0 1", "seg.mat": buffer.getvalue()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [files[file]]


def urbansyn(folder: Path) -> list[bytes]:
    """One frame of UrbanSyn in its layout; the camera's description is damaged."""
    for name in ("rgb", "ss", "depth"):
        (folder / name).mkdir()
    (folder / "rgb" / "rgb_0001.png").write_bytes(encoded("PNG"))
    (folder / "ss" / "ss_0001.png").write_bytes(png(np.ones(SHAPE, np.uint8)))
    (folder / "depth" / "depth_0001.exr").write_bytes(exr())
    camera = {"focalLength_mm": 20.0, "sensorWidth_mm": 36.0, "sensorHeight_mm": 18.0}
    return [json.dumps({"parameters": [{"Camera": camera}]}).encode()]


@cache
def exr(**header: Any) -> bytes:
    """The map as OpenEXR."""
    import OpenEXR

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/map.exr"
        with OpenEXR.File(dict(header), {"Z": depth()}) as file:
            file.write(path)
        return Path(path).read_bytes()


def exrs(folder: Path) -> list[bytes]:
    """Several compressions."""
    import OpenEXR

    kinds = (OpenEXR.NO_COMPRESSION, OpenEXR.ZIP_COMPRESSION, OpenEXR.PIZ_COMPRESSION)
    return [exr(compression=kind) for kind in kinds]


def heics(folder: Path) -> list[bytes]:
    """A photograph as phones write it."""
    import pillow_heif

    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(buffer, quality=50)
    return [buffer.getvalue()]


def videos(folder: Path) -> list[bytes]:
    """Three frames."""
    import av

    path = folder / "seed.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 16, 32, "yuv420p"
        for i in range(3):
            pixels = np.full((16, 32, 3), 60 * i, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return [path.read_bytes()]


def check_video(path: Path) -> None:
    """A few frames of uint8 RGB."""
    for frame in islice(read_frames(path), 5):
        assert frame.image.dtype == np.uint8
        assert frame.image.shape[2] == 3


def generator(folder: Path, file: str) -> list[bytes]:
    """A tiny generator; its configuration or its weights are damaged."""
    torch.manual_seed(0)
    Generator(GeneratorConfig(k=2, width=8, dilations=(1,), cells=8)).save(folder)
    content = (folder / file).read_bytes()
    if file == "config.json":
        return [content]
    length = int.from_bytes(content[:8], "little")
    return [content[8 : 8 + length]]


@cache
def generator_data() -> bytes:
    """The weights without their header."""
    with tempfile.TemporaryDirectory() as folder:
        generator(Path(folder), "config.json")
        content = Path(folder, "model.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


@cache
def lite_files() -> tuple[bytes, bytes]:
    """Header and data of lite's weights, all zeros."""
    from safetensors.torch import save

    state = {k: v.half() for k, v in LiteNet().state_dict().items() if v.is_floating_point()}
    content = save({name: torch.zeros_like(value) for name, value in state.items()})
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], content[8 + length :]


def lite(folder: Path, file: str) -> list[bytes]:
    """Lite's weights; header or configuration are damaged."""
    header, data = lite_files()
    (folder / "config.json").write_text('{"revision": "r1"}')
    (folder / "model.safetensors").write_bytes(safetensors(data, header))
    return [b'{"revision": "r1"}' if file == "config.json" else header]


@cache
def field_files() -> dict[str, bytes]:
    """The shipped model: its configuration, and header and data of its weights."""
    with tempfile.TemporaryDirectory() as folder:
        load_field("field").save(folder)
        config = Path(folder, "config.json").read_bytes()
        weights = Path(folder, "model.safetensors").read_bytes()
    length = int.from_bytes(weights[:8], "little")
    return {
        "config.json": config,
        "model.safetensors": weights[8 : 8 + length],
        "data": weights[8 + length :],
    }


def field(folder: Path, file: str) -> list[bytes]:
    """The shipped model, of which one file is damaged."""
    files = field_files()
    (folder / "config.json").write_bytes(files["config.json"])
    whole = safetensors(files["data"], files["model.safetensors"])
    (folder / "model.safetensors").write_bytes(whole)
    return [files[file]]


@cache
def onnx_file() -> bytes:
    """One convolution."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.full((1, 3, 1, 1), 0.3, np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["depth"])],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("depth", TensorProto.FLOAT, [1, 1, 4, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


SIDECAR = b'{"kind": "depth", "size": [4, 4], "multiple": 4, "dynamic": true, "mean": [0, 0, 0], \
"std": [1, 1, 1], "output": "depth", "name": "net", "fit": "inside"}'


def onnx(folder: Path, file: str) -> list[bytes]:
    """A network and its description, of which one is damaged."""
    files = {"net.onnx": onnx_file(), "net.json": SIDECAR}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [files[file]]


def check_sidecar(path: Path) -> None:
    """The description alone; sizes that no machine can hold are not run."""
    _, config = read_description(path)
    height, width = config.preprocess.target(SHAPE)
    if height * width <= 10_000:
        check_onnx(path)


def cache_seeds(folder: Path) -> list[bytes]:
    """The record inside a cache file."""
    fields = {"kind": "depth", "model": "flat", "revision": "r1", "options": {"size": [8, 8]}}
    return [
        json.dumps({**fields, "tensors": {}}).encode(),
        json.dumps({**fields, "tensors": {"prediction": [6, 8], "features": None}}).encode(),
    ]


def label_list(folder: Path) -> list[bytes]:
    """A list of two samples beside it."""
    for name in ("a", "b"):
        (folder / f"{name}.png").write_bytes(encoded("PNG"))
        (folder / f"{name}.anchors.csv").write_bytes(CSV)
    return [b"image,anchors\na.png,a.anchors.csv\nb.png,b.anchors.csv\n"]


def tar() -> bytes:
    """A shard of one sample."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("a.png", encoded("PNG")), ("a.anchors.csv", CSV)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def claimed(folder: Path) -> list[bytes]:
    """The configuration that `evaluate` leaves in its folder."""
    check_claim(folder / "config.json")
    return [(folder / "config.json").read_bytes()]


CSV = b"u,v,depth_m,sigma_m\n1,2,3.5,0.1\n4.25,5,1e1,0.2\n0,0,0.25,1e-3\n"
COLUMNS = {"u": [1.0, 4.0], "v": [2.0, 5.0], "depth_m": [3.5, 10.0], "sigma_m": [0.1, 0.2]}
PLY_TEXT = b"""ply
format ascii 1.0
element vertex 3
property float x
property float y
property float z
property uchar red
element face 1
property list uchar int vertex_indices
end_header
0 1 2 9
3 4 5 9
6 7 8 9
3 0 1 2
"""
PLY_BINARY = (
    b"ply\nformat binary_little_endian 1.0\nelement camera 1\nproperty float f\n"
    b"element vertex 3\nproperty float x\nproperty float y\nproperty double z\nend_header\n"
    + struct.pack("<f", 1) + b"".join(struct.pack("<ffd", i, 1, 2) for i in range(3))
)  # fmt: skip
PCD_HEADER = (
    "VERSION .7\nFIELDS x y z _ i\nSIZE 4 4 4 1 2\nTYPE F F F U U\nCOUNT 1 1 1 2 1\nWIDTH 3\n"
    "HEIGHT 1\nPOINTS 3\nDATA {}\n"
)
PCD_TEXT = PCD_HEADER.format("ascii").encode() + b"0 1 2 0 0 5\n3 4 5 0 0 6\n6 7 8 0 0 7\n"
PCD_BODY = b"".join(struct.pack("<fffBBH", i, 1, 2, 0, 0, 7) for i in range(3))
PCD_BINARY = PCD_HEADER.format("binary").encode() + PCD_BODY
PACKED = bytes([29]) + bytes(30) + bytes([5]) + bytes(6) + bytes([0x20, 3]) + bytes([8]) + bytes(9)
PCD_PACKED = (
    PCD_HEADER.format("binary_compressed").encode() + struct.pack("<II", len(PACKED), 48) + PACKED
)
PFM = b"Pf\n8 6\n-1.0\n" + depth().tobytes()


# ---- the page's API ---------------------------------------------------------------------------


class Page:
    """The ASGI application with one session, made when it is first needed."""

    @cache  # noqa: B019 - there is one page
    def client(self) -> tuple[Any, str]:
        """A client and the address of a session that is ready."""
        import time

        from starlette.testclient import TestClient

        client = TestClient(create_app(), base_url="http://127.0.0.1:8008")
        client.__enter__()
        made = client.post("/api/sessions?name=a.png", content=encoded("PNG")).json()
        while client.get(f"/api/sessions/{made['id']}").json()["state"] != "ready":
            time.sleep(0.01)
        return client, f"/api/sessions/{made['id']}"

    def post(self, route: str, path: Path) -> None:
        """Answers are 200 with numbers, or 4xx with a sentence."""
        client, session = self.client()
        answer = client.post(
            session + route, content=path.read_bytes(), headers={"content-type": "application/json"}
        )
        if answer.status_code == 200:
            return
        assert 400 <= answer.status_code < 500, answer.status_code
        raise InputError(answer.json()["error"])


PAGE = Page()
EDIT = b'{"anchors": [{"u": 1, "v": 2, "depth_m": 3.5}, {"u": 6.5, "v": 4, "depth_m": 10}, \
{"u": 3, "v": 5, "depth_m": 2}], "method": "%s", "points": [{"u": 0, "v": 1}], "fov_deg": 60}'
RECORDS = (
    b'{"key": "p", "keep": false, "figures": {}, '
    b'"reasons": [{"rule": "min_anchors", "value": 3, "limit": 10}]}',
    b'{"key": "p", "failed": "p.jpg: no such file"}',
)
EDITS = tuple(EDIT % name for name in (b"field", b"basis", b"global", b"lwlr"))

IMAGES = (
    *(encoded(form) for form in ("PNG", "JPEG", "WEBP", "BMP")),
    encoded("JPEG", exif=exif()),
    encoded("PNG", exif=exif()),
)
DEPTH_PNG = png((1000 * depth()).astype(np.uint16), **{UNITS_TAG.replace(":", "__"): "1000.0"})
LABELS_PNG = png((depth() * 3).astype(np.uint8))
NPYS = tuple(npy(depth().astype(kind)) for kind in ("f4", "f8", "f2", "u2"))
POINTS = np.arange(12, dtype=np.float32).reshape(4, 3)
MAP_NPZ = members(**{"depth.npy": npy(depth())})

TARGETS: tuple[Target, ...] = (
    Target("anchors.csv", fixed(CSV, b"u,v,depth_m\n1,2,3\n"), check_anchors),
    Target("anchors.npz", fixed(members(**{f"{k}.npy": npy(np.array(v)) for k, v in
                                           COLUMNS.items()})), check_anchors, wrap=zipped),
    Target("anchors.png", fixed(DEPTH_PNG), check_anchors, wrap=with_crcs),
    Target("map.npy", fixed(*NPYS), check_map),
    Target("map.npz", fixed(MAP_NPZ), check_map, wrap=zipped),
    Target("map.png", fixed(DEPTH_PNG), check_map, wrap=with_crcs),
    Target("map.exr", exrs, check_map),
    Target("map.pfm", fixed(PFM), check_map),
    Target("labels.png", fixed(LABELS_PNG), check_labels, wrap=with_crcs),
    Target("labels.npy", fixed(npy(np.ones(SHAPE, np.int32))), check_labels),
    Target("image.png", fixed(*IMAGES), check_image, wrap=with_crcs),
    Target("image.heic", heics, check_image, share=0.3),
    Target("video.mp4", videos, check_video, share=0.3),
    Target("points.ply", fixed(PLY_TEXT, PLY_BINARY), check_points),
    Target("points.pcd", fixed(PCD_TEXT, PCD_BINARY, PCD_PACKED), check_points),
    Target("points.bin", fixed(bytes(POINTS.astype("<f4").tobytes() + bytes(16))), check_points),
    Target("points.npz", fixed(members(**{"points.npy": npy(POINTS)})), check_points, wrap=zipped),
    Target("points.npy", fixed(npy(POINTS)), check_points),
    *(
        Target(f"colmap {name}", partial(colmap, name), check_colmap, file=name)
        for name in ("cameras.txt", "images.txt", "points3D.txt", "rigs.txt", "frames.txt",
                     "cameras.bin", "images.bin", "points3D.bin", "rigs.bin", "frames.bin")
    ),
    Target("colmap transforms.json", transforms, check_transforms, file="transforms.json"),
    Target("kitti calib_cam_to_cam.txt", lambda f: kitti(f, "calib_cam_to_cam.txt"),
           check_calibration, file="calib_cam_to_cam.txt"),
    Target("kitti calib_velo_to_cam.txt", lambda f: kitti(f, "calib_velo_to_cam.txt"),
           check_calibration, file="calib_velo_to_cam.txt"),
    Target("kitti object.txt", fixed(KITTI_OBJECT), check_calibration),
    Target("rigid.txt", fixed(b"1 0 0 0.1 0 1 0 2 0 0 1 3"), read_rigid),
    Target("train.txt", fixed(b"a/b/1\na/b/2\n\na/c/3\n"), read_list),
    Target("folder meta.json", folder_dataset,
           partial(check_frame, "a", "folder", lambda p: p.parent), file="meta.json"),
    Target("predictions meta.json", predictions,
           partial(check_frame, "a", "predictions", lambda p: p.parent.parent), file="a/meta.json"),
    Target("predictions gt.npz", lambda f: predictions(f, "gt.npz"),
           partial(check_frame, "a", "predictions", lambda p: p.parent.parent), file="a/gt.npz",
           wrap=zipped),
    Target("sunrgbd intrinsics.txt", lambda f: sunrgbd(f, "intrinsics.txt"),
           partial(check_frame, ".", "sunrgbd", lambda p: p.parent), file="intrinsics.txt"),
    Target("sunrgbd seg.mat", lambda f: sunrgbd(f, "seg.mat"),
           partial(check_frame, ".", "sunrgbd", lambda p: p.parent), file="seg.mat"),
    Target("urbansyn camera_metadata.json", urbansyn,
           partial(check_frame, "0001", "urbansyn", lambda p: p.parent),
           file="camera_metadata.json"),
    Target("generator config.json", lambda f: generator(f, "config.json"), check_generator,
           file="config.json"),
    Target("generator model.safetensors", lambda f: generator(f, "model.safetensors"),
           check_generator, file="model.safetensors",
           wrap=lambda header: safetensors(generator_data(), header)),
    Target("lite config.json", lambda f: lite(f, "config.json"), check_lite, file="config.json",
           share=0.1),
    Target("lite model.safetensors", lambda f: lite(f, "model.safetensors"), check_lite,
           file="model.safetensors", share=0.1,
           wrap=lambda header: safetensors(lite_files()[1], header)),
    Target("field config.json", lambda f: field(f, "config.json"), check_field,
           file="config.json", share=0.5),
    Target("field model.safetensors", lambda f: field(f, "model.safetensors"), check_field,
           file="model.safetensors", share=0.5,
           wrap=lambda header: safetensors(field_files()["data"], header)),
    Target("net.json", lambda f: onnx(f, "net.json"), check_sidecar),
    Target("net.onnx", lambda f: onnx(f, "net.onnx"), check_onnx),
    Target("cache entry", cache_seeds, check_cache, wrap=cache_entry,
           file=MDECache(Path("."), flat_mde()).path(picture()).name),
    Target("labelling list.csv", label_list, check_jobs, file="list.csv"),
    Target("labelling shard.tar", fixed(tar()), check_jobs, file="shard.tar"),
    Target("labelling KEY.json", fixed(*RECORDS), check_label_record, file="p.json"),
    Target("labelling label.json", labelled, check_label_claim, file="label.json"),
    Target("training run.json", trained, check_run, file="run.json"),
    Target("hub config.json", fixed(b'{"model_type": "dpt", "a": [1]}'), check_hub,
           file="config.json"),
    Target("evaluation config.json", claimed, check_claim, file="config.json"),
    Target("web photo", fixed(*IMAGES), check_photo, wrap=with_crcs),
    Target("web depth.npy", fixed(*NPYS), partial(check_upload, ".npy")),
    Target("web depth.npz", fixed(MAP_NPZ), partial(check_upload, ".npz"), wrap=zipped),
    Target("web depth.png", fixed(DEPTH_PNG), partial(check_upload, ".png"), wrap=with_crcs),
    Target("web depth.exr", exrs, partial(check_upload, ".exr")),
    Target("web depth.pfm", fixed(PFM), partial(check_upload, ".pfm")),
    Target("web recover", fixed(*EDITS), partial(PAGE.post, "/recover"), share=0.5),
    Target("web measure", fixed(*EDITS), partial(PAGE.post, "/measure"), share=0.5),
    Target("web suggest", fixed(*EDITS), partial(PAGE.post, "/suggest"), share=0.3),
    Target("web file", fixed(*EDITS), partial(PAGE.post, "/files/cloud.ply"), share=0.3),
    Target("recover", seeds_of_recover, check_recovery, share=6),
)  # fmt: skip
