"""Every reader of the package, with small valid files to damage and what it promises to give."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import tempfile
import time
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

from fuzz.engine import Target, always
from fuzz.recoveries import SEEDS, another_call, check_call
from scalefield.anchors import Anchors
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.benchmark.method_spec import MethodSpec
from scalefield.benchmark.run import Evaluation, claim
from scalefield.datasets import Frame, open_dataset
from scalefield.datasets.kitti import Calibration, read_calibration
from scalefield.datasets.splits import read_list
from scalefield.errors import InputError
from scalefield.export.nerfstudio import add_depth, make_transforms
from scalefield.geometry.camera import Camera, read_rigid
from scalefield.geometry.colmap import model_frames, read_model
from scalefield.geometry.point_clouds import read_points
from scalefield.geometry.poses import read_poses
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
from scalefield.scene.unit import read_measurements
from scalefield.training.loop import RunFolder
from scalefield.web.app import create_app
from scalefield.web.uploads import Limits, read_depth, read_photo

SHAPE = (6, 8)
V, U = np.indices(SHAPE)
DEPTH_M = (1.5 + np.sin(U / 2) * 0.6 + V / 5).astype(np.float32)
PICTURE = np.stack([30 * U, 40 * V, 10 * (U + V)], axis=-1).astype(np.uint8)
LIMITS = Limits(pixels=10_000)

Seeds = Callable[[Path], Sequence[bytes]]
Files = dict[str, bytes]


# ---- valid files and what lies beside them -----------------------------------------------------


def fixed(*contents: bytes) -> Seeds:
    """Contents of a file that needs nothing beside it."""
    return lambda folder: contents


def made(contents: Callable[[], Sequence[bytes]]) -> Seeds:
    """Contents that are made when they are needed, with optional packages."""
    return lambda folder: contents()


def one_of(
    files: Callable[[], Files], name: str, content: Callable[[bytes], bytes] = bytes
) -> Seeds:
    """The `content` of one of several files; all are put into the folder."""

    def seeds(folder: Path) -> list[bytes]:
        for other, data in files().items():
            (folder / other).parent.mkdir(parents=True, exist_ok=True)
            (folder / other).write_bytes(data)
        return [content(files()[name])]

    return seeds


def left_by(write: Callable[[Path], object], name: str) -> Seeds:
    """The file that a function of its path leaves in a folder."""
    return lambda folder: [written(write, name)[name]]


def written(write: Callable[[Path], object], name: str = "") -> Files:
    """The files that a function leaves when it is called with a path of this name."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder / name)
        return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


# ---- containers: damage their content, repair their checksums ----------------------------------

MARK = b"\n<member>\n"


def members(**contents: bytes) -> bytes:
    """Several files in one string of bytes, to be damaged before they are zipped."""
    return b"".join(MARK + name.encode() + MARK + data for name, data in contents.items())


def arrays(**values: Any) -> bytes:
    """The members of an NPZ file."""
    return members(**{f"{name}.npy": npy(np.array(value)) for name, value in values.items()})


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


def npy(values: np.ndarray) -> bytes:
    """An array as NPY."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def encoded(form: str, pixels: np.ndarray = PICTURE, **options: Any) -> bytes:
    """Pixels in an image format."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
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


def header(content: bytes) -> bytes:
    """The JSON header of a safetensors file."""
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def with_header(files: Callable[[], Files], text: bytes) -> bytes:
    """The file model.safetensors with another header and the right length before it."""
    whole = files()["model.safetensors"]
    return len(text).to_bytes(8, "little") + text + whole[8 + len(header(whole)) :]


def cache_entry(record: bytes) -> bytes:
    """A cache file with this record, its checksum right."""
    from safetensors.torch import save

    tensors = {"prediction": torch.from_numpy(DEPTH_M), "features": torch.zeros(3, 2, 2).half()}
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


# ---- what readers promise ----------------------------------------------------------------------


def finite(*values: Any) -> bool:
    """Whether all numbers are finite."""
    return all(np.isfinite(value).all() for value in values)


def is_anchors(anchors: Anchors) -> bool:
    """Whether anchors are finite and in front of the camera."""
    return finite(anchors.u, anchors.v, anchors.depth_m) and bool((anchors.depth_m > 0).all())


