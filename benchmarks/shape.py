"""Quality of the shapes of estimators without anchors.

    python benchmarks/shape.py --root DATA --mde lite model.onnx --out results/shape

DATA is a folder in the layout of `scalefield.datasets.Folder`. AbsRel over all known pixels of
its split "test" after the best affine fit in disparity, per place and in the mean of places.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scalefield.datasets import Folder
from scalefield.io import write_json
from scalefield.mde import load_mde
from scalefield.runtime.provenance import provenance
from scalefield.training.mde import aligned_by_group

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}


def main() -> None:
    """Measure, print and write results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--mde", nargs="+", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dataset = Folder(args.root, RANGES_M)
    found = {}
    for name in args.mde:
        by_place = aligned_by_group(load_mde(name), dataset, args.split)
        mean = sum(by_place.values()) / len(by_place)
        scores = {place: round(value, 5) for place, value in by_place.items()}
        found[Path(name).stem] = {"mean": round(mean, 5), "places": scores}
        print(Path(name).stem, found[Path(name).stem], flush=True)
    config = {"split": args.split, "fit": "affine in disparity, all known pixels, unweighted"}
    record = {"config": config, "provenance": provenance(), "absrel": found}
    write_json(args.out / "results.json", record)


if __name__ == "__main__":
    main()
