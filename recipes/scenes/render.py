"""Cycles: settings, passes, and the files of one scene. Needs bpy."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bpy
import cv2
import numpy as np
import OpenEXR
from mathutils import Matrix
from recipes.scenes import shaders
from recipes.scenes.cameras import View, intrinsics, to_blender
from recipes.scenes.files import write_bytes
from recipes.scenes.labels import LABELS, OF_MATERIAL
from recipes.scenes.photo import Photo, develop, draw_photo
from recipes.scenes.plan import DEPTH_SCALE_PER_METRE, SceneSpec


@dataclass(frozen=True)
class RenderConfig:
    """Settings of Cycles."""

    samples: int = 6
    """Samples a pixel, before denoising."""
    threads: int = 2
    """Threads of Cycles."""
    max_bounces: int = 5
    """Bounces of light."""
    lens_blur: float = 0.14
    """Share of the views with lens blur."""


@dataclass(frozen=True)
class Passes:
    """The passes of Cycles for a view."""

    linear: np.ndarray
    """Linear light, (h, w, 3)."""
    depth_m: np.ndarray
    """Planar z, (h, w); 0 where no surface is."""
    labels: np.ndarray
    """Ids of `LABELS`, (h, w)."""


class Renderer:
    """Renders views of the current Blender scene."""

    def __init__(self, config: RenderConfig, size: tuple[int, int], seed: int, work: Path) -> None:
        self.config, self.size, self.work = config, size, work
        scene = self.scene = bpy.context.scene
        data = bpy.data.cameras.new("camera")
        self.camera = bpy.data.objects.new("camera", data)
        scene.collection.objects.link(self.camera)
        scene.camera = self.camera
        data.clip_start, data.clip_end, data.sensor_fit = 0.03, 1000, "HORIZONTAL"
        _set_cycles(scene, config, seed)
        scene.render.resolution_x, scene.render.resolution_y = size
        layer = bpy.context.view_layer
        layer.use_pass_z = layer.use_pass_object_index = layer.use_pass_material_index = True
        self.output = _set_compositor(scene)

    def render(self, view: View, photo: Photo, focus_m: float) -> Passes:
        """The passes of a view. Depth and labels are those of the pinhole, without lens blur."""
        data = self.camera.data
        self.camera.matrix_world = Matrix(to_blender(view.camera_to_world).tolist())
        data.angle = math.radians(view.fov_deg)
        blurred = photo.f_number is not None
        data.dof.use_dof = blurred
        self.scene.cycles.samples = self.config.samples
        if not blurred:
            return self._passes()
        data.dof.aperture_fstop, data.dof.focus_distance = photo.f_number, focus_m
        linear = self._passes().linear
        data.dof.use_dof = False
        self.scene.cycles.samples = 1
        sharp = self._passes()
        return Passes(linear, sharp.depth_m, sharp.labels)

    def _passes(self) -> Passes:
        self.output.base_path = str(self.work / "passes_")
        with _silence():
            bpy.ops.render.render()
        path = next(self.work.glob("passes_*.exr"))
        with OpenEXR.File(str(path)) as file:
            channels = file.parts[0].channels
            linear = np.array(channels["Image"].pixels)[..., :3].astype(np.float32)
            depth, item, material = (
                np.array(channels[f"{name}.V"].pixels).squeeze()
                for name in ("Depth", "Object", "Material")
            )
        path.unlink()
        hit = (depth > 0) & (depth < 9000)
        of_material = np.isin(np.rint(material), OF_MATERIAL)
        labels = np.where(of_material, np.rint(material), np.rint(item))
        labels = np.where(hit, labels, LABELS["sky"]).astype(np.uint8)
        return Passes(linear, np.where(hit, depth, 0), labels)


@contextmanager
def _silence() -> Iterator[None]:
    """Discard the output of Blender: it prints hundreds of lines for each view."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _set_cycles(scene: Any, config: RenderConfig, seed: int) -> None:
    scene.render.engine = "CYCLES"
    cycles = scene.cycles
    cycles.device = "CPU"
    cycles.samples = config.samples
    cycles.use_adaptive_sampling = False
    cycles.use_denoising = True
    cycles.denoiser = "OPENIMAGEDENOISE"
    cycles.denoising_input_passes = "RGB_ALBEDO_NORMAL"
    cycles.denoising_prefilter = "FAST"
    cycles.max_bounces = config.max_bounces
    cycles.diffuse_bounces = cycles.glossy_bounces = 3
    cycles.transmission_bounces = 5
    cycles.transparent_max_bounces = 6
    cycles.volume_bounces = 0
    cycles.caustics_reflective = cycles.caustics_refractive = False
    cycles.sample_clamp_indirect = 4
    cycles.blur_glossy = 1
    cycles.use_light_tree = True
    cycles.seed = seed
    render = scene.render
    render.threads_mode = "FIXED"
    render.threads = config.threads
    render.use_persistent_data = True
    render.resolution_percentage = 100
    render.film_transparent = False


