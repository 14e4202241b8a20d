import pytest

from scalefield.errors import InputError
from scalefield.field.config import InferenceConfig


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"neighbours": 0}, "neighbours must be 1 or more, found 0"),
        ({"max_cells": 0}, "max_cells must be 1 or more, found 0"),
        ({"block_size": 0}, "block_size must be 1 or more, found 0"),
        ({"max_cell_spacing": 0.5}, "max_cell_spacing must be 1 or more, found 0.5"),
        ({"cell_px": (16, 8)}, r"cell_px must be 1 or more, in order, found \(16, 8\)"),
        ({"cell_px": (0, 8)}, r"cell_px must be 1 or more, in order, found \(0, 8\)"),
    ],
)
def test_settings_of_inference_outside_their_range_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        InferenceConfig(**options)
