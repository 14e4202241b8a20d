"""Semantic ids of `label/NAME.png`, and the id of each kind of object."""

from __future__ import annotations

LABELS: dict[str, int] = {
    "other": 0,
    "sky": 1,
    "glass": 2,
    "floor": 3,
    "wall": 4,
    "ceiling": 5,
    "furniture": 6,
    "object": 7,
    "road": 8,
    "pavement": 9,
    "building": 10,
    "vehicle": 11,
    "vegetation": 12,
    "pole": 13,
    "fence": 14,
    "terrain": 15,
    "light": 16,
    "opening": 17,
    "mirror": 18,
}
"""Name: id. `sky` is where no surface is; `glass` is a pane or a vessel that light passes."""
OF_MATERIAL = (LABELS["glass"], LABELS["mirror"])
"""Ids that a material gives to its part of an object."""

_FURNITURE = (
    "Bookcase", "Shelf", "Cabinet", "TVStand", "Desk", "Fridge", "Oven", "Dishwasher", "Bathtub",
    "Toilet", "Sink", "Rack", "Sofa", "ArmChair", "Bed", "Mattress", "Table", "Chair",
)  # fmt: skip
_VEGETATION = ["Plant", "Fern", "Succulent", "Agave", "Tussock", "Bush"]
_LIGHT = ["Ceiling"]


def label_of(cls: str) -> int:
    """The id of an object by its class: a name in `LABELS` or an Infinigen factory.

    Factories of furniture, plants and ceiling lights are told by words in their names; all others
    are `object`.
    """
    if cls in LABELS:
        return LABELS[cls]
    if "Container" in cls or any(word in cls for word in _VEGETATION):
        return LABELS["vegetation"]
    if any(word in cls for word in _LIGHT):
        return LABELS["light"]
    if any(word in cls for word in _FURNITURE):
        return LABELS["furniture"]
    return LABELS["object"]
