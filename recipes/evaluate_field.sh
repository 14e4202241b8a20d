#!/bin/bash
# The rows of `field` alone, on the frames and anchors of evaluate_places.sh:
# recipes/evaluate_field.sh DATA FASTDEPTH.onnx
set -euf
DATA=$1 FASTDEPTH=$2

evaluate() {
  scalefield evaluate --root "$DATA" --split test --range kitti=0.1,80 '*=0.1,10' --name places \
    --no-gallery --workers "${WORKERS:-2}" --mde "$1" --out "$2" \
    --methods 'Field: field' 'Field, learned level @drop: field(scale_prior=learned)'
}

evaluate lite results/places-lite-field
evaluate "$FASTDEPTH" results/places-fastdepth-field
