import io
import re
import sys

import numpy as np
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

import scalefield as sf
from scalefield import samples
from scalefield.defaults import METHOD_NAME
from scalefield.methods import METHODS
from scalefield.web import app
from scalefield.web.app import create_app
from scalefield.web.server import STATIC, plain_name
from scalefield.web.uploads import Limits
from scalefield.web.wire import unpack

FORBIDDEN_IN_PAGE = (r"<script(?![^>]*\bsrc=)", r"\son\w+=", r"\sstyle=", r"https?://", r"<style")


def test_page_obeys_its_content_security_policy_and_needs_no_network(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for pattern in FORBIDDEN_IN_PAGE:
        assert not re.search(pattern, page.text), pattern
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        assert client.get(path).status_code == 200, path
    for script in STATIC.glob("**/*.js"):
        text = re.sub(r"^\s*//.*", "", script.read_text(), flags=re.M)
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), script.name
        assert "innerHTML" not in text  # file names come from other people
        assert "eval(" not in text
        for module in re.findall(r'from "\./([^"]+)"', text):
            assert (STATIC / module).is_file()


def test_page_controls_have_names_and_scripts_find_their_elements(client: TestClient) -> None:
    page = client.get("/").text
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for script in STATIC.glob("*.js"):
        for wanted in re.findall(r'\$\("([^"]+)"\)', script.read_text()):
            assert wanted in ids, f"{script.name} wants #{wanted}"
    named = r'(?:for|aria-labelledby|aria-describedby|aria-controls)="([^"]+)"'
    for wanted in re.findall(named, page):
        assert wanted in ids


def test_api_info_lists_methods_samples_and_limits(client: TestClient) -> None:
    info = client.get("/api").json()
    assert {m["name"] for m in info["methods"]} == set(METHODS)
    assert [m["main"] for m in info["methods"]].count(True) == 3
    for i, method in enumerate(info["methods"]):
        own_words = method["about"] != METHODS[method["name"]].__doc__.splitlines()[0]
        assert own_words == method["main"] == (i < 3)
        assert method["title"] != method["name"]
    assert info["objects"]["door"] == 2.0
    assert client.get("/api/address.svg").status_code == 404  # no other device can open the page
    assert info["method"] in METHODS
    assert info["samples"] == list(samples.SAMPLES)
    assert np.array(info["colours"]["near_to_far"]).shape == (256, 3)


def test_app_documents_every_route_and_no_other(client: TestClient) -> None:
    served = {
        (method, route.path)
        for route in client.app.routes
        if isinstance(route, Route)
        for method in route.methods - {"HEAD"}
    }
    documented = re.findall(r"^(GET|PUT|POST|DELETE) +(/\S*)", app.__doc__, flags=re.M)
    assert set(documented) == served


def test_measure_of_an_uploaded_photo_equals_recover(client: TestClient, wait, png) -> None:
    pixels, data = png(200, 150)
    started = client.post("/api/sessions?name=holiday.png", content=data)
    assert started.status_code == 202
    session = wait(client, started.json())
    assert (session["state"], session["name"]) == ("ready", "holiday.png")
    assert (session["width"], session["height"]) == (200, 150)
    assert session["fov_deg"] is None
    anchors = [{"u": 30, "v": 40, "depth_m": 2.0}, {"u": 150, "v": 100, "depth_m": 5.0}]
    points = [{"u": 30, "v": 40}, {"u": 199, "v": 149}]
    answer = client.post(
        f"/api/sessions/{session['id']}/measure", json={"anchors": anchors, "points": points}
    )
    expected = sf.recover(pixels, sf.Anchors([30, 150], [40, 100], [2, 5])).depth_m
    np.testing.assert_allclose(
        answer.json()["depth_m"], [expected[40, 30], expected[149, 199]], rtol=1e-4
    )
    assert answer.json()["report"]["method"] == METHOD_NAME
    for point, words in (({"u": 1}, "point #0: v must be"), ({"u": 200, "v": 0}, "1 of 1 points")):
        edit = {"anchors": anchors, "points": [point]}
        refused = client.post(f"/api/sessions/{session['id']}/measure", json=edit)
        assert refused.status_code == 400
        assert words in refused.json()["error"]
    photo = client.get(f"/api/sessions/{session['id']}/photo.jpg")
    assert photo.headers["content-type"] == "image/jpeg"
    assert client.delete(f"/api/sessions/{session['id']}").status_code == 204
    gone = client.get(f"/api/sessions/{session['id']}")
    assert gone.status_code == 404
    assert gone.json()["code"] == "session_gone"


