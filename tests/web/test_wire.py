import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scalefield.web.wire import pack, unpack

shapes = hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6)
numbers = st.floats(-50, 50, width=32) | st.just(float("nan"))


@given(st.data())
def test_pack_and_unpack_are_exact_to_half_a_step(data: st.DataObject) -> None:
    maps = {
        name: data.draw(hnp.arrays(np.float32, shapes, elements=numbers)) for name in ("a", "b")
    }
    header, back = unpack(pack({"answer": [1, None, "ü"]}, maps))
    assert header["answer"] == [1, None, "ü"]
    for name, values in maps.items():
        known = np.isfinite(values)
        assert (np.isfinite(back[name]) == known).all()
        span = np.ptp(values[known]) if known.any() else 0
        np.testing.assert_allclose(
            back[name][known], values[known], atol=span / 65534 / 1.99 + 1e-9
        )


def test_pack_aligns_maps_to_words() -> None:
    for text in ("", "a", "ab", "abc", "abcd"):
        body = pack({"text": text}, {"m": np.zeros((1, 3), np.float32)})
        length = int.from_bytes(body[:4], "little")
        assert length % 4 == 0
        assert json.loads(body[4 : 4 + length])["text"] == text
        assert len(body) == 4 + length + 6
