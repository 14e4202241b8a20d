"""Shapes and types stated in annotations are checked in tests, and only there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import hypothesis
import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("scalefield", "beartype.beartype")

if TYPE_CHECKING:
    from scalefield import Anchors, MDEOutput

torch.set_num_threads(1)  # the suite runs on several workers

# A busy machine is no failure: examples have no time limit.
hypothesis.settings.register_profile("suite", deadline=None, print_blob=True)
hypothesis.settings.load_profile("suite")


@pytest.fixture(scope="session")
def relative() -> "Callable[..., MDEOutput]":
    """Makes a smooth relative map; see `worlds.relative_map`."""
    from worlds import relative_map

    return relative_map


@pytest.fixture(scope="session")
def measure() -> "Callable[..., Anchors]":
    """Makes anchors on a metric map; see `worlds.anchors_on`."""
    from worlds import anchors_on

    return anchors_on


@pytest.fixture
def as_users_run_it() -> Iterator[None]:
    """Disables the run-time checks of annotations, so that the package's own errors appear."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def said_of():
    """Returns the messages of the `InputError`s that calls raise, in a process in which annotations
    are not checked, as for users."""

    def sentences(prepare: list[str], calls: list[str]) -> list[str]:
        tried = [f"try: {call}\nexcept scalefield.InputError as e: print(e)" for call in calls]
        code = "\n".join(["import numpy, scalefield", *prepare, *tried])
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    return sentences


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real frames and published weights, where the machine has them."""
    folder = os.environ.get("SCALEFIELD_SHARED")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SCALEFIELD_SHARED does not name a folder with the real test data")
    return Path(folder)


class Hub:
    """A hub of weights that keeps them in folders."""

    def __init__(self, root):
        self.root = root
        self.commits = []

    def create_repo(self, repository, *, private, exist_ok):
        assert exist_ok
        (self.root / repository).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        self.commits.append(commit_message)
        return SimpleNamespace(commit_url=f"https://huggingface.co/{repo_id}/commit/1")


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    """Uploads land where weights brought by hand are looked for."""
    hub = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    monkeypatch.setenv("SCALEFIELD_WEIGHTS", str(tmp_path))
    return hub
