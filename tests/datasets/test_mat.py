"""MATLAB files: the same numbers as scipy reads, and a sentence for everything else."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.io import savemat

from scalefield.datasets.mat import read_matrix

DTYPES = (np.uint8, np.int8, np.uint16, np.int32, np.int64, np.float32, np.float64)


def saved(compressed: bool = False, **arrays) -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, arrays, do_compression=compressed)
    return buffer.getvalue()


@given(
    hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=2, max_dims=3, max_side=9)),
    st.booleans(),
)
def test_read_matrix_what_scipy_wrote_is_read(array, compressed):
    names = np.array(["wall", "floor"], dtype=object)  # a cell array before it, as in SUN RGB-D
    data = saved(compressed, names=names, seglabel=array, other=np.eye(2))
    found = read_matrix(data, "seglabel")
    np.testing.assert_array_equal(found, array)


def test_read_matrix_short_elements():
    data = saved(a=np.array([[1, 2]], np.uint8))
    assert read_matrix(data, "a").tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no MATLAB file"),
        (b"MATLAB 7.3 MAT-file" + bytes(200), "no MATLAB file"),
        (saved(other=np.eye(2)), "no matrix 'seglabel'"),
        (saved(seglabel=np.eye(4))[:-40], "ends too early"),
        (saved(seglabel="text"), "no matrix of numbers"),
    ],
)
def test_read_matrix_everything_else_is_a_sentence(data, message):
    with pytest.raises(ValueError, match=message):
        read_matrix(data, "seglabel")
