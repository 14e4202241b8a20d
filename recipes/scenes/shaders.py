"""Materials of our own, and the simplification of library materials for speed. Needs bpy."""

from __future__ import annotations

import random
from typing import Any

import bpy
import numpy as np
from recipes.scenes.labels import LABELS

Colour = tuple[float, float, float]


def plain(  # noqa: PLR0917
    name: str,
    colour: Colour,
    roughness: float = 0.6,
    metallic: float = 0.0,
    emission: float = 0.0,
    coat: float = 0.0,
) -> Any:
    """A material of one colour (linear)."""
    material = bpy.data.materials.new(name)
    material.use_nodes = True
    inputs = material.node_tree.nodes["Principled BSDF"].inputs
    inputs["Base Color"].default_value = (*colour, 1)
    inputs["Roughness"].default_value = roughness
    inputs["Metallic"].default_value = metallic
    inputs["Coat Weight"].default_value = coat
    if emission:
        inputs["Emission Color"].default_value = (*colour, 1)
        inputs["Emission Strength"].default_value = emission
    return material


def pane(name: str, colour: Colour = (0.02, 0.025, 0.03), emission: float = 0.0) -> Any:
    """A dark reflecting pane, labelled as glass: what a window looks like from outside."""
    material = plain(name, colour, roughness=0.05, emission=emission, coat=0.3)
    material.pass_index = LABELS["glass"]
    return material


def glass(name: str) -> Any:
    """A clear pane that is seen through; `simplify` labels it as glass."""
    material = plain(name, (0.97, 0.99, 0.98), roughness=0.0)
    material.node_tree.nodes["Principled BSDF"].inputs["Transmission Weight"].default_value = 1.0
    return material


def mirror(name: str) -> Any:
    """A mirror, labelled as such: depth is that of its surface."""
    material = plain(name, (0.9, 0.9, 0.9), roughness=0.0, metallic=1.0)
    material.pass_index = LABELS["mirror"]
    return material


class _Nodes:
    """Short names for building a node tree."""

    def __init__(self, material: Any) -> None:
        self.tree = material.node_tree
        self.bsdf = self.tree.nodes["Principled BSDF"]
        coordinates = self.tree.nodes.new("ShaderNodeTexCoord")
        self.uv, self.object = coordinates.outputs["UV"], coordinates.outputs["Object"]
        geometry = self.tree.nodes.new("ShaderNodeNewGeometry")
        self.world = geometry.outputs["Position"]

    def new(self, kind: str, **inputs: Any) -> Any:
        """A node whose inputs are values or outputs of other nodes; `_name` sets an attribute."""
        node = self.tree.nodes.new(f"ShaderNode{kind}")
        for key, value in inputs.items():
            if key.startswith("_"):
                setattr(node, key[1:], value)
        for key, value in inputs.items():
            if key.startswith("_"):
                continue
            socket = node.inputs[int(key[1:]) if key[0] == "i" and key[1:].isdigit() else key]
            if isinstance(value, bpy.types.NodeSocket):
                self.tree.links.new(value, socket)
            else:
                socket.default_value = value
        return node

    def noise(self, vector: Any, scale: float, detail: float = 2.0) -> Any:
        """Fractal noise in 0…1 at a scale of so many waves a metre."""
        node = self.new("TexNoise", Vector=vector, Scale=scale, Detail=detail)
        return node.outputs["Fac"]

    def ramp(self, factor: Any, stops: list[tuple[float, Colour]]) -> Any:
        """A colour by a factor."""
        node = self.new("ValToRGB", Fac=factor)
        elements = node.color_ramp.elements
        while len(elements) < len(stops):
            elements.new(0.5)
        for element, (position, colour) in zip(elements, stops, strict=True):
            element.position, element.color = position, (*colour, 1)
        return node.outputs["Color"]

    def mix(self, factor: Any, a: Any, b: Any) -> Any:
        """A mixture of two colours."""
        node = self.new("MixRGB", Fac=factor)
        for socket, value in ((node.inputs[1], a), (node.inputs[2], b)):
            if isinstance(value, bpy.types.NodeSocket):
                self.tree.links.new(value, socket)
            else:
                socket.default_value = (*value, 1)
        return node.outputs["Color"]

    def colour(self, output: Any) -> None:
        """Use an output as the base colour."""
        self.tree.links.new(output, self.bsdf.inputs["Base Color"])


