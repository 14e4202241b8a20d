"""The parts of recipes/scenes that need no Blender: plans, cameras, labels, meshes, files."""

from __future__ import annotations

import json
import math
import random
from itertools import combinations, pairwise

import numpy as np
import pytest
from recipes.scenes import buildings, catalogue, plants, roadside, vehicles
from recipes.scenes.cameras import Probe, View, aim, choose, intrinsics, look_at, rays, to_blender
from recipes.scenes.dataset import collect, done_path
from recipes.scenes.files import write_json
from recipes.scenes.labels import LABELS, label_of
from recipes.scenes.mesh import Mesh, box_uv, pose
from recipes.scenes.passages import plan_passage
from recipes.scenes.photo import develop, draw_photo, kelvin_rgb
from recipes.scenes.plan import KINDS, MIX, SceneSpec, draw_style, is_held_out_style, scene_specs
from recipes.scenes.rooms import Room, plan_room
from recipes.scenes.streetplan import Course, plan_cars, plan_lots, plan_street, ribbon

from scalefield.datasets import Folder

SEEN_THROUGH = ("doorway", "glass")


def test_mix_has_the_stated_proportions_and_distinct_names():
    specs = scene_specs("mix", 2 * len(MIX), 5)
    kinds = [spec.kind for spec in specs]
    assert [kinds.count(k) for k in KINDS] == [14, 12, 6, 8]
    assert len({spec.name for spec in specs}) == len(specs)


def test_scene_does_not_depend_on_the_number_of_scenes():
    assert scene_specs("mix", 30, 0)[:10] == scene_specs("mix", 10, 0)
    assert scene_specs("mix", 30, 0)[10:] == scene_specs("mix", 20, 10)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="indoor"):
        scene_specs("forest", 1, 0)


def test_about_one_scene_in_nine_is_for_val():
    splits = [SceneSpec("street", seed).split for seed in range(900)]
    assert 60 < splits.count("val") < 140


def test_generators_of_a_scene_are_repeatable_and_differ_by_purpose():
    spec = SceneSpec("indoor", 3)
    assert spec.rng("a").random() == spec.rng("a").random() != spec.rng("b").random()


def test_styles_of_val_are_disjoint_from_those_of_train():
    rng = random.Random(0)
    assert all(is_held_out_style(draw_style(rng, "val")) for _ in range(100))
    assert not any(is_held_out_style(draw_style(rng, "train")) for _ in range(100))


@pytest.mark.parametrize(("count", "held"), [(1, 0), (2, 1), (3, 1), (5, 1), (8, 2)])
def test_held_out_variants(count, held):
    assert sum(catalogue.held_out(i, count) for i in range(count)) == held


@pytest.mark.parametrize(
    ("cls", "label"),
    [
        ("sky", "sky"),
        ("SofaFactory", "furniture"),
        ("LargePlantContainerFactory", "vegetation"),
        ("CeilingLightFactory", "light"),
        ("BottleFactory", "object"),
        ("vehicle", "vehicle"),
    ],
)
def test_labels_by_class(cls, label):
    assert label_of(cls) == LABELS[label]


def test_label_ids_are_distinct():
    assert len(set(LABELS.values())) == len(LABELS)


def test_intrinsics_have_pixel_centres_at_integers():
    fx, fy, cx, cy = intrinsics(384, 288, 90.0)
    assert (fx, fy, cx, cy) == pytest.approx((192, 192, 191.5, 143.5))


def test_camera_axes_are_right_down_forward():
    matrix = aim((1, 2, 3), yaw_rad=0.0, pitch_rad=0.0)
    right, down, forward, position = matrix[:3].T
    assert forward == pytest.approx([1, 0, 0])
    assert right == pytest.approx([0, -1, 0])
    assert down == pytest.approx([0, 0, -1])
    assert position == pytest.approx([1, 2, 3])
    assert np.linalg.det(matrix) == pytest.approx(1)


def test_look_at_puts_the_target_on_the_optical_axis():
    matrix = look_at((1, -2, 0.5), (4, 4, 2), roll_rad=0.7)
    local = np.linalg.inv(matrix) @ [4, 4, 2, 1]
    assert local[:2] == pytest.approx([0, 0], abs=1e-9)
    assert local[2] == pytest.approx(math.dist((1, -2, 0.5), (4, 4, 2)))


def test_blender_cameras_look_along_minus_z():
    matrix = aim((0, 0, 0), 0.3, 0.2, 0.1)
    assert -to_blender(matrix)[:3, 2] == pytest.approx(matrix[:3, 2])
    assert to_blender(matrix)[:3, 1] == pytest.approx(-matrix[:3, 1])


def test_rays_cover_the_field_of_view():
    directions = rays(400, 200, 90.0, 100, 50)
    assert directions[:, 0].max() == pytest.approx(0.99)
    assert directions[:, 1].max() == pytest.approx(0.49)
    assert (directions[:, 2] == 1).all()


