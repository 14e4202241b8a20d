#!/bin/bash
# The benchmark behind the README: recipes/evaluate_places.sh DATA FASTDEPTH.onnx
# RUNS (default runs) is the folder of recipes/train_shipped.py, for the seeds that do not ship.
set -euf
DATA=$1 FASTDEPTH=$2
RUNS=${RUNS:-runs}
REGIMES="@low,medium,high"

evaluate() {
  scalefield evaluate --root "$DATA" --split test --range kitti=0.1,80 '*=0.1,10' --name places \
    --no-gallery --workers "${WORKERS:-2}" "$@"
}

field=(
  'Field: field'
  'Field, learned level @drop: field(scale_prior=learned)'
  "Field, seed 0 $REGIMES: field(model=$RUNS/field-s0/model)"
  "Field, seed 1 $REGIMES: field(model=$RUNS/field-s1/model)"
)

aligners=(
  global piecewise lwlr grid region knn median interpolate log_kernel
  "Global, disparity $REGIMES: global(space=disparity)"
)

lite=(
  "${field[@]}"
  'Field, with F: field(model=field-research-lite)'
  'Basis K=50: basis'
  'Basis K=50, with F: basis(generator=basis-research-lite-k50)'
  "${aligners[@]}"
  'Basis K=8: basis(k=8)'
  'Basis K=30: basis(k=30)'
  "Basis K=8, with F $REGIMES: basis(generator=basis-research-lite-k8)"
  "Basis K=30, with F $REGIMES: basis(generator=basis-research-lite-k30)"
)
for seed in 1 2; do
  for k in 8 30 50; do
    lite+=(
      "Basis K=$k, seed $seed $REGIMES: basis(generator=$RUNS/basis-lite-depth-k$k-s$seed/model)"
      "Basis K=$k, with F, seed $seed $REGIMES: basis(generator=$RUNS/basis-lite-full-k$k-s$seed/model)"
    )
  done
done
evaluate --mde lite --out results/places-lite --methods "${lite[@]}"

# The paper's own recipe has a script of its own: recipes/paper_rehearsal.sh.

fastdepth=("${field[@]}" 'Universal basis K=50: basis' "${aligners[@]}")
G=$RUNS/basis-fastdepth
for k in 50 30 8; do
  fastdepth+=("Basis K=$k: basis(generator=$G-full-k$k-s0/model)")
  fastdepth+=("Basis K=$k, F=0 $REGIMES: basis(generator=$G-depth-k$k-s0/model)")
  for seed in 1 2; do
    fastdepth+=(
      "Basis K=$k, seed $seed $REGIMES: basis(generator=$G-full-k$k-s$seed/model)"
      "Basis K=$k, F=0, seed $seed $REGIMES: basis(generator=$G-depth-k$k-s$seed/model)"
    )
  done
done
evaluate --mde "$FASTDEPTH" --out results/places-fastdepth --methods "${fastdepth[@]}"
