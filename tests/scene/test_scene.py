"""Views of a rendered room with known poses, recovered together."""

import dataclasses
import json
import math
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.scenes import Truth, abs_rel, anchors_of, disagreement, small_steps
from PIL import Image

import scalefield as sf
from scalefield.cli import main
from scalefield.errors import InputError
from scalefield.scene.solver import Scene, SceneConfig
from scalefield.scene.stereo import StereoConfig, match
from scalefield.scene.ties import JointSystem, TiedPixels, Ties
from scalefield.scene.unit import SceneMeasurement, metric_scale, read_measurements
from scalefield.scene.view import Estimate, View, neighbours

SHAPE = (144, 192)
ALONE = SceneConfig(stereo=None, ties=None)
SMALL = SceneConfig(stereo=StereoConfig(grid=(8, 10), hypotheses=48))


@cache
def truths() -> list[Truth]:
    _, (_, frames) = small_steps(2, views=4, step_m=0.12, size=SHAPE)  # with more texture
    return frames


class Bent:
    """An estimator whose depth is the truth, bent by a smooth factor and a power."""

    name = "bent"

    def __call__(self, image: np.ndarray) -> sf.MDEOutput:
        truth = next(t for t in truths() if np.array_equal(t.image, image))
        v, u = np.mgrid[: SHAPE[0], : SHAPE[1]] / SHAPE[0]
        k = float(truth.camera_to_world[0, 3])
        bent = truth.depth_m**0.9 * np.exp(0.25 * np.sin(3 * u + 40 * k) + 0.2 * np.cos(4 * v + k))
        return sf.MDEOutput(
            torch.from_numpy(bent), "depth", model="bent", image=torch.tensor(image)
        )


def scene(config: SceneConfig = SMALL, counts: tuple[int, ...] = (6, 6, 6, 6), **options) -> Scene:
    made = Scene(Bent(), config=config, **options)
    for truth, count in zip(truths(), counts, strict=True):
        made.add(
            truth.image, anchors_of(truth, count), camera=truth.camera,
            camera_to_world=truth.camera_to_world, name=truth.name,
        )  # fmt: skip
    return made


def mean_error(found: dict[str, sf.Recovery], names: slice = slice(None)) -> float:
    return float(np.mean([abs_rel(t, found[t.name]) for t in truths()[names]]))


def test_scene_joint_depth_is_more_accurate_and_agrees_better_than_single_recoveries():
    alone, joint = scene(ALONE).recover(), scene().recover()
    assert mean_error(joint) < 0.8 * mean_error(alone)
    assert disagreement(truths(), joint) < 0.6 * disagreement(truths(), alone)
    report = joint["00"].report
    assert (report.method, report.anchors_given) == ("scene", 6)
    assert np.isfinite(joint["00"].std_log).all()


def test_scene_without_ties_and_matches_is_recover():
    found = scene(ALONE).recover()
    for truth in truths():
        expected = sf.recover(truth.image, anchors_of(truth, 6), mde=Bent())
        np.testing.assert_allclose(found[truth.name].depth_m, expected.depth_m, rtol=1e-5)
        np.testing.assert_allclose(found[truth.name].std_log, expected.std_log, rtol=1e-5)


def test_scene_views_without_anchors_get_the_scale_of_the_others():
    counts = (12, 0, 0, 12)
    alone, joint = scene(ALONE, counts).recover(), scene(SMALL, counts).recover()
    assert mean_error(joint, slice(1, 3)) < 0.6 * mean_error(alone, slice(1, 3))


@pytest.mark.slow
def test_scene_with_a_wrong_pose_leaves_the_other_views_no_worse():
    alone, made = scene(ALONE).recover(), scene()
    wrong = made.views["03"]
    pose = np.eye(4)
    pose[:3, :3] = wrong.camera_to_world[:3, :3] @ [[0.8, 0, 0.6], [0, 1, 0], [-0.6, 0, 0.8]]
    pose[:3, 3] = wrong.camera_to_world[:3, 3] + [0.3, -0.2, 0.4]
    made.views["03"] = dataclasses.replace(wrong, camera_to_world=pose)
    found = made.recover()
    assert mean_error(found, slice(3)) < 1.02 * mean_error(alone, slice(3))


