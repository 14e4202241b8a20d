"""Anchors: what is refused, which pixel each one measures, and round trips through files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scalefield import Anchors, InputError
from scalefield.io import write_depth_png
from scalefield.io.lengths import LENGTH_LIMITS_M


def columns(draw_sigma: bool = True) -> st.SearchStrategy[Anchors]:
    """Any anchors that the constructor accepts, positions to the ends of float64."""
    position = st.floats(allow_nan=False, allow_infinity=False)
    positive = st.floats(*LENGTH_LIMITS_M)

    def build(n: int) -> st.SearchStrategy[Anchors]:
        def of(elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
            return hnp.arrays(np.float64, n, elements=elements)

        sigma = st.none() | of(positive | st.just(np.nan)) if draw_sigma else st.none()
        return st.builds(Anchors, of(position), of(position), of(positive), sigma)

    return st.integers(0, 6).flatmap(build)


def assert_same(a: Anchors, b: Anchors) -> None:
    for name in ("u", "v", "depth_m"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert (a.sigma_m is None) == (b.sigma_m is None)
    if a.sigma_m is not None:
        np.testing.assert_array_equal(a.sigma_m, b.sigma_m)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
@given(anchors=columns())
def test_anchors_csv_and_npz_round_trip_is_exact(tmp_path_factory, suffix, anchors):
    path = tmp_path_factory.mktemp("round") / f"a{suffix}"
    anchors.write(path)
    assert_same(Anchors.read(path), anchors)


@given(
    pixels=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 4)), unique=True, min_size=1, max_size=12
    ),
    data=st.data(),
)
def test_anchors_png_round_trip_keeps_whole_units(tmp_path_factory, pixels, data):
    units = data.draw(st.sampled_from([1000.0, 256.0, 5000.0, 123456.789]))
    values = data.draw(st.lists(st.integers(1, 65535), min_size=len(pixels), max_size=len(pixels)))
    path = tmp_path_factory.mktemp("round") / "a.png"
    pixels.sort(key=lambda p: (p[1], p[0]))  # a map is read in row order
    u, v = zip(*pixels, strict=True)
    anchors = Anchors(u, v, np.array(values) / units)
    anchors.write(path, shape=(5, 8), png_units_per_metre=units)
    back = Anchors.read(path)  # the file says its own units
    assert_same(back[np.lexsort((back.u, back.v))], anchors)


def test_anchors_read_needs_the_units_of_a_foreign_png(tmp_path):
    from PIL import Image

    values = np.zeros((3, 4), np.uint16)
    values[1, 2] = 512
    Image.fromarray(values).save(tmp_path / "kitti.png")
    with pytest.raises(InputError, match=r"does not record its units.*256 for KITTI"):
        Anchors.read(tmp_path / "kitti.png")
    anchors = Anchors.read(tmp_path / "kitti.png", png_units_per_metre=256.0)
    assert (anchors.u[0], anchors.v[0], anchors.depth_m[0], len(anchors)) == (2, 1, 2.0, 1)


def test_anchors_read_refuses_an_eight_bit_png(tmp_path):
    from PIL import Image

    Image.fromarray(np.full((3, 4), 9, np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="one-channel 16-bit PNG, found mode L with 8 bits"):
        Anchors.read(tmp_path / "a.png", png_units_per_metre=1000.0)


@pytest.mark.parametrize(
    ("anchors", "shape", "sentence"),
    [
        (
            Anchors([0], [0], [70.0]),
            (2, 2),
            r"1 to 65535 units of 1/1000 m; not so: anchors\[0\] \(70\)",
        ),
        (Anchors([0], [0], [1e-4]), (2, 2), r"not so: anchors\[0\] \(0.0001\)"),
        (Anchors([0, 0.2], [0, 0], [1.0, 2.0]), (2, 2), "one anchor a pixel"),
        (Anchors([0], [0], [1.0], [0.1]), (2, 2), "cannot hold sigma_m"),
        (Anchors([0], [0], [1.0]), None, "needs shape="),
        (Anchors([5], [0], [1.0]), (2, 2), "outside the image"),
    ],
)
def test_anchors_write_png_refuses_anchors_that_it_cannot_hold(tmp_path, anchors, shape, sentence):
    with pytest.raises(InputError, match=sentence):
        anchors.write(tmp_path / "a.png", shape=shape)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "wanted lines of u,v,depth_m, found an empty file"),
        ("a,b,c\n1,2,3\n", "wanted the header u,v,depth_m.*found a, b, c"),
        ("u,v,depth_m\n\n\n1,2,far\n", "line 4: depth_m is not a length: 'far'"),
        ("u,v,depth_m\n1,2,\n", "line 2: depth_m is not a length: ''"),
        ("u,v,depth_m\n1,2,3\n4,5,0\n", "line 3: depth_m: a length above zero is wanted"),
        ("u,v,depth\n10;20;1,5\n", "line 1 has commas between its cells and line 2 has semicolons"),
    ],
)
def test_anchors_read_csv_names_the_problem(tmp_path, text, sentence):
    path = tmp_path / "anchors.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"anchors.csv.*{sentence}"):
        Anchors.read(path)


def test_anchors_read_csv_with_an_empty_sigma_m(tmp_path):
    path = tmp_path / "anchors.csv"
    path.write_text("u,v,depth_m,sigma_m\n1,2,3,0.1\n4,5,6,\n")
    anchors = Anchors.read(path)
    np.testing.assert_array_equal(anchors.sigma_m, [0.1, np.nan])
    assert anchors[[1]].sigma_m is None
    anchors.write(path)
    assert path.read_text().endswith("4.0,5.0,6.0,\n")


def test_anchors_read_csv_with_other_columns_spaces_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "anchors.csv"
    for end in ("\n", "\r\n", "\r"):
        lines = ("\ufeffname, u, v, depth_m", 'table, 3, 4.5,"1.25"', "")
        path.write_bytes(end.join(lines).encode())
        assert_same(Anchors.read(path), Anchors([3], [4.5], [1.25]))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", None, "no such file"),
        ("a.txt", b"u,v,depth_m\n", "read from .csv, .npz or 16-bit .png, not '.txt'"),
        ("a.csv", b"\xffu,v", "not a text file in UTF-8 or UTF-16"),
        ("a.csv", b"ag\x00br\x01\x02xx", "not a text file in UTF-8 or UTF-16"),
        ("a.npz", b"PK nonsense", "not a readable NPZ file"),
        ("a.png", b"nonsense", "not a readable PNG"),
    ],
)
def test_anchors_read_names_the_problem_of_an_unreadable_file(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        Anchors.read(tmp_path / name)


def test_anchors_read_npz_names_the_missing_array_and_refuses_pickles(tmp_path):
    np.savez(tmp_path / "a.npz", u=[1.0], v=[2.0])
    with pytest.raises(InputError, match=r"lacks the array 'depth_m', has \['u', 'v'\]"):
        Anchors.read(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", u=np.array([{}]), v=[2.0], depth_m=[1.0])
    with pytest.raises(InputError, match="not a readable NPZ file"):
        Anchors.read(tmp_path / "b.npz")


@given(anchors=columns(), height=st.integers(1, 40), width=st.integers(1, 40))
def test_anchors_pixels_are_inside_or_named(anchors, height, width):
    inside = (
        (anchors.u >= -0.5) & (anchors.u < width - 0.5)
        & (anchors.v >= -0.5) & (anchors.v < height - 0.5)
    )  # fmt: skip
    if inside.all():
        rows, cols = anchors.pixels((height, width))
        np.testing.assert_array_less(np.abs(rows - anchors.v), 0.5 + 1e-9)
        np.testing.assert_array_less(np.abs(cols - anchors.u), 0.5 + 1e-9)
    else:
        first = np.flatnonzero(~inside)[0]
        wanted = f"{np.count_nonzero(~inside)} of {len(anchors)} anchors lie outside"
        with pytest.raises(InputError, match=wanted) as caught:
            anchors.pixels((height, width))
        assert f"anchors[{first}] at u={anchors.u[first]:g}" in str(caught.value)


def test_anchors_pixels_include_their_lower_border():
    rows, cols = Anchors([-0.5, 0.49, 0.5], [2.5, 1.0, 0.0], [1.0, 1.0, 1.0]).pixels((4, 2))
    assert rows.tolist() == [3, 1, 0]
    assert cols.tolist() == [0, 0, 1]


def test_anchors_columns_are_copied_and_read_only():
    u = np.array([1.0, 2.0])
    anchors = Anchors(u, [3, 4], torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    u[0] = 99
    assert anchors.u.tolist() == [1.0, 2.0]
    assert anchors.depth_m.tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="read-only"):
        anchors.u[0] = 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([1, 2], [1], [1]), "equal lengths, but u has 2, v has 1, depth_m has 1"),
        (([[1]], [1], [1]), r"u must be one-dimensional, found \(1, 1\)"),
        ((["far"], [1], [1]), "u must be numbers"),
        ((None, [1], [1]), r"u must be one-dimensional, found \(\)"),
        (([None], [1], [1]), r"finite pixel position; not so: anchors\[0\]"),
        (([10**400], [1], [1]), "u must be numbers: int too large"),
        ((np.array(["2020"], "M8[Y]"), [1], [1]), "u must be numbers: found datetime64"),
        ((torch.ones(1) * 1j, [1], [1]), "u must be numbers: found complex64"),
        ((torch.ones(1, device="meta"), [1], [1]), "u must be numbers: "),
        (([1, 2], [1, 2], np.ma.masked_array([3, 4], [0, 1])), r"not so: anchors\[1\] \(nan\)"),
        (([1] * 7, [1] * 7, [0] * 7), r"anchors\[4\].* and 2 more"),
    ],
)
def test_anchors_name_the_problem_of_a_bad_column(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        Anchors(*arguments)


@given(anchors=columns(), data=st.data())
def test_anchors_getitem_selects_all_columns(anchors, data):
    mask = data.draw(hnp.arrays(bool, len(anchors)))
    kept = anchors[mask]
    assert len(kept) == np.count_nonzero(mask)
    np.testing.assert_array_equal(kept.depth_m, anchors.depth_m[mask])
    if anchors.sigma_m is not None:
        sigma_m = np.full(len(kept), np.nan) if kept.sigma_m is None else kept.sigma_m
        np.testing.assert_array_equal(sigma_m, anchors.sigma_m[mask])
    if len(anchors):
        assert_same(anchors[0], anchors[:1])


def test_anchors_from_map_takes_known_pixels_inside_the_mask(tmp_path):
    depth_m = np.array([[1.0, np.nan, 3.0], [0.0, -1.0, np.inf], [7.0, 8.0, 9.0]])
    anchors = Anchors.from_map(depth_m, mask=np.arange(9).reshape(3, 3) != 7)
    assert list(zip(anchors.u, anchors.v, anchors.depth_m, strict=True)) == [
        (0, 0, 1), (2, 0, 3), (0, 2, 7), (2, 2, 9),
    ]  # fmt: skip
    hidden = np.ma.masked_array(depth_m, np.arange(9).reshape(3, 3) == 7)
    assert_same(Anchors.from_map(hidden), anchors)
    with pytest.raises(InputError, match=r"\(height, width\) and a mask of booleans, found \(9,\)"):
        Anchors.from_map(depth_m.ravel())
    with pytest.raises(InputError, match=r"found \(3, 3\) and bool of \(2, 3\)"):
        Anchors.from_map(depth_m, np.ones((2, 3), bool))
    write_depth_png(tmp_path / "m.png", depth_m, units_per_metre=1000.0)
    assert Anchors.read(tmp_path / "m.png").depth_m.tolist() == [1, 3, 7, 8, 9]


def test_sigma_log_is_the_relative_deviation_or_the_default() -> None:
    anchors = Anchors([0, 1], [0, 0], [2.0, 4.0], [0.1, 0.1])
    np.testing.assert_allclose(anchors.sigma_log(0.3), [0.05, 0.025])
    np.testing.assert_allclose(anchors.sigma_log(0.3, floor=0.12), [0.13, np.hypot(0.025, 0.12)])
    assert Anchors([0], [0], [2.0]).sigma_log(0.3).tolist() == [0.3]
    mixed = Anchors([0, 1], [0, 0], [2.0, 4.0], [0.1, np.nan])
    np.testing.assert_allclose(mixed.sigma_log(0.3, floor=0.12), [0.13, 0.3])


def test_complete_sigma_m_is_the_median_relative_deviation_where_it_is_unknown() -> None:
    anchors = Anchors(range(4), [0] * 4, [2.0, 4.0, 10.0, 5.0], [0.1, 0.4, 0.7, np.nan])
    np.testing.assert_allclose(anchors.complete_sigma_m(), [0.1, 0.4, 0.7, 0.35])
    assert Anchors([0], [0], [2.0], [np.nan]).complete_sigma_m() is None


ROWS = [(1, 2, 3.0), (4, 5, 6.5)]


def test_describe_names_line_position_and_value(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("# by tape\nu,v,depth_m\n\n10,20,1.52\n30,40,2.5\n")
    anchors = Anchors.read(path)
    assert anchors.describe([0]) == "line 4, u=10 v=20 (1.52 m)"
    assert anchors[[1]].describe(0) == "line 5, u=30 v=40 (2.5 m)"
    assert anchors.moved([1, 2], [3, 4]).describe(1) == "line 5, u=2 v=4 (2.5 m)"
    many = Anchors(range(9), range(9), [1.0] * 9, unit="model units")
    assert many.describe([8]) == "u=8 v=8 (1 model units)"
    assert many.describe(range(8)).endswith("u=4 v=4 (1 model units) and 3 more")


@pytest.mark.parametrize(
    "values",
    [
        ROWS,
        np.array(ROWS),
        np.asfortranarray(np.array(ROWS, np.float32)),
        torch.tensor(ROWS),
        {"u": [1, 4], "v": [2, 5], "depth_m": [3.0, 6.5]},
        {"x": [1, 4], "y": [2, 5], "Depth (cm)": [300, 650], "note": ["a", "b"]},
        Anchors([1, 4], [2, 5], [3, 6.5]),
    ],
)
def test_anchors_of_rows_and_columns(values) -> None:
    assert_same(Anchors.of(values), Anchors([1, 4], [2, 5], [3, 6.5]))


def test_anchors_of_a_pandas_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"label": ["a", "b"], "v": [2, 5], "u": [1, 4], "depth_mm": [3000, 6500]}
    )
    assert_same(Anchors.of(frame[frame.u > 0]), Anchors([1, 4], [2, 5], [3, 6.5]))
    assert_same(Anchors.of(frame[frame.u > 1]), Anchors([4], [5], [6.5]))


def test_anchors_of_nothing_and_of_a_file(tmp_path) -> None:
    assert len(Anchors.of(None)) == len(Anchors.of([])) == 0
    Anchors.of([(1, 2, 3.0, 0.1)]).write(tmp_path / "a.csv")
    assert Anchors.of(str(tmp_path / "a.csv")).sigma_m.tolist() == [0.1]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (np.ones((3, 10)), r"\(n, 3\), rows of u, v, depth_m.* found \(3, 10\); is it transposed"),
        (np.ones((60, 80)), r"found \(60, 80\); Anchors.from_map reads a map"),
        (np.ones((2, 3, 3)), r"found \(2, 3, 3\)$"),
        ((1, 2, 3.0), r"found \(3,\)"),
        ([(1, 2, "near")], "anchors must be numbers"),
        (7, "wanted Anchors, rows of u, v, depth_m, .* found int"),
        ({"u": [1], "v": [2]}, "which lacks depth_m; found u, v"),
        ({"u": [1], "v": [2], "depth_furlongs": [1]}, "unit that is not known"),
        ({"u": [1], "v": [2], "depth_m": [-1.0]}, r"not so: anchors\[0\] \(-1\)"),
        ("missing.csv", "missing.csv: no such file"),
    ],
)
def test_anchors_of_refuses_with_a_sentence(values, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        Anchors.of(values)


def test_anchors_repr_is_short() -> None:
    assert repr(Anchors(range(1000), range(1000), np.linspace(1, 5, 1000))) == (
        "Anchors(1000: 1 … 5 m)"
    )
    assert repr(Anchors([], [], [])) == "Anchors(0)"
