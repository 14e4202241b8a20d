"""Field models on the Hugging Face hub: loading, and uploading with a model card."""

from __future__ import annotations

from scalefield.basis.pretrained import Card, upload
from scalefield.errors import InputError
from scalefield.field.model import FieldModel, load_field
from scalefield.field.network import FieldNet


def from_pretrained(source: str) -> FieldModel:
    """The field model of a hub id `owner/name[@revision]`, of a folder, or of a shipped name.

    Only safetensors and JSON are read. Weights in the hub's cache need no network.
    """
    return load_field(source)


def push_to_hub(
    model: FieldModel,
    repository: str,
    card: Card,
    *,
    private: bool | None = None,
    message: str = "Upload a field model",
) -> str:
    """Upload weights, configuration and card in one commit; returns its address.

    huggingface_hub provides the login (`hf auth login`).
    """
    if not isinstance(model.net, FieldNet):
        raise InputError("only a model with a FieldNet can be uploaded")
    count = sum(parameter.numel() for parameter in model.net.parameters())
    about = f"Kernel of a Gaussian process over log-scale; a network of {count:,} parameters."
    text = card.markdown(repository, method="field", option="model", about=about)
    return upload(model, repository, text, private=private, message=message)