def test_scene_with_a_folder_is_the_scene_in_memory_and_continues(tmp_path):
    expected = scene().recover()
    kept = scene(folder=tmp_path)
    kept.solve()
    states = {p: p.read_bytes() for p in tmp_path.rglob("*.npz")}
    for path in tmp_path.glob("joint1/*"):
        path.unlink()
    next(iter(tmp_path.glob("matched/*"))).unlink()
    again = pickle.loads(pickle.dumps(scene(folder=tmp_path))).recover()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.npz")} == states
    for name, recovery in expected.items():
        np.testing.assert_array_equal(again[name].depth_m, recovery.depth_m)


def test_scene_refuses_bad_input():
    truth = truths()[0]
    made = Scene(Bent())
    with pytest.raises(InputError, match="the scene has no view"):
        made.recover()
    turned = truth.camera_to_world * 2
    with pytest.raises(InputError, match="a: its pose is not a rotation"):
        made.add(truth.image, camera=truth.camera, camera_to_world=turned, name="a")
    with pytest.raises(InputError, match="a pose is a 4×4 matrix"):
        made.add(truth.image, camera=truth.camera, camera_to_world=np.eye(3))
    with pytest.raises(InputError, match="must not leave the folder"):
        made.add(truth.image, camera=truth.camera, camera_to_world=np.eye(4), name="../a")
    made.add(truth.image, camera=truth.camera, camera_to_world=np.eye(4), name="a")
    with pytest.raises(InputError, match="there are two views called 'a'"):
        made.add(truth.image, camera=truth.camera, camera_to_world=np.eye(4), name="a")
    with pytest.raises(InputError, match="no view of the scene has an anchor"):
        dataclasses.replace(made, metres=False).recover()
    with pytest.raises(InputError, match="several workers need a folder"):
        Scene(workers=2)


def test_match_measures_the_true_depth_from_a_wrong_one():
    own, *others = truths()
    wrong = np.log(own.depth_m).astype(np.float32) + 0.15
    estimate = Estimate(wrong, np.full_like(wrong, 0.15))
    views = [View(t.name, t.image, t.camera, t.camera_to_world) for t in truths()]
    greys = [t.image.astype(np.float32).mean(axis=2) for t in truths()]
    near = {v.name: (v, g) for v, g in zip(views[1:], greys[1:], strict=True)}
    found = match(views[0], greys[0], estimate, near, SMALL.stereo)
    error = np.abs(found.log_depth - np.log(own.depth_m[found.rows, found.columns]))
    assert len(error) >= 20
    assert np.median(error) < 0.01
    assert len(match(views[0], greys[0], estimate, {}, SMALL.stereo).rows) == 0
    assert len(others) == 3


def test_neighbours_see_the_same_and_are_ranked():
    views = {t.name: View(t.name, t.image, t.camera, t.camera_to_world) for t in truths()}
    depth = np.log(truths()[0].depth_m).astype(np.float32)
    estimate = Estimate(depth, np.full_like(depth, 0.1))
    assert len(neighbours("00", views, estimate, 2)) == 2
    behind = truths()[1].camera_to_world @ np.diag([-1.0, 1.0, -1.0, 1.0])
    views["01"] = dataclasses.replace(views["01"], camera_to_world=behind)
    assert "01" not in neighbours("00", views, estimate, 3)


def test_joint_system_solve_is_the_posterior_mean_of_the_dense_system():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 20, (4, 30))
    columns = (pixels[0], pixels[1], pixels[2], pixels[3])
    gain, residual = rng.uniform(0.5, 2, 30), rng.normal(0, 0.1, 30)
    other = [["b", "c"][i] for i in rng.integers(0, 2, 30)]
    empty = np.zeros(0, np.int64)
    nothing = Ties([], empty, empty, empty, empty, np.zeros(0), np.zeros(0))
    ties = {"a": Ties(other, *columns, gain, residual), "b": nothing, "c": nothing, "d": nothing}
    system = JointSystem.of(ties, dict.fromkeys(ties, 20))
    blocks = {}
    for name, (rows, cols) in system.pixels.items():
        root = rng.normal(size=(len(rows), len(rows)))
        change = rng.normal(0, 0.1, len(rows))
        blocks[name] = TiedPixels(rows, cols, root @ root.T, change)
    index = {
        (name, int(r), int(c)): system.start[i] + j
        for i, name in enumerate(system.names)
        for j, (r, c) in enumerate(zip(*system.pixels[name], strict=True))
    }
    A = np.zeros((30, system.start[-1]))
    for t, name in enumerate(other):
        A[t, index["a", int(columns[0][t]), int(columns[1][t])]] += gain[t]
        A[t, index[name, int(columns[2][t]), int(columns[3][t])]] -= 1
    S = torch.block_diag(*(torch.from_numpy(b.covariance) for b in blocks.values())).numpy()
    change = np.concatenate([b.change for b in blocks.values()])
    gram = A @ S @ A.T + 0.3**2 * np.eye(30)
    expected = S @ A.T @ np.linalg.solve(gram, A @ change - residual)
    solved = system.solve(blocks, 0.3)
    found = np.concatenate([delta for delta, _ in solved.values()])
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())
    assert all(0 < factor <= 1 for _, factor in solved.values())
    assert solved["d"][1] == 1