def _set_compositor(scene: Any) -> Any:
    """A compositor that writes image, depth and indices to one EXR file; its output node."""
    scene.use_nodes = True
    tree = scene.node_tree
    tree.nodes.clear()
    layers = tree.nodes.new("CompositorNodeRLayers")
    output = tree.nodes.new("CompositorNodeOutputFile")
    output.format.file_format = "OPEN_EXR_MULTILAYER"
    output.format.color_depth = "32"
    output.layer_slots.clear()
    sources = {"Image": "Image", "Depth": "Depth", "Object": "IndexOB", "Material": "IndexMA"}
    for name, source in sources.items():
        output.layer_slots.new(name)
        tree.links.new(layers.outputs[source], output.inputs[name])
    composite = tree.nodes.new("CompositorNodeComposite")
    tree.links.new(layers.outputs["Image"], composite.inputs["Image"])
    return output


def render_views(  # noqa: PLR0917
    spec: SceneSpec,
    views: list[View],
    config: RenderConfig,
    folder: Path,
    work: Path,
    dark: bool = False,
    focus_m: dict[int, np.ndarray] | None = None,
) -> tuple[list[dict[str, Any]], list[float]]:
    """Render views into `folder`; the records of the frames kept, and the seconds of each view."""
    shaders.simplify()
    renderer = Renderer(config, spec.size(), spec.seed, work)
    frames, seconds = [], []
    for index, view in enumerate(views):
        start = time.time()
        photo = draw_photo(spec.rng(f"photo {index}"), dark, config.lens_blur)
        depths = (focus_m or {}).get(index, np.array([2.0]))
        focus = float(np.quantile(depths, photo.focus_quantile)) if len(depths) else 2.0
        passes = renderer.render(view, photo, focus)
        image = develop(passes.linear, photo, seed=1000 * spec.seed + index)
        seconds.append(round(time.time() - start, 2))
        print(f"{spec.frame_name(index)} {view.kind} {seconds[-1]} s", flush=True)
        problem = _problem(image, passes)
        if problem:
            print(f"{spec.frame_name(index)} is left out: {problem}", flush=True)
            continue
        _write_frame(spec, index, image, passes, photo, folder)
        frames.append(_record(spec, index, view, passes, photo, focus))
    return frames, seconds


def _problem(image: np.ndarray, passes: Passes) -> str | None:
    """Why a view is not worth keeping, if it is not."""
    depth = passes.depth_m[passes.depth_m > 0]
    if len(depth) < 0.3 * passes.depth_m.size:
        return "few surfaces"
    if image.std() < 10:
        return "no contrast"
    return "flat" if np.log(depth).std() < 0.1 else None


def encode_depth(depth_m: np.ndarray, scale_per_metre: float) -> np.ndarray:
    """16-bit depth; 0 where there is no surface or it is too far for 16 bits."""
    units = np.rint(depth_m * scale_per_metre)
    return np.where(units <= 65535, units, 0).astype(np.uint16)


def _write_frame(  # noqa: PLR0917
    spec: SceneSpec, index: int, image: np.ndarray, passes: Passes, photo: Photo, folder: Path
) -> None:
    name = spec.frame_name(index)
    quality = [cv2.IMWRITE_JPEG_QUALITY, photo.jpeg_quality]
    units = encode_depth(passes.depth_m, DEPTH_SCALE_PER_METRE[spec.kind])
    for path, array, options in (
        (folder / "rgb" / f"{name}.jpg", np.ascontiguousarray(image[..., ::-1]), quality),
        (folder / "depth" / f"{name}.png", units, []),
        (folder / "label" / f"{name}.png", passes.labels, []),
    ):
        done, data = cv2.imencode(path.suffix, array, options)
        if not done:
            raise OSError(f"{path}: OpenCV does not encode it")
        write_bytes(path, data.tobytes())


def _record(  # noqa: PLR0917
    spec: SceneSpec, index: int, view: View, passes: Passes, photo: Photo, focus_m: float
) -> dict[str, Any]:
    width, height = spec.size()
    depth = passes.depth_m[passes.depth_m > 0]
    settings = asdict(photo)
    settings["focus_m"] = round(focus_m, 3) if photo.f_number else None
    return {
        "name": spec.frame_name(index),
        "scene": spec.name,
        "split": spec.split,
        "K": [round(v, 5) for v in intrinsics(width, height, view.fov_deg)],
        "size": [width, height],
        "camera_to_world": view.camera_to_world.round(7).tolist(),
        "view": view.kind,
        "fov_deg": round(view.fov_deg, 3),
        "depth_quantiles_m": np.quantile(depth, [0.01, 0.5, 0.99]).round(3).tolist(),
        "sky_share": round(float((passes.labels == LABELS["sky"]).mean()), 4),
        "photo": {k: round(v, 5) if isinstance(v, float) else v for k, v in settings.items()},
    }