def is_map(values: np.ndarray) -> bool:
    """Whether values are floats in two dimensions."""
    return values.ndim == 2 and values.size > 0 and values.dtype in (np.float32, np.float64)


def is_image(pixels: np.ndarray) -> bool:
    """Whether pixels are RGB of 8 bits."""
    return pixels.dtype == np.uint8 and pixels.shape[2:] == (3,)


def is_labels(labels: np.ndarray) -> bool:
    """Whether labels are integers in two dimensions."""
    return labels.ndim == 2 and labels.dtype == np.int64


def is_points(points: np.ndarray) -> bool:
    """Whether there are finite points with three coordinates."""
    return points.shape[1] == 3 and len(points) > 0 and finite(points)


def is_frame(frame: Frame) -> bool:
    """Whether depth has the image's size and the camera is finite."""
    sized = frame.depth_m.shape == frame.image.shape[:2]
    return sized and (frame.intrinsics is None or finite(frame.intrinsics))


def is_calibration(calibration: Calibration) -> bool:
    """Whether the way from scanner to pixel is finite."""
    return finite(calibration.camera_from_velo, calibration.camera.intrinsics)


def is_gating(gating: torch.Tensor) -> bool:
    """Whether a generator's gating has the size of the map."""
    return gating.shape[2:] == SHAPE


def are_keys(keys: Sequence[str]) -> bool:
    """Whether keys stay inside their folder."""
    return not any(key.startswith("/") or ".." in Path(key).parts for key in keys)


def is_small(values: np.ndarray) -> bool:
    """Whether a map or photograph is within the limits of the page."""
    return values.shape[0] * values.shape[1] <= LIMITS.pixels


# ---- COLMAP ------------------------------------------------------------------------------------


@cache
def colmap_files(suffix: str) -> Files:
    """A synthetic model as text or as binary."""
    import pycolmap

    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_frames_per_rig, options.num_points3D = 1, 3, 6
    options.num_points2D_without_point3D = 1
    pycolmap.set_random_seed(0)
    model = pycolmap.synthesize_dataset(options)
    write = model.write_text if suffix == ".txt" else model.write_binary
    return written(lambda folder: write(str(folder)))


def transforms(folder: Path) -> list[bytes]:
    """A model, and a transforms.json of its images as other programs make it."""
    one_of(partial(colmap_files, ".bin"), "images.bin")(folder)
    model, files = files_of_model(folder)
    shapes = dict.fromkeys(files, (48, 64))
    content = make_transforms(model, files, files, shapes, folder) | {"applied_scale": 1.0}
    del content["made_by"]
    return [json.dumps(content).encode()]


def files_of_model(folder: Path) -> tuple[Any, dict[str, Path]]:
    """A COLMAP model, and where its images would be."""
    model = read_model(folder)
    names = [image.name for image in model.images.values()]
    return model, {name: folder / "images" / name for name in names}


def read_transforms(path: Path) -> list[Any]:
    """The depth files that are added to transforms.json, one for each frame."""
    model, files = files_of_model(path.parent)
    return [frame["depth_file_path"] for frame in add_depth(path, model, files, files)["frames"]]


# ---- datasets ----------------------------------------------------------------------------------

EYE = b"1 0 0 0 1 0 0 0 1"
P2 = b"7e2 0 6e2 4.4e1 0 7e2 1.7e2 0.2 0 0 1 2.7e-3\n"
KITTI_DAY = {
    "calib_cam_to_cam.txt": b"R_rect_00: " + EYE + b"\nP_rect_02: " + P2,
    "calib_velo_to_cam.txt": b"calib_time: 15-Mar\nR: " + EYE + b"\nT: 4e-3 -7.6e-2 -2.7e-1\n",
}
KITTI_OBJECT = (
    b"P2: " + P2 + b"R0_rect: " + EYE + b"\nTr_velo_to_cam: 0 -1 0 0 0 0 -1 -0.1 1 0 0 -0.3\n"
)
PREDICTION_TRUTH = arrays(gt=DEPTH_M)