def _scaled(colour: Colour, factor: float) -> Colour:
    return tuple(min(1.0, c * factor) for c in colour)  # type: ignore[return-value]


def mottled(  # noqa: PLR0917
    name: str,
    colour: Colour,
    scale: float,
    contrast: float = 0.35,
    roughness: float = 0.8,
    grain: float = 0.0,
    cracks: float = 0.0,
) -> Any:
    """A colour with coarse patches: plaster, asphalt, soil.

    `grain` adds fine dark grains at so many waves a metre, and `cracks` dark lines around cells, so
    many a metre.
    """
    material = plain(name, colour, roughness)
    nodes = _Nodes(material)
    patches = nodes.noise(nodes.world, scale, 3.0)
    out = nodes.ramp(
        patches, [(0.3, _scaled(colour, 1 - contrast)), (0.7, _scaled(colour, 1 + contrast))]
    )
    if grain:
        fine = nodes.noise(nodes.world, grain, 1.0)
        dark = _scaled(colour, 0.4)
        mask = nodes.new("MapRange", Value=fine)
        mask.inputs["From Min"].default_value, mask.inputs["From Max"].default_value = 0.35, 0.6
        mask.inputs["To Min"].default_value, mask.inputs["To Max"].default_value = 0.5, 0.0
        out = nodes.mix(mask.outputs[0], out, dark)
    if cracks:
        warp = nodes.new("VectorMath", _operation="ADD", i0=nodes.world)
        noise = nodes.new("TexNoise", Vector=nodes.world, Scale=1.5, Detail=2.0)
        nodes.tree.links.new(noise.outputs["Color"], warp.inputs[1])
        cells = nodes.new(
            "TexVoronoi", _feature="DISTANCE_TO_EDGE", Vector=warp.outputs[0], Scale=cracks
        )
        mask = nodes.new("MapRange", Value=cells.outputs["Distance"])
        mask.inputs["From Max"].default_value = 0.03 * cracks
        mask.inputs["To Min"].default_value, mask.inputs["To Max"].default_value = 0.7, 0.0
        out = nodes.mix(mask.outputs[0], out, _scaled(colour, 0.3))
    nodes.colour(out)
    return material


def bricks(  # noqa: PLR0917
    name: str,
    colour: Colour,
    mortar: Colour,
    size_m: tuple[float, float],
    variation: float = 0.25,
    offset: float = 0.5,
    roughness: float = 0.8,
) -> Any:
    """Bricks, slabs or panels of a size by texture coordinates in metres, with noise on top."""
    material = plain(name, colour, roughness)
    nodes = _Nodes(material)
    texture = nodes.new(
        "TexBrick",
        Vector=nodes.uv,
        Color1=(*_scaled(colour, 1 - variation), 1),
        Color2=(*_scaled(colour, 1 + variation), 1),
        Mortar=(*mortar, 1),
        Scale=1.0,
        _offset=offset,
    )
    texture.inputs["Mortar Size"].default_value = min(0.012, 0.06 * size_m[1])
    texture.inputs["Brick Width"].default_value = size_m[0]
    texture.inputs["Row Height"].default_value = size_m[1]
    dirt = nodes.noise(nodes.world, 0.6, 3.0)
    shade = nodes.new("MapRange", Value=dirt)
    shade.inputs["From Min"].default_value, shade.inputs["From Max"].default_value = 0.45, 0.75
    shade.inputs["To Min"].default_value, shade.inputs["To Max"].default_value = 0.0, 0.5
    nodes.colour(nodes.mix(shade.outputs[0], texture.outputs["Color"], _scaled(colour, 0.45)))
    return material


