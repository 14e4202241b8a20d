"""Contents of the library: Infinigen factories and shaders, with the number of variants of each.

Pure data. A change here is a new `LIBRARY_VERSION`, because scenes are drawn from the library.
"""

from __future__ import annotations

LIBRARY_VERSION = "1"
"""Version of the lists below. A scene's meta.json records it beside the hash of the built files."""

FACTORIES: dict[str, str] = {
    "SimpleBookcaseFactory": "shelves.simple_bookcase",
    "CellShelfFactory": "shelves.cell_shelf",
    "LargeShelfFactory": "shelves.large_shelf",
    "SingleCabinetFactory": "shelves.single_cabinet",
    "KitchenCabinetFactory": "shelves.kitchen_cabinet",
    "TriangleShelfFactory": "shelves.triangle_shelf",
    "TVStandFactory": "shelves.cell_shelf",
    "SimpleDeskFactory": "shelves.simple_desk",
    "SidetableDeskFactory": "shelves.simple_desk",
    "BeverageFridgeFactory": "appliances.beverage_fridge",
    "OvenFactory": "appliances.oven",
    "DishwasherFactory": "appliances.dishwasher",
    "BathtubFactory": "bathroom.bathtub",
    "ToiletFactory": "bathroom.toilet",
    "StandingSinkFactory": "bathroom.bathroom_sink",
    "RackFactory": "elements.warehouses.rack",
    "SofaFactory": "seating.sofa",
    "ArmChairFactory": "seating.sofa",
    "BedFrameFactory": "seating.bedframe",
    "MattressFactory": "seating.mattress",
    "PillowFactory": "seating.pillow",
    "TableDiningFactory": "tables.dining_table",
    "CoffeeTableFactory": "tables.dining_table",
    "SideTableFactory": "tables.dining_table",
    "TableCocktailFactory": "tables.cocktail_table",
    "ChairFactory": "seating.chairs.chair",
    "BarChairFactory": "seating.chairs.bar_chair",
    "OfficeChairFactory": "seating.chairs.office_chair",
    "FloorLampFactory": "lamp.lamp",
    "DeskLampFactory": "lamp.lamp",
    "CeilingLightFactory": "lamp.ceiling_lights",
    "CeilingClassicLampFactory": "lamp.ceiling_classic_lamp",
    "PalletFactory": "elements.warehouses.pallet",
    "BasketBaseFactory": "organizer.basket",
    "VaseFactory": "table_decorations.vase",
    "BookStackFactory": "table_decorations.book",
    "BookColumnFactory": "table_decorations.book",
    "FoodBoxFactory": "tableware.food_box",
    "FoodBagFactory": "tableware.food_bag",
    "BottleFactory": "tableware.bottle",
    "BowlFactory": "tableware.bowl",
    "CanFactory": "tableware.can",
    "CupFactory": "tableware.cup",
    "JarFactory": "tableware.jar",
    "PanFactory": "tableware.pan",
    "PlateFactory": "tableware.plate",
    "PotFactory": "tableware.pot",
    "WineglassFactory": "tableware.wineglass",
    "ForkFactory": "tableware.fork",
    "KnifeFactory": "tableware.knife",
    "SpoonFactory": "tableware.spoon",
    "MonitorFactory": "appliances.tv",
    "TVFactory": "appliances.tv",
    "MicrowaveFactory": "appliances.microwave",
    "ToasterFactory": "appliances.toaster",
    "WallArtFactory": "wall_decorations.wall_art",
    "RugFactory": "elements.rug",
    "TowelFactory": "clothes.towel",
    "FruitFactoryApple": "fruits.apple",
    "FruitFactoryCoconutgreen": "fruits.coconutgreen",
    "FruitFactoryStarfruit": "fruits.starfruit",
    "FruitFactoryPineapple": "fruits.pineapple",
    "SnakePlantFactory": "small_plants.snake_plant",
    "SpiderPlantFactory": "small_plants.spider_plant",
    "SucculentFactory": "small_plants.succulent",
    "PlantContainerFactory": "tableware.plant_container",
    "LargePlantContainerFactory": "tableware.plant_container",
}
"""Factory class: its module below `infinigen.assets.objects`."""

SLOW_FACTORIES: dict[str, int] = {
    "SucculentFactory": 3,
    "FruitFactoryCoconutgreen": 4,
    "PlantContainerFactory": 3,
    "LargePlantContainerFactory": 3,
    "FruitFactoryPineapple": 2,
}
"""Factories that take tens of seconds, and the number of variants that is built of each."""

MATERIALS: dict[str, tuple[tuple[str, str, dict[str, object], int], ...]] = {
    "floor": (
        ("wood", "CompositeWoodTile", {}, 3),
        ("wood", "CrossedWoodTile", {}, 3),
        ("wood", "HardwoodFloor", {}, 6),
        ("wood", "HexagonWoodTile", {}, 2),
        ("wood", "SquareWoodTile", {}, 3),
        ("wood", "StaggeredWoodTile", {}, 5),
        ("ceramic", "Tile", {}, 10),
        ("fabric", "Rug", {}, 5),
        ("ceramic", "Concrete", {}, 4),
    ),
    "wall": (
        ("ceramic", "Plaster", {}, 14),
        ("ceramic", "Tile", {"vertical": True, "alternating": False, "shape": "square"}, 3),
        ("ceramic", "Tile", {"vertical": True, "alternating": False, "shape": "rectangle"}, 3),
        ("ceramic", "Brick", {}, 6),
        ("ceramic", "Concrete", {}, 4),
    ),
    "ceiling": (("ceramic", "Plaster", {"plaster_colored": False}, 5),),
    "wood": (("wood", "Wood", {}, 8),),
    "fabric": (
        ("fabric", "CoarseKnitFabric", {}, 3),
        ("fabric", "FineKnitFabric", {}, 3),
        ("fabric", "SofaFabric", {}, 3),
        ("fabric", "Leather", {}, 3),
        ("fabric", "PlaidFabric", {}, 3),
        ("fabric", "LinedFabric", {}, 3),
    ),
    "art": (("art", "Art", {}, 8), ("art", "ArtFabric", {}, 8)),
    "plastic": (("plastic", "Plastic", {}, 6), ("plastic", "PlasticRough", {}, 5)),
    "metal": (
        ("metal", "MetalBasic", {}, 4),
        ("metal", "BrushedMetal", {}, 3),
        ("metal", "GalvanizedMetal", {}, 3),
    ),
    "marble": (("ceramic", "Marble", {}, 4),),
}
"""Category: (module below `infinigen.assets.materials`, class, arguments, variants)."""

HOLD_OUT_EVERY = 4
"""One variant in so many of each factory, and of each material class, is for val scenes alone."""


def held_out(index: int, count: int) -> bool:
    """Whether variant `index` of `count` is for val scenes alone.

    Of a class with fewer than two variants none is held out, and val scenes go without it. Of two
    or three the last is; of more, every `HOLD_OUT_EVERY`th.
    """
    if count < 2:
        return False
    if count < HOLD_OUT_EVERY:
        return index == count - 1
    return index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