def test_maps_and_basis_of_the_sample(client: TestClient, room: dict) -> None:
    header, maps = unpack(client.get(f"/api/sessions/{room['id']}/maps").content)
    assert header["state"] == "ready"
    truth = samples.load("room").depth_m
    np.testing.assert_allclose(np.exp(maps["log_truth"]), truth, rtol=1e-3)
    assert maps["log_mde_depth"].shape == truth.shape
    _, basis = unpack(client.get(f"/api/sessions/{room['id']}/basis?method=basis").content)
    edit = {"anchors": room["anchors"], "method": "basis"}
    answer, field = unpack(client.post(f"/api/sessions/{room['id']}/recover", json=edit).content)
    assert len(answer["weights"]) == len(basis["basis_maps"])
    # ℓ = Eᵀw + a constant, the offset.
    combined = np.tensordot(answer["weights"], basis["basis_maps"], 1)
    assert np.ptp(field["log_scale"] - combined) < 0.01
    refused = client.get(f"/api/sessions/{room['id']}/basis?method=lwlr")
    assert "only basis and field have basis maps" in refused.json()["error"]


def test_put_depth_replaces_the_relative_depth(client: TestClient, wait, png, npy) -> None:
    _, data = png(60, 40)
    session = wait(client, client.post("/api/sessions", content=data).json())
    url = f"/api/sessions/{session['id']}/depth"
    disparity = 1 / np.linspace(1, 4, 60 * 40).reshape(40, 60)
    put = client.put(f"{url}?name=mine.npy&kind=disparity", content=npy(disparity))
    assert put.status_code == 202
    session = wait(client, put.json())
    described = (session["relative_depth"], session["kind"], session["revision"])
    assert described == ("mine.npy", "disparity", 2)
    edit = {
        "anchors": [{"u": 0, "v": 0, "depth_m": 2.0}],
        "method": "median",
        "points": [{"u": 59, "v": 39}],
    }
    answer = client.post(f"/api/sessions/{session['id']}/measure", json=edit).json()
    assert answer["depth_m"] == [pytest.approx(8.0, rel=1e-5)]
    for query, body, words in (
        ("name=mine.npy", npy(disparity), "kind is required"),
        ("name=mine.npy&kind=depth", npy(disparity[:20]), "resize=True"),
        ("name=mine.npy&kind=depth&resize=1", npy(disparity), "resize is true or false, found '1'"),
        ("name=mine.txt&kind=depth", b"1 2", "read from .npy"),
        ("name=mine.npy&kind=depth", npy(-disparity), "no usable value"),
    ):
        refused = client.put(f"{url}?{query}", content=body)
        assert refused.status_code == 400
        assert words in refused.json()["error"]
    # What was there still is.
    assert client.get(f"/api/sessions/{session['id']}").json()["relative_depth"] == "mine.npy"
    resized = client.put(f"{url}?name=a.npy&kind=depth&resize=True", content=npy(disparity[:20]))
    described = resized.json()
    assert (described["state"], described["progress"], described["step"]) == (
        "waiting",
        0,
        "waiting for its turn",
    )
    assert wait(client, resized.json())["state"] == "ready"


def test_length_answers_in_metres_or_with_the_readings(client: TestClient) -> None:
    answer = client.post("/api/length", json={"text": "99", "unit": "in"})
    assert answer.json() == {"length_m": 2.5146}
    refused = client.post("/api/length", json={"text": "1,200"})
    assert refused.status_code == 400
    assert refused.json() == {
        "error": "“1,200” can be 1200 m (1200 m) or 1.200 m (1.2 m); write one",
        "code": "ambiguous",
        "readings": {"1200 m": 1200.0, "1.200 m": 1.2},
    }
    assert client.post("/api/length", content=b"2.4").status_code == 415


