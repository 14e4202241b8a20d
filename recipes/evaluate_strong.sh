#!/bin/bash
# Outputs of strong estimators, and affine-invariant disparity:
# recipes/evaluate_strong.sh STRONG DATA FASTDEPTH.onnx
# STRONG is a folder in the layout `predictions`, DATA one in the layout `folder`.
# PARTS (default all four) and SPLITS (default test) select runs. LIMIT (default 60) is the number of
# frames of a split, evenly spaced. SEEDS (default 0) are the seeds of the anchors on STRONG.
set -euf
STRONG=$1 DATA=$2 FASTDEPTH=$3
SEEDS=${SEEDS:-0}
SPLITS=${SPLITS:-test}
PARTS=${PARTS:-strong strong-affine places-affine-lite places-affine-fastdepth}

methods=('Field: field' 'Basis: basis')
for space in depth disparity; do
  for aligner in global piecewise lwlr grid; do
    methods+=("$aligner, $space: $aligner(space=$space)")
  done
  methods+=("region, $space: region(space=$space, superpixels=100)")
done

evaluate() {
  local out=$1
  shift
  scalefield evaluate --out "results/$out" --regimes low medium --drop --no-gallery \
    --workers "${WORKERS:-2}" --methods "${methods[@]}" "$@"
}

strong() {
  for seed in $SEEDS; do
    evaluate "$1/seed-$seed" --root "$STRONG" --dataset predictions --name strong --seed "$seed" \
      --mde "$2"
  done
}

places() {
  for split in $SPLITS; do
    evaluate "$1/$split" --root "$DATA" --range kitti=0.1,80 '*=0.1,10' --name places \
      --split "$split" --limit "${LIMIT:-60}" --mde "$2"
  done
}

for part in $PARTS; do
  case $part in
    strong) strong strong stored ;;
    strong-affine) strong strong-affine affine:stored ;;
    places-affine-lite) places places-affine-lite affine:lite ;;
    places-affine-fastdepth) places places-affine-fastdepth "affine:$FASTDEPTH" ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
done
