#!/bin/bash
# Outputs of strong estimators, and affine-invariant disparity:
# recipes/evaluate_strong.sh STRONG DATA FASTDEPTH.onnx
# STRONG is a folder in the layout `predictions`, DATA one in the layout `folder`.
# PARTS (default all four) selects runs; LIMIT (default 60) is the number of frames of each split.
set -euf
STRONG=$1 DATA=$2 FASTDEPTH=$3
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
  case " $PARTS " in *" ${out%-val} "*) ;; *) return 0 ;; esac
  scalefield evaluate --out "results/$out" --regimes low medium --drop --no-gallery \
    --workers "${WORKERS:-2}" --methods "${methods[@]}" "$@"
}

places() {
  local out=$1 mde=$2
  for split in test val; do
    case $split in test) folder=$out ;; *) folder=$out-$split ;; esac
    evaluate "$folder" --root "$DATA" --range kitti=0.1,80 '*=0.1,10' --name places \
      --split "$split" --limit "${LIMIT:-60}" --mde "$mde"
  done
}

evaluate strong --root "$STRONG" --dataset predictions --name strong --mde stored
evaluate strong-affine --root "$STRONG" --dataset predictions --name strong --mde affine:stored
places places-affine-lite affine:lite
places places-affine-fastdepth "affine:$FASTDEPTH"