# ---- the unit ---------------------------------------------------------------------------------


@pytest.fixture
def posed() -> tuple[dict[str, View], dict[str, Estimate]]:
    views = {t.name: View(t.name, t.image, t.camera, t.camera_to_world) for t in truths()}
    estimates = {
        t.name: Estimate(np.log(t.depth_m).astype(np.float32), np.full(SHAPE, 0.1, np.float32))
        for t in truths()
    }
    return views, estimates


def test_metric_scale_is_that_of_depths_lengths_and_baselines(posed):
    views, estimates = posed
    view, depth = views["00"], truths()[0].depth_m
    ends = view.world(np.array([20.0, 90.0]), np.array([30.0, 60.0]), depth[[30, 60], [20, 90]])
    length = float(np.linalg.norm(ends[0] - ends[1]))
    apart = float(np.linalg.norm(np.subtract(*(
        views[name].camera_to_world[:3, 3] for name in ("00", "03")
    ))))  # fmt: skip
    kinds = [
        SceneMeasurement("00", 2.5 * depth[30, 20], 0.01, ((20.0, 30.0),)),
        SceneMeasurement("00", 2.5 * length, 0.01, ((20.0, 30.0), (90.0, 60.0))),
        SceneMeasurement("00", 2.5 * apart, 0.01, other="03"),
    ]
    stds = []
    for each in kinds:
        scale = metric_scale([each], views, estimates)
        assert scale.metres_per_unit == pytest.approx(2.5, rel=1e-5)
        stds.append(scale.std_log)
    assert stds == pytest.approx([math.hypot(0.01, 0.1)] * 2 + [0.01], rel=1e-3)
    many = metric_scale(kinds[:1] * 20, views, estimates)  # one view's errors do not average out
    assert many.std_log > 0.1
    apart_ones = [kinds[2], dataclasses.replace(kinds[2], metres=5 * apart)]
    assert metric_scale(apart_ones, views, estimates).std_log > 0.3


def test_read_measurements_reads_three_kinds_and_names_bad_lines(tmp_path):
    path = tmp_path / "m.csv"
    head = "image,u,v,u2,v2,other,depth_m,length_m,distance_m,sigma_m\n"
    path.write_text(head + "a,1,2,,,,2.0,,,0.1\na,1,2,3,4,,,1.5,,\na,,,,,b,,,4,\n")
    depth, length, distance = read_measurements(path)
    assert (depth.pixels, depth.sigma) == (((1.0, 2.0),), 0.05)
    assert length.pixels == ((1.0, 2.0), (3.0, 4.0))
    assert (distance.other, distance.metres) == ("b", 4.0)
    for line, message in (
        ("a,1,2,,,,,,,", "line 2: wanted one of depth_m, length_m, distance_m"),
        ("a,1,,,,,2,,,", "line 2: depth_m needs v"),
        ("a,1,x,,,,2,,,", "line 2: v is no usable number: 'x'"),
        ("a,1,1,,,,-2,,,", "line 2: depth_m is no usable number"),
    ):
        path.write_text(head + line + "\n")
        with pytest.raises(InputError, match=message):
            read_measurements(path)


# ---- the command --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Images, maps, anchors and a transforms.json."""
    monkeypatch.chdir(tmp_path)
    frames = []
    for truth in truths():
        for name in ("images", "maps"):
            Path(name).mkdir(exist_ok=True)
        Image.fromarray(truth.image).save(f"images/{truth.name}.png")
        np.save(f"maps/{truth.name}.npy", Bent()(truth.image).prediction.numpy())
        anchors_of(truth, 6).write(f"images/{truth.name}.anchors.npz")
        pose = truth.camera_to_world @ np.diag([1.0, -1, -1, 1])
        frames.append({
            "file_path": f"images/{truth.name}.png", "transform_matrix": pose.tolist(),
            "fl_x": truth.camera.fx, "fl_y": truth.camera.fy,
            "cx": truth.camera.cx + 0.5, "cy": truth.camera.cy + 0.5, "w": SHAPE[1], "h": SHAPE[0],
        })  # fmt: skip
    Path("transforms.json").write_text(json.dumps({"frames": frames}))
    return tmp_path