def folder_dataset() -> Files:
    """A plain folder with one frame."""
    meta = {
        "depth_scale_per_metre": 1000,
        "depth_range_m": [0.1, 10],
        "sky_label": 2,
        "frames": [{"name": "a", "scene": "s", "K": [5, 5, 4, 3]}],
    }
    return {
        "rgb/a.png": encoded("PNG"),
        "depth/a.png": encoded("PNG", (1000 * DEPTH_M).astype(np.uint16)),
        "label/a.png": encoded("PNG", np.ones(SHAPE, np.uint8)),
        "meta.json": json.dumps(meta).encode(),
    }


def predictions() -> Files:
    """A frame with a stored prediction."""
    meta = {"kind": "disparity", "affine": True, "group": "g", "scene": "s", "model": "m",
            "metric": True, "units_per_metre": 1.0, "depth_range_m": [0.1, 10]}  # fmt: skip
    return {
        "a/rgb.png": encoded("PNG"),
        "a/gt.npz": zipped(PREDICTION_TRUTH),
        "a/pred.npz": zipped(arrays(pred=1 / DEPTH_M)),
        "a/meta.json": json.dumps(meta).encode(),
    }


def sunrgbd() -> Files:
    """A frame of SUN RGB-D in its layout."""
    from scipy.io import savemat

    labels = io.BytesIO()
    savemat(labels, {"seglabel": np.ones(SHAPE, np.uint16)})
    return {
        "image/a.jpg": encoded("JPEG"),
        "depth_bfx/a.png": encoded("PNG", (8000 * DEPTH_M).astype(np.uint16)),
        "intrinsics.txt": b"5 0 4 0 5 3 0 0 1",
        "seg.mat": labels.getvalue(),
    }


def urbansyn() -> Files:
    """A frame of UrbanSyn in its layout."""
    camera = {"focalLength_mm": 20.0, "sensorWidth_mm": 36.0, "sensorHeight_mm": 18.0}
    return {
        "rgb/rgb_0001.png": encoded("PNG"),
        "ss/ss_0001.png": encoded("PNG", np.ones(SHAPE, np.uint8)),
        "depth/depth_0001.exr": exrs()[1],
        "camera_metadata.json": json.dumps({"parameters": [{"Camera": camera}]}).encode(),
    }


def ibims() -> Files:
    """A frame of iBims-1 in its layout."""
    from scipy.io import savemat

    packed = io.BytesIO()
    image = np.zeros((*SHAPE, 3), np.uint8)
    savemat(packed, {"data": {"rgb": image, "depth": DEPTH_M.astype(float)}})
    return {"imagelist.txt": b"a\n", "gt_depth/a.mat": packed.getvalue()}


def void() -> Files:
    """A frame of VOID in its layout."""
    kinds = {"image": "1.png", "sparse_depth": "s.png", "ground_truth": "g.png",
             "intrinsics": "K.txt"}  # fmt: skip
    depth = encoded("PNG", (256 * DEPTH_M).astype(np.uint16))
    return {
        **{f"v/test_{kind}.txt": f"v/{file}\n".encode() for kind, file in kinds.items()},
        "v/1.png": encoded("PNG"), "v/s.png": depth, "v/g.png": depth,
        "v/K.txt": b"5 0 4\n0 5 3\n0 0 1\n",
    }  # fmt: skip


# ---- images, maps, videos ----------------------------------------------------------------------


@cache
def exrs() -> list[bytes]:
    """The map as OpenEXR in several compressions."""
    import OpenEXR

    def write(kind: Any, folder: Path) -> None:
        with OpenEXR.File({"compression": kind}, {"Z": DEPTH_M}) as file:
            file.write(str(folder / "map.exr"))

    kinds = (OpenEXR.NO_COMPRESSION, OpenEXR.ZIP_COMPRESSION, OpenEXR.PIZ_COMPRESSION)
    return [written(partial(write, kind))["map.exr"] for kind in kinds]


def heics() -> list[bytes]:
    """A photograph as phones write it."""
    import pillow_heif

    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(buffer, quality=50)
    return [buffer.getvalue()]


