"""Model cards: what a model is, what it was trained on, how it was made."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

CARD = """# {name}

A basis map generator with K = {k} for {source}, {features}.

{data}

{epochs} epochs with {least} to {most} anchors an image, seed {seed}. On the validation frames, with
the anchors of the regime {validate}: AbsRel {absrel:.3f}.

Every other choice:

```json
{config}
```
"""


def basis_card(name: str, source: str, data: str, config: Any, absrel: float) -> str:
    """The card of a basis map generator, made from its `BasisTraining` (or that of run.json)."""
    values = config if isinstance(config, dict) else dataclasses.asdict(config)
    least, most = values["anchors"]
    absent = "without features (F = 0), so that any relative depth map will do"
    return CARD.format(
        name=name,
        source=source,
        features=absent if values["zero_features"] else "with its features F",
        data=data,
        least=least,
        most=most,
        absrel=absrel,
        config=json.dumps(values, indent=1),
        **{key: values[key] for key in ("k", "epochs", "seed", "validate")},
    )
