#!/bin/bash
# The default weights beside the aligners, and the table of the README:
# recipes/evaluate_default.sh DATA
# LIMIT is the number of frames, evenly spaced (default all).
set -euf
scalefield evaluate --root "$1" --split test --range kitti=0.1,80 '*=0.1,10' --name places \
  --no-gallery --workers "${WORKERS:-2}" --mde lite --out results/places ${LIMIT:+--limit "$LIMIT"} \
  --methods 'Field: field' 'Field, learned level @drop: field(scale_prior=learned)' \
  'Basis K=50: basis' 'Basis K=8: basis(k=8)' \
  global piecewise lwlr grid knn median interpolate log_kernel
