import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.io.anchor_tables import TableError, decode_text, parse_anchor_table
from scalefield.io.lengths import LengthError, parse_length

CASES = json.loads(Path(__file__).with_name("length_cases.json").read_text())


@pytest.mark.parametrize("case", CASES["lengths"], ids=lambda case: repr(case["text"]))
def test_parse_length_reads_or_refuses(case: dict) -> None:
    unit = case.get("unit", "m")
    if "metres" in case:
        assert parse_length(case["text"], unit) == case["metres"]
        return
    with pytest.raises(LengthError) as refusal:
        parse_length(case["text"], unit)
    assert refusal.value.code == case["error"]
    assert list(refusal.value.readings) == case.get("readings", [])


@pytest.mark.parametrize("case", CASES["tables"], ids=lambda case: repr(case["text"]))
def test_parse_anchor_table_reads_or_refuses(case: dict) -> None:
    if "error" not in case:
        table = parse_anchor_table(case["text"])
        assert (table.u, table.v, table.depth_m) == (case["u"], case["v"], case["depth_m"])
        assert table.sigma_m == case.get("sigma_m")
        return
    with pytest.raises(TableError) as refusal:
        parse_anchor_table(case["text"])
    assert refusal.value.code == case["error"]
    assert case.get("says", "") in str(refusal.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_anchor_tables_are_decoded_from_utf8_and_utf16(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("u;v;depth_m\n10;20;1,5\n".encode(encoding))
    assert Anchors.read(path).depth_m.tolist() == [1.5]


@given(st.text(alphabet="0123456789.,;\t\n \"'mcftinuvdepth_x#e-½", max_size=60))
def test_parse_anchor_table_raises_nothing_else(text: str) -> None:
    try:
        table = parse_anchor_table(text)
    except InputError:
        return
    assert len(table.u) == len(table.v) == len(table.depth_m) == len(table.lines)
    assert all(depth_m > 0 for depth_m in table.depth_m)


@given(st.binary(max_size=40))
def test_decode_text_raises_nothing_else(data: bytes) -> None:
    with contextlib.suppress(TableError):
        assert isinstance(decode_text(data), str)


@given(st.floats(1e-6, 1e6))
def test_parse_length_keeps_every_digit(depth_m: float) -> None:
    assert parse_anchor_table(f"u,v,depth_m\n1,2,{depth_m!r}\n").depth_m == [depth_m]
