"""Weights from folders and from the hub's cache, with the network away."""

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file

from scalefield.errors import InputError
from scalefield.mde.hub import find_weights, split_revision, weights_here, weights_home

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No network, an empty hub cache, an empty folder for weights brought by hand."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SCALEFIELD_WEIGHTS", str(tmp_path / "by_hand"))
    monkeypatch.chdir(tmp_path)


def put_in_hub_cache(tmp_path, files=("model.safetensors", "config.json"), ref="main"):
    repository = tmp_path / "hub" / "models--owner--name"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True, exist_ok=True)
    for name in files:
        (snapshot / name).write_text("{}")
    return snapshot


def put_by_hand(tmp_path, content=b"weights"):
    folder = tmp_path / "by_hand" / "owner" / "name"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_the_commit_is_the_revision(tmp_path):
    snapshot = put_in_hub_cache(tmp_path)
    weights = find_weights("owner/name")
    assert weights.folder == snapshot
    assert weights.revision == COMMIT
    assert weights.file.name == "model.safetensors"
    assert find_weights(f"owner/name@{COMMIT}").revision == COMMIT


def test_another_revision_is_not_taken_for_the_pinned_one(tmp_path):
    put_in_hub_cache(tmp_path)
    with pytest.raises(InputError, match=r"resolve/v2/model.safetensors"):
        find_weights("owner/name@v2")
    assert not weights_here("owner/name@v2")


def test_find_weights_names_the_file_to_bring_without_a_network(tmp_path):
    with pytest.raises(InputError) as caught:
        find_weights("owner/name")
    sentence = str(caught.value)
    assert "owner/name is not on this machine and the hub cannot be reached" in sentence
    assert "https://huggingface.co/owner/name/resolve/main/model.safetensors" in sentence
    assert sentence.endswith(f"into {tmp_path / 'by_hand' / 'owner' / 'name'}")
    assert not weights_here("owner/name")
    put_by_hand(tmp_path)  # as the sentence says
    assert weights_here("owner/name")
    assert find_weights("owner/name").folder == tmp_path / "by_hand/owner/name"


def test_weights_by_hand_are_known_by_their_content(tmp_path):
    put_in_hub_cache(tmp_path)
    revisions = []
    for content in (b"one", b"two", b"one"):
        put_by_hand(tmp_path, content)
        revisions.append(find_weights("owner/name").revision)
    assert revisions[0] == revisions[2] != revisions[1]
    assert revisions[0].startswith("sha256:")


def test_folders_without_weights_are_refused(tmp_path):
    put_in_hub_cache(tmp_path, files=("README.md", "config.json"))
    with pytest.raises(InputError, match=r"neither model.safetensors nor pytorch_model.bin"):
        find_weights("owner/name")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"")  # without its config.json
    with pytest.raises(InputError, match=r"mine: has no model.safetensors, no pytorch_model.bin"):
        find_weights(str(folder))
    assert not weights_here(str(folder))


def test_pickled_weights_of_the_hub_are_converted_and_keep_their_commit(tmp_path):
    snapshot = put_in_hub_cache(tmp_path, files=("config.json",))
    torch.save({"a": torch.ones(2)}, snapshot / "pytorch_model.bin")
    weights = find_weights("owner/name")
    assert weights.revision == COMMIT
    assert weights.folder.parent == tmp_path / "by_hand" / "converted"
    assert load_file(weights.file)["a"].tolist() == [1, 1]
    assert weights_here("owner/name")


def test_names_that_can_be_neither(tmp_path):
    with pytest.raises(InputError, match="neither a folder nor a hub id"):
        find_weights("a/b/c/d")
    assert not weights_here("a/b/c/d")


def test_split_revision(tmp_path):
    assert split_revision("owner/name") == ("owner/name", None)
    assert split_revision("owner/name@abc") == ("owner/name", "abc")
    (tmp_path / "a@b").mkdir()
    assert split_revision(str(tmp_path / "a@b")) == (str(tmp_path / "a@b"), None)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\ntags:\n- depth\nlicense: cc-by-nc-4.0\n---\n# Model", "cc-by-nc-4.0"),
        ("# Model\nlicense: mine", ""),
        (None, ""),
    ],
)
def test_licence_of_the_model_card(tmp_path, card, licence):
    folder = put_by_hand(tmp_path)
    if card is not None:
        (folder / "README.md").write_text(card)
    assert find_weights("owner/name").licence == licence


def test_architecture(tmp_path):
    folder = put_by_hand(tmp_path)
    assert find_weights("owner/name").architecture is None
    (folder / "config.json").write_text('{"model_name": "da3-base"}')
    assert find_weights("owner/name").architecture is None
    (folder / "config.json").write_text('{"model_type": "dpt"}')
    assert find_weights("owner/name").architecture == "dpt"
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="not a JSON"):
        _ = find_weights("owner/name").architecture


def test_home(monkeypatch):
    monkeypatch.delenv("SCALEFIELD_WEIGHTS")
    assert weights_home().parts[-2:] == ("scalefield", "weights")