def test_probe_counts_objects():
    depth = np.array([1.0, 2.0, np.inf, 4.0])
    probe = Probe(depth, ("wall", "Sofa", "sky", "Sofa"), ("w", "s", "", "s"))
    assert probe.count_objects({"wall"}) == 1
    assert probe.largest_share({"wall"}) == 0.5
    assert probe.share({"sky"}) == 0.25


def test_choose_prefers_scores_and_keeps_views_apart():
    views = [View("a", aim((x, 0, 1), 0, 0), 60, score) for x, score in ((0, 1), (0.1, 3), (2, 2))]
    assert [view.score for view in choose(views, 3, apart_m=0.5)] == [3, 2]


def test_plan_passage_has_a_room_behind_every_open_door_and_none_overlap():
    styles = set()
    for seed in range(200):
        plan = plan_passage(random.Random(seed))
        assert plan == plan_passage(random.Random(seed))
        styles.add(plan.room.style)
        seen = [o for wall in plan.room.walls for o in wall.openings if o.kind in SEEN_THROUGH]
        assert len(plan.sides) == len(seen)
        for wall in plan.room.walls:
            for o in wall.openings:
                assert 0 < o.s0 < o.s1 < wall.length_m
                assert 0 <= o.z0 < o.z1 < plan.room.size_m[2]
            assert all(a.s1 < b.s0 for a, b in pairwise(wall.openings))
        rects = [s.wall.rect(s.s0, s.s1, -s.depth_m, -0.01) for s in plan.sides]
        for (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) in combinations(rects, 2):
            assert ax1 <= bx0 or bx1 <= ax0 or ay1 <= by0 or by1 <= ay0
    assert styles == {"corridor", "hall", "stairwell"}


def test_plan_passage_keeps_stairs_below_the_ceiling_and_mirrors_off_the_doors():
    plans = [plan_passage(random.Random(seed)) for seed in range(200)]
    flights = [(p.room.size_m, p.stairs) for p in plans if p.stairs]
    assert len(flights) > 10
    for (length, width, height), stairs in flights:
        assert stairs.x0 + stairs.steps * stairs.going_m < length
        assert stairs.steps * stairs.rise_m < height - 0.4
        assert stairs.y1 < width - 0.5
    mirrors = [mirror for plan in plans for mirror in plan.mirrors]
    assert len(mirrors) > 20
    for mirror in mirrors:
        for o in mirror.wall.openings:
            beside = mirror.s1 < o.s0 or o.s1 < mirror.s0
            assert beside or mirror.z0 > o.z1 or mirror.z1 < o.z0


def test_plan_room_is_repeatable_and_keeps_the_door_free():
    for seed in range(30):
        room = plan_room(random.Random(seed))
        assert room.size_m == plan_room(random.Random(seed)).size_m
        doors = [o for wall in room.walls for o in wall.openings if o.kind == "door"]
        assert len(doors) == 1
        assert not room.free(room.taken[0])
        for wall in room.walls:
            assert all(0 < o.s0 < o.s1 < wall.length_m for o in wall.openings)


def test_floor_that_is_taken_is_not_free():
    room = Room("living", (4, 4, 2.5), [], [(1, 1, 2, 2)])
    assert room.free((2.5, 2.5, 3, 3))
    assert not room.free((1.5, 1.5, 3, 3))
    assert not room.free((3.5, 3.5, 4.5, 3.9))


def test_course_matrix_is_a_rotation():
    course = Course(0.004, 1.5, 150, 0.3)
    rotation = course.matrix(40, -3, 0.2)[:3, :3]
    assert rotation @ rotation.T == pytest.approx(np.eye(3))
    assert np.linalg.det(rotation) == pytest.approx(1)


def test_ribbon_faces_point_up():
    points, faces = ribbon(Course(0.002, 0, 100, 0), np.arange(0, 20, 4.0), -2, 2, 0, 0)
    for face in faces:
        a, b, c = points[list(face[:3])]
        assert np.cross(b - a, c - a)[2] > 0


def test_parked_cars_do_not_overlap():
    for seed in range(20):
        plan = plan_street(random.Random(seed))
        cars = plan_cars(random.Random(seed), plan)
        for side in plan.sides:
            kerb = plan.kerb_t(side)
            parked = sorted(c.s for c in cars if not c.moving and 0 < c.t * side.sign < kerb)
            assert side.parking_m or not parked
            assert all(b - a > 6 for a, b in pairwise(parked))


def test_lots_are_behind_the_pavement():
    for seed in range(20):
        plan = plan_street(random.Random(seed))
        for lot in plan_lots(random.Random(seed), plan):
            assert lot.t > plan.pavement_t(lot.side)[1]
            assert lot.s1 > lot.s0
            assert not plan.in_crossing(lot.s0, lot.s1, pad_m=0)