def foliage(name: str, colour: Colour, scale: float = 3.0) -> Any:
    """Leaves: a green that varies in space, rough."""
    material = plain(name, colour, 0.65)
    nodes = _Nodes(material)
    patches = nodes.noise(nodes.world, scale, 3.0)
    yellow = (min(1, colour[0] * 2.2), min(1, colour[1] * 1.35), colour[2] * 0.8)
    stops = [(0.25, _scaled(colour, 0.35)), (0.5, colour), (0.75, yellow)]
    nodes.colour(nodes.ramp(patches, stops))
    return material


def painted(name: str, rng: random.Random) -> Any:
    """Random print: stripes, checks or spots of two to three colours, for packages and cloth."""
    colours = [tuple(rng.uniform(0.02, 0.8) for _ in range(3)) for _ in range(3)]
    material = plain(name, colours[0], rng.uniform(0.2, 0.8))
    nodes = _Nodes(material)
    scale = rng.uniform(8, 40)
    kind = rng.choice(("checks", "waves", "cells", "noise"))
    if kind == "checks":
        out = nodes.new(
            "TexChecker", Vector=nodes.uv, Scale=scale,
            Color1=(*colours[0], 1), Color2=(*colours[1], 1),
        ).outputs["Color"]  # fmt: skip
    elif kind == "waves":
        wave = nodes.new(
            "TexWave", Vector=nodes.uv, Scale=scale / 3, Distortion=rng.choice((0.0, 0.0, 4.0))
        )
        out = nodes.ramp(wave.outputs["Fac"], [(0.4, colours[0]), (0.5, colours[1])])
    elif kind == "cells":
        cells = nodes.new("TexVoronoi", Vector=nodes.uv, Scale=scale)
        out = nodes.ramp(
            cells.outputs["Distance"], [(0.2, colours[0]), (0.3, colours[1]), (0.6, colours[2])]
        )
    else:
        fac = nodes.noise(nodes.uv, scale, 2.0)
        out = nodes.ramp(fac, [(0.4, colours[0]), (0.5, colours[1]), (0.6, colours[2])])
    nodes.colour(out)
    return material


_SEE_THROUGH = {
    "BSDF_GLASS",
    "BSDF_TRANSPARENT",
    "BSDF_REFRACTION",
    "BSDF_TRANSLUCENT",
}
_NOISY = ("TEX_NOISE", "TEX_MUSGRAVE", "TEX_WAVE", "TEX_VORONOI")
_COLOURED = ("MIX_RGB", "RGB", "BSDF_PRINCIPLED", "BSDF_DIFFUSE", "MIX")
_COLOUR_INPUTS = ("Color1", "Color2", "A", "B", "Base Color", "Color")


def simplify() -> int:
    """Make every material cheaper; the number of materials that were changed.

    Noise loses octaves; bump, bevel and volume are cut; and rays other than camera rays see a plain
    diffuse surface of about the same colour, because Cycles skips the unused branch. Materials
    that light passes, or that emit, are left alone, and those of glass get its pass index.
    """
    trees = [m.node_tree for m in bpy.data.materials if m.use_nodes]
    for tree in [*trees, *(g for g in bpy.data.node_groups if g.type == "SHADER")]:
        for node in list(tree.nodes):
            if node.type in _NOISY and "Detail" in node.inputs:
                for link in list(node.inputs["Detail"].links):
                    tree.links.remove(link)
                detail = node.inputs["Detail"]
                detail.default_value = min(detail.default_value, 3.0)
            elif node.type == "BEVEL":
                _replace_by_normal(tree, node)
    changed = 0
    for material in bpy.data.materials:
        if material.use_nodes and material.users:
            changed += _simplify_material(material)
    return changed


