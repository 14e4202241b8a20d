#!/bin/bash
# Trained weights beside the shipped ones, in minutes on two cores:
# recipes/evaluate_permissive.sh OUT DATA STRONG FASTDEPTH.onnx SCENES …
# MDES (default lite) and MODELS (default "field field-permissive") are names or folders of models;
# ratios are to the first one. PARTS (default all) selects room, strong, strong-affine, field, shape.
# PER_GROUP (default 3) is the number of frames of each place.
set -euf
OUT=$1 DATA=$2 STRONG=$3 FASTDEPTH=$4
shift 4
MDES=${MDES:-lite} MODELS=${MODELS:-field field-permissive}
PYTHON=${PYTHON:-python} EACH=${PER_GROUP:-3}
mkdir -p "$OUT"

compare() { $PYTHON recipes/compare_weights.py "$1" --out "$OUT/$2.json" "${@:3}"; }

for part in ${PARTS:-room strong strong-affine field shape}; do
  case $part in
    room) compare room room --mde $MDES --model $MODELS ;;
    strong) compare strong strong --model $MODELS --strong "$STRONG" ;;
    strong-affine) compare strong strong-affine --affine --model $MODELS --strong "$STRONG" ;;
    field)
      compare field field-val --mde $MDES "$FASTDEPTH" --model $MODELS --places "$DATA" --split val \
        --per-group "$EACH" --anchors 3 5 12 104
      ;;
    shape)
      compare shape shape --mde $MDES --places "$DATA" --splits val --rendered "$@" \
        --per-group "$EACH" --per-rendered 8
      ;;
    *) echo "no part $part" >&2; exit 2 ;;
  esac
done