@pytest.mark.parametrize("style", range(12))
def test_vehicles_have_the_size_of_vehicles(style):
    mesh, body = vehicles.vehicle(style)
    lo, hi = mesh.bounds()
    length, width, height = hi - lo
    assert length == pytest.approx(body.length_m, abs=0.2)
    assert body.width_m - 0.05 < width < body.width_m + 0.6
    assert -0.02 < lo[2] < 0.02
    assert 1.3 < height < 4
    assert set(mesh.slots) <= set(vehicles.SLOTS)


@pytest.mark.parametrize("style", range(6))
def test_buildings_have_their_width_and_known_slots(style):
    shape = buildings.draw_style(style, house=style % 2 == 0)
    mesh = buildings.building(shape, 12.0, 9.0, seed=style)
    lo, hi = mesh.bounds()
    assert 12 <= hi[0] - lo[0] < 13.5
    assert hi[2] > shape.ground_floor_m
    assert set(mesh.slots) <= set(buildings.SLOTS)
    assert "glass" in mesh.slots


def test_trees_stand_on_the_ground():
    for style in range(8):
        lo, hi = plants.tree(style, max_leaves=200).bounds()
        assert lo[2] > -1
        assert 4 < hi[2] < 20


def test_roadside_things_have_known_slots():
    for make in roadside.THINGS.values():
        assert set(make(random.Random(1)).slots) <= set(roadside.SLOTS)
    assert set(roadside.fence(6.0, random.Random(2)).slots) <= set(roadside.SLOTS)


def test_boxes_face_outwards():
    mesh = Mesh()
    mesh.box((0, 0, 0), (1, 2, 3), "a")
    points, center = mesh.arrays(), np.array([0.5, 1, 1.5])
    for face in mesh.faces:
        a, b, c = points[list(face[:3])]
        assert np.cross(b - a, c - a) @ (a - center) > 0


def test_merge_moves_vertices_and_keeps_slots():
    a, b = Mesh(), Mesh()
    a.box((0, 0, 0), (1, 1, 1), "a")
    b.box((0, 0, 0), (1, 1, 1), "b")
    a.merge(b, pose(5, 0, 0, math.pi / 2, 2.0))
    assert a.bounds()[1] == pytest.approx([5, 2, 2])
    assert max(max(face) for face in a.faces) == a.count - 1
    assert a.slots == ["a"] * 6 + ["b"] * 6


def test_texture_coordinates_are_metres():
    mesh = Mesh()
    mesh.box((0, 0, 0), (2, 3, 4), "a")
    uv = box_uv(mesh.arrays(), mesh.faces)
    assert uv.shape == (24, 2)
    assert sorted(np.unique(uv)) == [0, 2, 3, 4]


def test_develop_exposes_to_the_key_and_is_repeatable():
    photo = draw_photo(random.Random(0))
    linear = np.random.default_rng(0).uniform(0, 5, (12, 16, 3))
    image = develop(linear, photo, seed=1)
    assert image.dtype == np.uint8
    assert (image == develop(linear, photo, seed=1)).all()
    assert np.abs(image.astype(int) - develop(100 * linear, photo, seed=1)).mean() < 2


def test_black_bodies_turn_from_red_to_white():
    assert kelvin_rgb(2700)[2] < kelvin_rgb(6500)[2]
    assert kelvin_rgb(2700)[0] == 1


def test_assets_of_both_splits_are_found(tmp_path):
    pytest.importorskip("cv2")
    from recipes.scenes.check import shared_assets

    for seed, split, assets in ((0, "train", ["a", "b"]), (1, "val", ["b", "c"])):
        record = {"split": split, "assets": assets, "frames": []}
        write_json(done_path(tmp_path, SceneSpec("indoor", seed)), record)
    assert shared_assets(tmp_path) == {"b"}


def test_collect_writes_what_folder_reads(tmp_path):
    cv2 = pytest.importorskip("cv2")
    spec = next(s for s in scene_specs("street", 50, 0) if s.split == "val")
    name = spec.frame_name(0)
    folder = tmp_path / "scenes" / "street"
    for sub in ("rgb", "depth", "label"):
        (folder / sub).mkdir(parents=True)
    cv2.imwrite(str(folder / "rgb" / f"{name}.jpg"), np.full((8, 8, 3), 90, np.uint8))
    cv2.imwrite(str(folder / "depth" / f"{name}.png"), np.full((8, 8), 1000, np.uint16))
    cv2.imwrite(str(folder / "label" / f"{name}.png"), np.full((8, 8), LABELS["sky"], np.uint8))
    frame = {"name": name, "scene": spec.name, "K": [10.0, 10.0, 3.5, 3.5]}
    record = {"scene": spec.name, "split": "val", "frames": [frame]}
    write_json(done_path(tmp_path, spec), record)
    assert collect(tmp_path) == {"train": 0, "val": 1}
    loaded = Folder(tmp_path).load(f"scenes/street/{name}")
    assert loaded.depth_m == pytest.approx(2.0)  # 1000 units at 500 a metre
    assert loaded.sky is not None
    assert loaded.sky.all()
    assert json.loads((folder / "meta.json").read_text())["labels"] == LABELS