def test_scene_command_writes_what_the_library_recovers_and_continues(folder, capsys):
    words = ["scene", "transforms.json", "images", "--depth", "maps", "--kind", "depth"]
    assert main([*words, "--out", "out"]) == 0
    assert "4 views recovered in one scale" in capsys.readouterr().out
    depths = {t.name: np.load(f"out/depths_npy/{t.name}.npy") for t in truths()}
    expected = scene(SceneConfig()).recover()
    for name, depth in depths.items():
        np.testing.assert_allclose(depth, expected[name].depth_m, rtol=1e-4)
        np.testing.assert_allclose(np.load(f"out/std_npy/{name}.npy"), expected[name].std_log, 1e-4)
    written = json.loads(Path("out/transforms.json").read_text())
    from scalefield.geometry.point_clouds import read_points
    from scalefield.geometry.poses import read_poses

    for truth, each in zip(truths(), read_poses(Path("out/transforms.json")), strict=True):
        np.testing.assert_allclose(each.camera_to_world, truth.camera_to_world, atol=1e-9)
        assert each.camera.intrinsics == pytest.approx(truth.camera.intrinsics)
    points = read_points(Path("out", written["ply_file_path"]))
    u, v, z = View("a", truths()[0].image, truths()[0].camera, truths()[0].camera_to_world).project(
        points
    )
    seen = np.isfinite(u) & (u > 0) & (u < SHAPE[1] - 1) & (v > 0) & (v < SHAPE[0] - 1) & (z > 0)
    near = depths["00"][np.rint(v[seen]).astype(int), np.rint(u[seen]).astype(int)]
    assert np.median(np.abs(np.log(z[seen] / near))) < 0.05
    assert main([*words, "--out", "out"]) == 0  # complete: nothing changes
    for name, depth in depths.items():
        np.testing.assert_array_equal(np.load(f"out/depths_npy/{name}.npy"), depth)
    assert main([*words, "--no-tie", "--out", "out"]) == 2


def test_scene_command_measure_turns_all_output_into_metres(folder, capsys):
    depth = truths()[0].depth_m[50, 60]
    Path("m.csv").write_text(f"image,u,v,depth_m,sigma_m\n00,60,50,{3 * depth},0.01\n")
    words = ["scene", "transforms.json", "images", "--depth", "maps", "--kind", "depth"]
    words += ["--no-tie", "--no-match"]
    for out, more in (("units", []), ("metres", ["--measure", "m.csv"])):
        assert main([*words, "--out", out, *more]) == 0
    factor = json.loads(Path("metres/scene.json").read_text())["metres_per_unit"]["value"]
    low, high = json.loads(Path("metres/scene.json").read_text())["metres_per_unit"]["interval_90"]
    assert low < 3 < high
    assert low < factor < high
    units, metres = (np.load(f"{out}/depths_npy/01.npy") for out in ("units", "metres"))
    np.testing.assert_allclose(metres, factor * units, rtol=1e-5)
    units, metres = (
        np.array(
            json.loads(Path(out, "transforms.json").read_text())["frames"][1]["transform_matrix"]
        )
        for out in ("units", "metres")
    )
    np.testing.assert_allclose(metres[:3, 3], factor * units[:3, 3])
    assert "one unit of the poses is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.json", "images"], "none.json: no such file or folder of poses"),
        (["transforms.json", "none"], "none: no such folder of images"),
        (["transforms.json", "images", "--anchors", "none"], "none: no such folder of anchors"),
        (
            ["other.json", "images"],
            "none of its 1 poses is of one of the 4 images, the first of zz",
        ),
        (["transforms.json", "images", "--depth", "maps"], "--depth needs --kind"),
    ],
)
def test_scene_command_refuses_with_a_sentence(folder, capsys, words, message):
    frame = json.loads(Path("transforms.json").read_text())["frames"][0]
    Path("other.json").write_text(json.dumps({"frames": [{**frame, "file_path": "zz.png"}]}))
    assert main(["scene", *words, "--out", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()
