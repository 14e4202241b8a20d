"""Shapes and types stated in annotations are checked in tests, and only there."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("scalefield", "beartype.beartype")

torch.set_num_threads(1)  # the suite runs on several workers

# A busy machine is no failure: examples have no time limit.
hypothesis.settings.register_profile("suite", deadline=None, print_blob=True)
hypothesis.settings.load_profile("suite")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real frames and published weights, where the machine has them."""
    folder = os.environ.get("SCALEFIELD_SHARED")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SCALEFIELD_SHARED does not name a folder with the real test data")
    return Path(folder)
