"""Generators on the hub: what is uploaded is what comes back, and the card says what it must."""

import pytest
import torch

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.pretrained import Card, from_pretrained, load_generator, push_to_hub
from scalefield.errors import InputError
from scalefield.mde.hub import Weights

CARD = Card(
    summary="Basis maps for tests.",
    data="Nothing at all.",
    licence="cc-by-nc-4.0",
    figures={"low": {"AbsRel": 0.1234, "δ1": 0.9}, "high": {"AbsRel": 0.05}},
)


def test_push_to_hub_what_is_pushed_comes_back_with_one_commit(hub, tmp_path):
    torch.manual_seed(0)
    generator = Generator(GeneratorConfig(k=3, width=16, dilations=(1, 2), feature_channels=4))
    generator.eval()
    assert push_to_hub(generator, "me/mine", CARD).endswith("me/mine/commit/1")
    assert len(hub.commits) == 1
    files = sorted(p.name for p in (tmp_path / "me" / "mine").iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    for load, source in (
        (from_pretrained, "me/mine"),
        (from_pretrained, str(tmp_path / "me" / "mine")),
        (load_generator, "me/mine"),
    ):
        again = load(source)
        assert again.config == generator.config
        features, log_depth = torch.randn(1, 4, 5, 6), torch.randn(1, 1, 12, 16)
        torch.testing.assert_close(again(features, log_depth), generator(features, log_depth))


def test_the_card_states_data_licence_and_figures(hub, tmp_path):
    generator = Generator(GeneratorConfig(k=3, width=16, dilations=(1,)))
    push_to_hub(generator, "me/mine", CARD)
    text = (tmp_path / "me" / "mine" / "README.md").read_text()
    assert text.startswith("---\nlicense: cc-by-nc-4.0\nlibrary_name: scalefield\n")
    assert "## Data\n\nNothing at all." in text
    assert "| | AbsRel | δ1 |\n|---|---|---|\n| low | 0.1234 | 0.9 |\n| high | 0.05 | – |" in text
    assert f"{generator.parameter_count:,} parameters, without features" in text
    # The estimators' reader of licences understands it.
    assert Weights(tmp_path / "me" / "mine", "").licence == "cc-by-nc-4.0"


@pytest.mark.parametrize("missing", ["summary", "data", "licence", "figures"])
def test_a_card_that_is_silent_is_refused(missing):
    printed = {name: getattr(CARD, name) for name in ("summary", "data", "licence", "figures")}
    printed[missing] = type(printed[missing])()
    with pytest.raises(InputError, match=f"a model card must state its {missing}"):
        Card(**printed)
