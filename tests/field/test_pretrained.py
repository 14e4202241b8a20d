"""Field models on the hub: what is uploaded is what comes back, and the card says how to use it."""

import dataclasses

import pytest
import torch

import scalefield as sf
from scalefield.basis.pretrained import Card
from scalefield.field.model import load_field
from scalefield.field.pretrained import from_pretrained, push_to_hub
from scalefield.methods.field import Field

CARD = Card("For tests.", "None.", "apache-2.0", {"low": {"AbsRel": 0.1}})


def test_push_to_hub_what_is_pushed_recovers_the_same_depth(hub, tmp_path, relative, measure):
    model = load_field("field")
    assert push_to_hub(model, "me/kernel", CARD).endswith("me/kernel/commit/1")
    assert hub.commits == ["Upload a field model"]
    text = (tmp_path / "me" / "kernel" / "README.md").read_text()
    assert 'method="field", model="me/kernel"' in text
    assert "license: apache-2.0" in text
    mde_output = relative()
    anchors = measure(mde_output.mde_depth.numpy() * 3, 6)
    expected = Field()(mde_output, anchors).depth_m
    for source in ("me/kernel", str(tmp_path / "me" / "kernel")):
        again = from_pretrained(source)
        assert dataclasses.asdict(again.kernel) == dataclasses.asdict(model.kernel)
        found = Field(model=source)(mde_output, anchors).depth_m
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_push_to_hub_refuses_a_model_without_its_network(hub):
    model = dataclasses.replace(load_field("field"), net=lambda *maps: None)
    with pytest.raises(sf.InputError, match="only a model with a FieldNet"):
        push_to_hub(model, "me/kernel", CARD)
    assert hub.commits == []


def test_from_pretrained_unknown_name_says_what_is_wanted():
    with pytest.raises(sf.InputError, match="nor a hub id owner/name"):
        from_pretrained("nosuch")