def test_table_answers_with_the_anchors_of_an_edit(client: TestClient, room: dict) -> None:
    url = f"/api/sessions/{room['id']}"
    answer = client.post(f"{url}/table", content=b"x;y;z;sigma\n10;20;1,5;\n11;20;2;0,1\n").json()
    assert answer["anchors"] == [
        {"u": 10, "v": 20, "depth_m": 1.5},
        {"u": 11, "v": 20, "depth_m": 2, "sigma_m": 0.1},
    ]
    assert client.post(f"{url}/recover", json=answer).status_code == 200
    refused = client.post(f"{url}/table", content="u,v\n1,2")
    assert (refused.status_code, refused.json()["code"]) == (400, "header")
    assert client.post(f"{url}/table", content=b"1" * (2**20 + 1)).status_code == 413


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "not an image"), (b"hello", "not an image"), (b"\x89PNG\r\n\x1a\n", "image")],
)
def test_create_session_names_the_problem_of_a_bad_photo(
    client: TestClient, content: bytes, words: str
) -> None:
    before = len(client.app.state.server.sessions)
    answer = client.post("/api/sessions", content=content)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert len(client.app.state.server.sessions) == before


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/api/sessions/none", {}, 404),
        ("POST", "/api/sessions/none/recover", {"json": {"anchors": []}}, 404),
        ("POST", "/api/samples/palace", {}, 400),
        ("POST", "/api/samples/..%2f..%2fetc", {}, 404),
        ("GET", "/static/../app.py", {}, 404),
        ("GET", "/static/%2e%2e/app.py", {}, 404),
        ("GET", "/static/..%2f..%2fcli.py", {}, 404),
        ("GET", "/nothing", {}, 404),
        ("PUT", "/api", {}, 405),
    ],
)
def test_unknown_routes_methods_and_media_types_are_refused(
    client, method: str, path: str, options: dict, status: int
) -> None:
    answer = client.request(method, path, **options)
    assert answer.status_code == status
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"anchors": NaN}', "NaN"),
        (b'{"anchors": [{"u": 1, "v": 1, "depth_m": Infinity}]}', "Infinity"),
        (b'{"anchors": [{"u": 1, "v": 1, "depth_m": 1e999}]}', "finite depth_m"),
        (b'{"anchors": []}', "no anchors"),
        (b'{"anchors": [{"u": 9999, "v": 1, "depth_m": 1}]}', "outside the image"),
    ],
)
def test_recover_names_the_problem_of_a_bad_edit(client, room, body: bytes, words: str) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post(f"/api/sessions/{room['id']}/recover", content=body, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    # A form of another site can send text/plain without asking; it is not read.
    answer = client.post(
        f"/api/sessions/{room['id']}/recover", content=body, headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 415


def test_limits_of_sessions_pixels_and_bytes_hold(wait, png) -> None:
    limits = Limits(upload_bytes=20_000, pixels=5_000, sessions=2)
    with TestClient(create_app(limits), base_url="http://127.0.0.1:8008") as client:
        small, large = png(50, 40)[1], png(100, 100)[1]
        refused = client.post("/api/sessions", content=large)
        assert refused.status_code == 400
        assert "megapixels" in refused.json()["error"]
        assert client.post("/api/sessions", content=bytes(20_001)).status_code == 413
        parts = (bytes(7_000) for _ in range(4))  # chunked: no length is promised
        assert client.post("/api/sessions", content=parts).status_code == 413
        ids = [wait(client, client.post("/api/sessions", content=small).json()) for _ in range(3)]
        states = [client.get(f"/api/sessions/{s['id']}").status_code for s in ids]
        assert states == [404, 200, 200]
        assert client.app.state.server.bodies.held == 0


def test_reserve_frees_memory_or_refuses(wait, png) -> None:
    pixels = 60 * 40
    limits = Limits(session_bytes=pixels * 200, work_bytes_per_pixel=100)
    with TestClient(create_app(limits), base_url="http://127.0.0.1:8008") as client:
        sessions = client.app.state.server.sessions
        for _ in range(4):
            wait(client, client.post("/api/sessions", content=png(60, 40)[1]).json())
        assert sessions.nbytes + 100 * pixels <= limits.session_bytes or len(sessions) == 1
        refused = client.post("/api/sessions", content=png(120, 80)[1])
        assert refused.status_code == 400
        assert "more --max-memory-gb" in refused.json()["error"]


def test_heavy_pool_refuses_work_when_its_queue_is_full(png) -> None:
    limits = Limits(waiting_jobs=0)
    with TestClient(create_app(limits), base_url="http://127.0.0.1:8008") as client:
        client.app.state.server.heavy.places_left = 0
        answer = client.post("/api/sessions", content=png(50, 40)[1])
        assert answer.status_code == 503
        assert "try again" in answer.json()["error"]


def test_recover_names_the_extra_that_a_method_needs(
    client, room, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m == "skimage" or m.startswith("skimage.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    edit = {"anchors": room["anchors"], "method": "region"}
    answer = client.post(f"/api/sessions/{room['id']}/recover", json=edit)
    assert answer.status_code == 501
    assert "pip install 'scalefield[region]'" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\a.png", "a.png"),
        ("a\x00b\n.png", "ab.png"),
        ("..", "x"),
        ("", "x"),
        ("é" * 300 + ".jpg", ("é" * 300 + ".jpg")[-120:]),
    ],
)
def test_plain_name_of_a_client_is_never_a_path(name: str, kept: str) -> None:
    assert plain_name(name, "x") == kept


def test_exported_files_hold_the_values_of_recover(client: TestClient, wait, png, tmp_path) -> None:
    from scalefield.geometry.point_clouds import read_points
    from scalefield.io import read_depth_png, read_npz

    pixels, data = png(160, 120)
    session = wait(client, client.post("/api/sessions", content=data).json())
    anchors = sf.Anchors([20, 130, 80, 40], [30, 20, 60, 100], [2.0, 5.0, 3.0, 2.5])
    columns = {"u": anchors.u, "v": anchors.v, "depth_m": anchors.depth_m}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def fetch(name: str, **more: object):
        url = f"/api/sessions/{session['id']}/files/{name}"
        return client.post(url, json={"anchors": rows, **more})

    expected = sf.recover(pixels, anchors)
    depth_png = fetch("depth.png")
    assert depth_png.headers["content-disposition"] == 'attachment; filename="depth.png"'
    (tmp_path / "depth.png").write_bytes(depth_png.content)
    np.testing.assert_allclose(read_depth_png(tmp_path / "depth.png"), expected.depth_m, atol=6e-4)
    (tmp_path / "depth.npz").write_bytes(fetch("depth.npz").content)
    maps = read_npz(tmp_path / "depth.npz", required=("depth_m", "log_scale", "weights"))
    np.testing.assert_array_equal(maps["depth_m"], expected.depth_m)
    thinned = fetch("cloud.ply", fov_deg=60, max_points=1000).content
    (tmp_path / "thin.ply").write_bytes(thinned)
    thin = read_points(tmp_path / "thin.ply")
    assert 300 < len(thin) <= 1000
    assert fetch("cloud.glb", fov_deg=60, max_points=1000).content[:4] == b"glTF"
    (tmp_path / "cloud.ply").write_bytes(fetch("cloud.ply", fov_deg=60).content)
    points = read_points(tmp_path / "cloud.ply")
    assert 0.9 * expected.depth_m.size < len(points) <= expected.depth_m.size
    # Points at the edges of objects are left out; the others have the depth of a pixel.
    assert np.isin(points[:, 2].astype(np.float32), expected.depth_m).all()
    assert points[:, 2].max() == pytest.approx(expected.depth_m.max(), rel=1e-2)
    # The thinned points are points of the whole cloud.
    nearest = np.abs(points[:, None] - thin[None, ::97]).sum(axis=2).min(axis=0)
    assert nearest.max() < 1e-3
    for name, more, words in (
        ("cloud.ply", {}, "fov_deg"),
        ("cloud.ply", {"fov_deg": 190}, "between 0 and 180"),
        ("cloud.ply", {"fov_deg": -5}, "between 0 and 180 degrees, found -5"),
        ("cloud.ply", {"fov_deg": "60"}, "fov_deg must be a number"),
        ("depth.png", {"fov_deg": True}, "fov_deg must be a number"),
        ("cloud.ply", {"fov_deg": 60, "max_points": 0}, "max_points must be 1 or more"),
        ("cloud.ply", {"fov_deg": 10**400}, "between 0 and 180"),
        ("../secret", {}, None),
        ("shell.sh", {}, "no file"),
    ):
        refused = fetch(name, **more)
        assert refused.status_code in (400, 404)
        assert words is None or words in refused.json()["error"]


def test_exported_recover_py_gives_the_same_result(client: TestClient, room: dict) -> None:
    edit = {"anchors": room["anchors"], "method": "lwlr", "points": [{"u": 300, "v": 200}]}
    lines = client.post(f"/api/sessions/{room['id']}/files/recover.py", json=edit).text
    names: dict = {}
    exec(compile(lines, "recover.py", "exec"), names)
    (shown,) = client.post(f"/api/sessions/{room['id']}/measure", json=edit).json()["depth_m"]
    assert names["r"].depth_m[200, 300] == pytest.approx(shown, rel=1e-6)


def test_exported_recover_py_names_the_files_of_the_user(
    client: TestClient, wait, png, npy, tmp_path, monkeypatch
) -> None:
    name = 'it\'s "mine".png'
    pixels, data = png(60, 40)
    started = client.post("/api/sessions", params={"name": name}, content=data)
    session = wait(client, started.json())
    depth = np.linspace(1, 4, 60 * 40).reshape(40, 60)
    url = f"/api/sessions/{session['id']}"
    wait(client, client.put(f"{url}/depth?name=d.npy&kind=depth", content=npy(depth)).json())
    edit = {"anchors": [{"u": 3, "v": 4, "depth_m": 2.0}], "method": "global"}
    lines = client.post(f"{url}/files/recover.py", json=edit).text
    (tmp_path / name).write_bytes(data)
    (tmp_path / "d.npy").write_bytes(npy(depth))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(lines, "recover.py", "exec"), names)
    expected = sf.recover(pixels, sf.Anchors([3], [4], [2.0]), mde_depth=depth, kind="depth",
                          method="global")  # fmt: skip
    np.testing.assert_allclose(names["r"].depth_m, expected.depth_m)


@pytest.fixture(scope="module")
def npy():
    def make(values: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, values)
        return buffer.getvalue()

    return make


def test_put_depth_of_several_arrays_offers_their_names(client: TestClient, wait, png) -> None:
    session = wait(client, client.post("/api/sessions", content=png(60, 40)[1]).json())
    buffer = io.BytesIO()
    np.savez(buffer, depth=np.linspace(1, 4, 2400).reshape(40, 60), mask=np.ones((40, 60)))
    url = f"/api/sessions/{session['id']}/depth?name=two.npz&kind=depth"
    refused = client.put(url, content=buffer.getvalue())
    assert refused.status_code == 400
    assert (refused.json()["code"], refused.json()["choices"]) == (
        "choose_array",
        ["depth", "mask"],
    )
    taken = client.put(f"{url}&key=depth", content=buffer.getvalue())
    assert wait(client, taken.json())["relative_depth"] == "two.npz"
    edit = {"anchors": [{"u": 1, "v": 1, "depth_m": 2.0}]}
    lines = client.post(f"/api/sessions/{session['id']}/files/recover.py", json=edit).text
    assert "key='depth'" in lines


def test_measure_gives_the_deviation_where_the_method_has_one(client: TestClient, room) -> None:
    body = {"anchors": room["anchors"], "points": [{"u": 300, "v": 155}, {"u": 630, "v": 350}]}
    near, far = client.post(f"/api/sessions/{room['id']}/measure", json=body).json()["std_log"]
    assert 0 < near < far
    body["method"] = "interpolate"
    assert "std_log" not in client.post(f"/api/sessions/{room['id']}/measure", json=body).json()


def test_sample_photo_can_be_fetched(client: TestClient) -> None:
    photo = client.get("/api/samples/room/photo")
    assert photo.content == samples.load("room").image_path.read_bytes()
    assert client.get("/api/samples/palace/photo").status_code == 400


def test_refusals_have_a_code(client: TestClient, room) -> None:
    for method, path, code in (
        ("GET", "/api/sessions/none", "session_gone"),
        ("POST", "/api/samples/palace", "input"),
        ("GET", "/nothing", "http_404"),
    ):
        assert client.request(method, path).json()["code"] == code
