"""Sky, sun and clouds. Needs bpy."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import Any

import bpy


@dataclass(frozen=True)
class Sky:
    """Settings of a sky of Blender's Nishita model with clouds of noise."""

    sun_elevation_deg: float
    sun_azimuth_deg: float
    sun_intensity: float
    """Brightness of the sun's disc; 0 when clouds cover it."""
    sun_size_deg: float
    dust: float
    cloud_cover: float
    """Share of the sky that clouds cover, about."""
    cloud_grey: float
    """Brightness of the clouds."""
    strength: float


def draw_sky(rng: random.Random, overcast: float = 0.3) -> Sky:
    """A random sky; a share `overcast` of them has no visible sun."""
    covered = rng.random() < overcast
    return Sky(
        sun_elevation_deg=rng.uniform(8, 70),
        sun_azimuth_deg=rng.uniform(0, 360),
        sun_intensity=0.0 if covered else rng.uniform(0.15, 0.8),
        sun_size_deg=rng.uniform(0.5, 3.0),
        dust=rng.uniform(0.3, 5),
        cloud_cover=rng.uniform(0.75, 1.0) if covered else rng.uniform(0.0, 0.6),
        cloud_grey=rng.uniform(0.25, 0.6) if covered else rng.uniform(0.5, 1.0),
        strength=rng.uniform(0.25, 0.5),
    )


def set_sky(scene: Any, sky: Sky) -> dict[str, float]:
    """Give a scene its sky; the settings as a dictionary."""
    world = bpy.data.worlds.new("sky")
    scene.world = world
    world.use_nodes = True
    world.cycles.sampling_method = "MANUAL"
    world.cycles.sample_map_resolution = 512  # the default takes seconds to build
    tree = world.node_tree
    background = tree.nodes["Background"]
    texture = tree.nodes.new("ShaderNodeTexSky")
    texture.sky_type = "NISHITA"
    texture.sun_elevation = math.radians(sky.sun_elevation_deg)
    texture.sun_rotation = math.radians(sky.sun_azimuth_deg)
    texture.sun_size = math.radians(sky.sun_size_deg)
    texture.sun_disc = sky.sun_intensity > 0
    texture.sun_intensity = sky.sun_intensity
    texture.dust_density = sky.dust
    colour = texture.outputs[0]
    if sky.cloud_cover > 0.05:
        colour = _add_clouds(tree, colour, sky)
    tree.links.new(colour, background.inputs["Color"])
    background.inputs["Strength"].default_value = sky.strength
    return asdict(sky)


def _add_clouds(tree: Any, sky_colour: Any, sky: Sky) -> Any:
    """The sky's colour with clouds: noise on a plane above the camera, fading at the horizon."""
    coordinates = tree.nodes.new("ShaderNodeTexCoord").outputs["Generated"]
    separate = tree.nodes.new("ShaderNodeSeparateXYZ")
    tree.links.new(coordinates, separate.inputs[0])
    height = _math(tree, "MAXIMUM", separate.outputs[2], 0.04)
    plane = tree.nodes.new("ShaderNodeCombineXYZ")
    for axis in (0, 1):
        tree.links.new(_math(tree, "DIVIDE", separate.outputs[axis], height), plane.inputs[axis])
    noise = tree.nodes.new("ShaderNodeTexNoise")
    tree.links.new(plane.outputs[0], noise.inputs["Vector"])
    noise.inputs["Scale"].default_value = 0.9
    noise.inputs["Detail"].default_value = 5.0
    noise.inputs["Distortion"].default_value = 0.3
    threshold = 0.68 - 0.4 * sky.cloud_cover
    mask = tree.nodes.new("ShaderNodeMapRange")
    tree.links.new(noise.outputs["Fac"], mask.inputs["Value"])
    mask.inputs["From Min"].default_value = threshold
    mask.inputs["From Max"].default_value = threshold + 0.18
    fade = tree.nodes.new("ShaderNodeMapRange")  # clouds would stretch to streaks at the horizon
    tree.links.new(separate.outputs[2], fade.inputs["Value"])
    fade.inputs["From Min"].default_value, fade.inputs["From Max"].default_value = 0.03, 0.2
    mix = tree.nodes.new("ShaderNodeMixRGB")
    grey = sky.cloud_grey * 2.2
    tree.links.new(_math(tree, "MULTIPLY", mask.outputs[0], fade.outputs[0]), mix.inputs["Fac"])
    tree.links.new(sky_colour, mix.inputs[1])
    mix.inputs[2].default_value = (grey, grey, 1.04 * grey, 1)
    return mix.outputs["Color"]


def _math(tree: Any, operation: str, a: Any, b: Any) -> Any:
    node = tree.nodes.new("ShaderNodeMath")
    node.operation = operation
    for socket, value in zip(node.inputs, (a, b), strict=False):
        if isinstance(value, bpy.types.NodeSocket):
            tree.links.new(value, socket)
        else:
            socket.default_value = value
    return node.outputs[0]


def set_night(scene: Any, strength: float) -> None:
    """Give a scene a faint dark-blue surrounding."""
    world = bpy.data.worlds.new("night")
    scene.world = world
    world.use_nodes = True
    inputs = world.node_tree.nodes["Background"].inputs
    inputs["Color"].default_value = (0.01, 0.012, 0.02, 1)
    inputs["Strength"].default_value = strength