def write_video(path: Path) -> None:
    """Three frames."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 16, 32, "yuv420p"
        for i in range(3):
            pixels = np.full((16, 32, 3), 60 * i, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def photographs() -> list[bytes]:
    """The picture in several formats, upright and turned by 90° with a focal length."""
    tags = Image.Exif()
    tags[274] = 6
    tags.get_ifd(0x8769)[41989] = 28
    upright = [encoded(form) for form in ("PNG", "JPEG", "WEBP", "BMP")]
    return [*upright, encoded("JPEG", exif=tags), encoded("PNG", exif=tags)]


def depth_png() -> bytes:
    """The map as PNG, with its units."""
    tags = PngImagePlugin.PngInfo()
    tags.add_text(UNITS_TAG, "1000.0")
    return encoded("PNG", (1000 * DEPTH_M).astype(np.uint16), pnginfo=tags)


# ---- models ------------------------------------------------------------------------------------


@cache
def generator_files() -> Files:
    """A tiny generator."""
    torch.manual_seed(0)
    return written(Generator(GeneratorConfig(k=2, width=8, dilations=(1,), cells=8)).save)


@cache
def field_files() -> Files:
    """The shipped model of `field`."""
    return written(load_field("field").save)


@cache
def lite_files() -> Files:
    """Weights of `lite`, all zeros."""
    from safetensors.torch import save

    state = {k: v.half() for k, v in LiteNet().state_dict().items() if v.is_floating_point()}
    zeros = save({name: torch.zeros_like(value) for name, value in state.items()})
    return {"config.json": b'{"revision": "r1"}', "model.safetensors": zeros}


@cache
def onnx_files() -> Files:
    """One convolution, and its description."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["depth"])],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("depth", TensorProto.FLOAT, [1, 1, 4, 4])],
        [numpy_helper.from_array(np.full((1, 3, 1, 1), 0.3, np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    description = {"kind": "depth", "size": [4, 4], "multiple": 4, "dynamic": True,
                   "mean": [0, 0, 0], "std": [1, 1, 1], "output": "depth", "name": "net",
                   "fit": "inside"}  # fmt: skip
    return {"net.onnx": model.SerializeToString(), "net.json": json.dumps(description).encode()}


def run_generator(path: Path) -> torch.Tensor:
    """The gating of a generator; any numbers are valid weights, so its values are not checked."""
    return Generator.load(path.parent)(None, torch.from_numpy(DEPTH_M).log()[None, None]).gating


def read_lite(path: Path) -> None:
    """Build the estimator; it is not run, because any numbers are weights."""
    load_lite.cache_clear()
    load_lite(path.parent)
    load_lite.cache_clear()


def read_field(path: Path) -> float:
    """A parameter of the kernel."""
    load_field.cache_clear()
    return float(FieldModel.load(path.parent).kernel.constant_std)


def run_onnx(path: Path) -> tuple[int, ...]:
    """The shape of what a network predicts; sizes that no machine can hold are not run."""
    if path.suffix == ".json":
        height, width = read_description(path)[1].preprocess.target(SHAPE)
        if height * width > 10_000:
            return SHAPE
    return tuple(load_onnx(path.parent / "net.onnx")(PICTURE).prediction.shape)


def flat_mde() -> Estimator:
    """A trivial estimator."""
    preprocess = Preprocess((8, 8), "stretch")
    return Estimator("flat", "r1", "depth", preprocess, lambda x: Raw(x.mean(1) + 9, x))


CACHED = {"kind": "depth", "model": "flat", "revision": "r1", "options": {"size": [8, 8]}}
CACHE_RECORDS = [
    json.dumps({**CACHED, "tensors": tensors}).encode()
    for tensors in ({}, {"prediction": [6, 8], "features": None})
]


# ---- records of the package itself: a damaged one is another one, or unreadable ----------------


def claim_evaluation(path: Path) -> None:
    """Claim a folder for an evaluation."""
    methods = (MethodSpec("median", "median"),)
    evaluation = Evaluation("x", "folder", "all", "lite", methods, ("low",), False, 0)
    claim(path.parent, evaluation, overwrite=False)


def claim_labelling(path: Path) -> None:
    """Claim a folder for labels."""
    claim_labels(path.parent, LabelConfig("lite", "median"), [])


def claim_training(path: Path) -> None:
    """Claim a folder for a training run."""
    RunFolder(path.parent, Rules())


def add_label_record(path: Path) -> None:
    """Count the record of a label."""
    photograph = Piece(path.with_suffix(".jpg"))
    job = Job(path.stem, (Sample(path.stem, photograph, photograph),))
    for record in read_records(path.parent, job):
        Summary().add(record)


def read_jobs(path: Path) -> list[str]:
    """Keys of all samples, after they were read."""
    keys = []
    for job in find_jobs(path)[0]:
        for sample in job.samples:
            keys.append(sample.key)
            sample.read_image()
            sample.read_anchors()
    return keys


def tar() -> bytes:
    """A shard of one sample."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("a.png", encoded("PNG")), ("a.anchors.csv", CSV)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


# ---- the page's API ----------------------------------------------------------------------------


@cache
def page() -> tuple[Any, str]:
    """A client of the application, and the address of a session that is ready."""
    from starlette.testclient import TestClient

    client = TestClient(create_app(), base_url="http://127.0.0.1:8008")
    client.__enter__()
    address = client.post("/api/sessions?name=a.png", content=encoded("PNG")).json()["id"]
    while client.get(f"/api/sessions/{address}").json()["state"] != "ready":
        time.sleep(0.01)
    return client, f"/api/sessions/{address}"


def post(route: str, path: Path) -> int:
    """The status of an answer with numbers; InputError with the sentence of one with 4xx."""
    client, session = page()
    kind = {"content-type": "application/json"}
    answer = client.post(session + route, content=path.read_bytes(), headers=kind)
    if 400 <= answer.status_code < 500:
        raise InputError(answer.json()["error"])
    return answer.status_code


def read_upload(suffix: str, path: Path) -> np.ndarray:
    """An uploaded map; an error must not name the program's own files."""
    try:
        return read_depth(path.read_bytes(), suffix, LIMITS)
    except InputError as e:
        if tempfile.gettempdir() in str(e):
            raise AssertionError(f"it names our files: {e}") from None
        raise


# ---- contents ----------------------------------------------------------------------------------

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
PFM = b"Pf\n8 6\n-1.0\n" + DEPTH_M.tobytes()
POINTS = np.arange(12, dtype="<f4").reshape(4, 3)
NPYS = tuple(npy(DEPTH_M.astype(kind)) for kind in ("f4", "f8", "f2", "u2"))
LABEL_PNG = encoded("PNG", (DEPTH_M * 3).astype(np.uint8))
LABEL_LIST = {
    "list.csv": b"image,anchors\na.png,a.anchors.csv\nb.png,b.anchors.csv\n",
    **{f"{name}.png": encoded("PNG") for name in "ab"},
    **{f"{name}.anchors.csv": CSV for name in "ab"},
}
LABEL_RECORDS = (
    b'{"key": "p", "keep": false, "figures": {}, '
    b'"reasons": [{"rule": "min_anchors", "value": 3, "limit": 10}]}',
    b'{"key": "p", "failed": "p.jpg: no such file"}',
)
EDIT = b'{"anchors": [{"u": 1, "v": 2, "depth_m": 3.5}, {"u": 6.5, "v": 4, "depth_m": 10}, \
{"u": 3, "v": 5, "depth_m": 2}], "method": "%s", "points": [{"u": 0, "v": 1}], "fov_deg": 60}'
EDITS = tuple(EDIT % name for name in (b"field", b"basis", b"global", b"lwlr"))


# ---- the targets -------------------------------------------------------------------------------


def maps(prefix: str, read: Callable[[str, Path], np.ndarray], promise: Any) -> list[Target]:
    """A target for every format of a depth map; `read` is called with the suffix and the path."""
    formats: dict[str, tuple[Seeds, Callable[[bytes], bytes]]] = {
        ".npy": (fixed(*NPYS), bytes),
        ".npz": (fixed(arrays(depth=DEPTH_M)), zipped),
        ".png": (fixed(depth_png()), with_crcs),
        ".exr": (made(exrs), bytes),
        ".pfm": (fixed(PFM), bytes),
    }
    return [
        Target(prefix + suffix, seeds, partial(read, suffix), promise, wrap=wrap)
        for suffix, (seeds, wrap) in formats.items()
    ]


def beside(
    group: str, files: Callable[[], Files], names: Sequence[str], read: Callable[[Path], Any],
    promise: Callable[[Any], bool], **options: Any,
) -> list[Target]:  # fmt: skip
    """A target for each of these files, with all others beside it."""
    return [
        Target(f"{group} {Path(name).name}", one_of(files, name), read, promise, name, **options)
        for name in names
    ]


def weights(name: str, files: Callable[[], Files], read: Any, promise: Any, share: float) -> Target:
    """A target whose header of model.safetensors is damaged."""
    seeds, wrap = one_of(files, "model.safetensors", header), partial(with_header, files)
    file = "model.safetensors"
    return Target(f"{name} {file}", seeds, read, promise, file, wrap=wrap, share=share)


def load_frame(dataset: str, name: str, parents: int) -> Callable[[Path], Frame]:
    """A reader of a frame of the dataset so many folders above a file."""
    return lambda path: open_dataset(dataset, path.parents[parents]).load(name)


TURNED = [[1.0, 0, 0, 1], [0, 0.6, -0.8, 2], [0, 0.8, 0.6, 3], [0, 0, 0, 1]]
TRANSFORMS = json.dumps({
    "w": 64, "h": 48, "fl_x": 50, "cx": 32, "cy": 24, "k1": 0.1,
    "frames": [{"file_path": "a.png", "transform_matrix": TURNED}],
}).encode()  # fmt: skip
SCAN = json.dumps({
    "cameraPoseARFrame": [x for row in TURNED for x in row],
    "intrinsics": [50, 0, 32, 0, 50, 24, 0, 0, 1],
}).encode()  # fmt: skip
ALIKE = ("cameras", "images", "points3D", "rigs", "frames")
TARGETS: tuple[Target, ...] = (
    Target("anchors.csv", fixed(CSV, b"u,v,depth_m\n1,2,3\n"), Anchors.read, is_anchors),
    Target("anchors.npz", fixed(arrays(**COLUMNS)), Anchors.read, is_anchors, wrap=zipped),
    Target("anchors.png", fixed(depth_png()), Anchors.read, is_anchors, wrap=with_crcs),
    *maps("map", lambda suffix, path: read_map(path), is_map),
    Target("labels.png", fixed(LABEL_PNG), read_labels, is_labels, wrap=with_crcs),
    Target("labels.npy", fixed(npy(np.ones(SHAPE, np.int32))), read_labels, is_labels),
    Target("image.png", made(photographs), read_image, is_image, wrap=with_crcs),
    Target("image.heic", made(heics), read_image, is_image, share=0.3),
    Target("video.mp4", left_by(write_video, "seed.mp4"),
           lambda path: [frame.image for frame in islice(read_frames(path), 5)],
           lambda images: all(map(is_image, images)), share=0.3),
    Target("points.ply", fixed(PLY_TEXT, PLY_BINARY), read_points, is_points),
    Target("points.pcd", fixed(PCD_TEXT, PCD_BINARY, PCD_PACKED), read_points, is_points),
    Target("points.bin", fixed(POINTS.tobytes() + bytes(16)), read_points, is_points),
    Target("points.npz", fixed(arrays(points=POINTS)), read_points, is_points, wrap=zipped),
    Target("points.npy", fixed(npy(POINTS)), read_points, is_points),
    *(
        target
        for suffix in (".txt", ".bin")
        for target in beside(
            "colmap", partial(colmap_files, suffix), [name + suffix for name in ALIKE],
            lambda path: list(model_frames(read_model(path.parent), min_track=2)),
            lambda frames: all(min(f.shape) > 0 and finite(f.anchors.depth_m) for f in frames),
        )
    ),
    Target("colmap transforms.json", transforms, read_transforms,
           lambda names: all(isinstance(name, str) for name in names), "transforms.json"),
    *beside("kitti", lambda: KITTI_DAY, list(KITTI_DAY),
            lambda path: read_calibration(path.parent), is_calibration),
    Target("kitti object.txt", fixed(KITTI_OBJECT), read_calibration, is_calibration),
    Target("transforms.json", fixed(TRANSFORMS), read_poses),
    Target("trajectory.txt", fixed(b"# TUM\n0.1 1 2 3 0 0 0 1\n0.2 1 2 4 0 0 1 0\n"),
           lambda path: read_poses(path, ["0.1", "0.2"], Camera(100.0, 100.0, 50.0, 40.0))),
    Target("frame_0.json", fixed(SCAN), lambda path: read_poses(path.parent)),
    Target("measure.csv",
           fixed(b"image,u,v,depth_m\na,1,2,3\n", b"image,other,distance_m\na,b,3\n"),
           read_measurements),
    Target("rigid.txt", fixed(b"1 0 0 0.1 0 1 0 2 0 0 1 3"), read_rigid),
    Target("train.txt", fixed(b"a/b/1\na/b/2\n\na/c/3\n"), read_list),
    *beside("folder", folder_dataset, ["meta.json"], load_frame("folder", "a", 0), is_frame),
    *beside("predictions", predictions, ["a/meta.json"], load_frame("predictions", "a", 1),
            is_frame),
    Target("predictions gt.npz", one_of(predictions, "a/gt.npz", lambda _: PREDICTION_TRUTH),
           load_frame("predictions", "a", 1), is_frame, "a/gt.npz", wrap=zipped),
    *beside("sunrgbd", sunrgbd, ["intrinsics.txt", "seg.mat"], load_frame("sunrgbd", ".", 0),
            is_frame),
    *beside("urbansyn", urbansyn, ["camera_metadata.json"], load_frame("urbansyn", "0001", 0),
            is_frame),
    *beside("ibims", ibims, ["gt_depth/a.mat"], load_frame("ibims", "a", 1), is_frame),
    *beside("void", void, ["v/test_image.txt", "v/test_sparse_depth.txt", "v/K.txt"],
            load_frame("void", "v/1", 0), is_frame),
    *beside("generator", generator_files, ["config.json"], run_generator, is_gating),
    weights("generator", generator_files, run_generator, is_gating, share=1),
    *beside("lite", lite_files, ["config.json"], read_lite, always, share=0.1),
    weights("lite", lite_files, read_lite, always, share=0.1),
    *beside("field", field_files, ["config.json"], read_field, finite, share=0.5),
    weights("field", field_files, read_field, finite, share=0.5),
    Target("net.json", one_of(onnx_files, "net.json"), run_onnx, lambda shape: shape == SHAPE),
    Target("net.onnx", one_of(onnx_files, "net.onnx"), run_onnx, lambda shape: shape == SHAPE),
    # What is damaged in the cache is made again, and equals what was there.
    Target("cache entry", fixed(*CACHE_RECORDS),
           lambda path: MDECache(path.parent, flat_mde())(PICTURE),
           lambda output: output.prediction.shape == SHAPE, wrap=cache_entry,
           file=MDECache(Path("."), flat_mde()).path(PICTURE).name),
    *beside("labelling", lambda: LABEL_LIST, ["list.csv"], read_jobs, are_keys),
    Target("labelling shard.tar", made(lambda: [tar()]), read_jobs, are_keys, "shard.tar"),
    Target("labelling KEY.json", fixed(*LABEL_RECORDS), add_label_record, file="p.json"),
    Target("labelling label.json", left_by(claim_labelling, "label.json"), claim_labelling,
           file="label.json"),
    Target("training run.json", left_by(claim_training, "run.json"), claim_training,
           file="run.json"),
    Target("hub config.json", fixed(b'{"model_type": "dpt", "a": [1]}'),
           lambda path: Weights(path.parent, "").architecture, file="config.json"),
    Target("evaluation config.json", left_by(claim_evaluation, "config.json"), claim_evaluation,
           file="config.json"),
    Target("web photo", made(photographs),
           lambda path: read_photo(path.read_bytes(), LIMITS).pixels,
           lambda pixels: is_image(pixels) and is_small(pixels), wrap=with_crcs),
    *maps("web depth", read_upload, lambda values: values.ndim == 2 and is_small(values)),
    *(
        Target(f"web {name}", fixed(*EDITS), partial(post, route), lambda code: code == 200,
               share=share)
        for name, route, share in (("recover", "/recover", 0.5), ("measure", "/measure", 0.5),
                                   ("suggest", "/suggest", 0.3), ("file", "/files/cloud.ply", 0.3))
    ),
    Target("recover", fixed(*SEEDS), lambda path: check_call(path.read_bytes()),
           damage=another_call, share=6),
)  # fmt: skip