def _replace_by_normal(tree: Any, bevel: Any) -> None:
    """Give the plain normal to what a bevel node feeds, because it casts rays for each sample."""
    normal = tree.nodes.new("ShaderNodeNewGeometry").outputs["Normal"]
    for link in list(bevel.outputs[0].links):
        tree.links.new(normal, link.to_socket)


def _simplify_material(material: Any) -> bool:
    tree = material.node_tree
    outputs = [n for n in tree.nodes if n.type == "OUTPUT_MATERIAL" and n.is_active_output]
    if not outputs or not outputs[0].inputs["Surface"].is_linked:
        return False
    out = outputs[0]
    for socket in (out.inputs["Volume"], out.inputs["Displacement"]):
        for link in list(socket.links):
            tree.links.remove(link)
    kinds = _kinds(tree)
    if kinds & {"TRANSMISSION", "BSDF_GLASS", "BSDF_REFRACTION"}:
        material.pass_index = LABELS["glass"]
    if kinds & (_SEE_THROUGH | {"TRANSMISSION", "ALPHA", "EMITS", "EMISSION"}):
        return False
    if len(tree.nodes) < 5 and not any(n.type == "GROUP" for n in tree.nodes):
        return False
    colours = _colours(tree)
    colour = np.median(np.array(colours), 0) if colours else np.full(3, 0.5)
    diffuse = tree.nodes.new("ShaderNodeBsdfDiffuse")
    diffuse.inputs["Color"].default_value = (*np.clip(colour, 0.04, 0.85), 1)
    geometry = tree.nodes.new("ShaderNodeNewGeometry")
    tree.links.new(geometry.outputs["Normal"], diffuse.inputs["Normal"])
    path = tree.nodes.new("ShaderNodeLightPath")
    mix = tree.nodes.new("ShaderNodeMixShader")
    surface = out.inputs["Surface"].links[0].from_socket
    tree.links.new(path.outputs["Is Camera Ray"], mix.inputs[0])
    tree.links.new(diffuse.outputs[0], mix.inputs[1])
    tree.links.new(surface, mix.inputs[2])
    tree.links.new(mix.outputs[0], out.inputs["Surface"])
    return True


def _colours(tree: Any, depth: int = 0) -> list[Colour]:
    """The constant colours in a node tree."""
    out: list[Colour] = []
    for node in tree.nodes:
        if node.type == "VALTORGB":
            out += [tuple(e.color)[:3] for e in node.color_ramp.elements]
        elif node.type in _COLOURED:
            out += [
                tuple(i.default_value)[:3]
                for i in node.inputs
                if i.type == "RGBA" and not i.is_linked and i.name in _COLOUR_INPUTS
            ]
            if node.type == "RGB":
                out.append(tuple(node.outputs[0].default_value)[:3])
        elif node.type == "GROUP" and node.node_tree and depth < 3:
            out += _colours(node.node_tree, depth + 1)
    return out


def _kinds(tree: Any, depth: int = 0) -> set[str]:
    """Node types in a tree, and TRANSMISSION, EMITS and ALPHA where a principled node has them."""
    out: set[str] = set()
    for node in tree.nodes:
        out.add(node.type)
        if node.type == "BSDF_PRINCIPLED":
            transmission = node.inputs["Transmission Weight"]
            if transmission.is_linked or transmission.default_value > 0:
                out.add("TRANSMISSION")
            colour, strength = node.inputs["Emission Color"], node.inputs["Emission Strength"]
            lit = colour.is_linked or max(tuple(colour.default_value)[:3]) > 0
            if lit and (strength.is_linked or strength.default_value > 0):
                out.add("EMITS")
            if node.inputs["Alpha"].is_linked or node.inputs["Alpha"].default_value < 1:
                out.add("ALPHA")
        elif node.type == "GROUP" and node.node_tree and depth < 4:
            out |= _kinds(node.node_tree, depth + 1)
    return out
