#!/bin/bash
# A record of the benchmark, started by `make results-NAME`:
#
#   recipes/evaluate.sh places|places-fastdepth                           # FRAMES, FASTDEPTH
#   recipes/evaluate.sh strong|strong-affine                              # STRONG
#   recipes/evaluate.sh places-affine-lite|places-affine-fastdepth        # FRAMES, FASTDEPTH
#   recipes/evaluate.sh comparison                                        # FRAMES, STRONG, FASTDEPTH
#
# FRAMES is a folder in the layout `folder`, STRONG one in the layout `predictions`, FASTDEPTH an
# ONNX file with its description. Others: RECORDS (results), RUNS (out/results), a folder in which a
# run that was interrupted goes on, WORKERS (2), and LIMIT, a number of evenly spaced frames.
set -euf
name=$1
RECORDS=${RECORDS:-results} RUNS=${RUNS:-out/results}

default=(
  'Field: field' 'Field, learned level @drop: field(scale_prior=learned)'
  'Basis K=50: basis' 'Basis K=8: basis(k=8)'
  global piecewise lwlr grid knn median interpolate log_kernel
)
affine=('Field: field' 'Basis: basis')
for space in depth disparity; do
  for aligner in global piecewise lwlr grid; do
    affine+=("$aligner, $space: $aligner(space=$space)")
  done
  affine+=("region, $space: region(space=$space, superpixels=100)")
done

# The first argument is the folder below RUNS and RECORDS.
run() {
  scalefield evaluate --out "$RUNS/$1" --no-gallery --workers "${WORKERS:-2}" "${@:2}"
}

evaluate() {
  run "$@"
  python -m benchmarks.record "$RUNS/$1" "$RECORDS/$1" --command "make results-$name"
}

report() {
  scalefield report "$RUNS/$name" --out "$RUNS/$name/report"
  cp "$RUNS/$name/report/report.md" "$RECORDS/$name/report.md"
}

places() {
  evaluate "$name" --root "$FRAMES" --split test --range kitti=0.1,80 '*=0.1,10' --name places \
    "$@"
}

places_default() {
  places --mde "$1" ${LIMIT:+--limit "$LIMIT"} --methods "${default[@]}"
}

places_affine() {
  places --mde "affine:$1" --limit "${LIMIT:-60}" --regimes low medium --methods "${affine[@]}"
}

strong() {
  for seed in 0 1 2 3 4; do
    evaluate "$name/seed-$seed" --root "$STRONG" --dataset predictions --name strong \
      --seed "$seed" --mde "$1" ${LIMIT:+--limit "$LIMIT"} --regimes low medium \
      --methods "${affine[@]}"
  done
}

# Every aligner by name, with its defaults, at five draws of the anchors.
comparison() {
  aligners=(
    field global piecewise lwlr grid 'region: region(superpixels=100)' knn median log_kernel
    interpolate poisson bilateral_grid superpixel_graph
  )
  frames=(--root "$FRAMES" --split "${SPLIT:-test}" --range kitti=0.1,80 '*=0.1,10')
  frames+=(--limit "${LIMIT:-50}")
  for seed in 0 1 2 3 4; do
    with=(--seed "$seed" --methods "${aligners[@]}")
    run "$name/lite/seed-$seed" "${frames[@]}" --mde lite --name lite "${with[@]}"
    run "$name/FastDepth/seed-$seed" "${frames[@]}" --mde "$FASTDEPTH" --name FastDepth "${with[@]}"
    run "$name/strong/seed-$seed" --root "$STRONG" --dataset predictions --mde stored \
      --name strong ${LIMIT:+--limit "$LIMIT"} "${with[@]}"
  done
  python -m benchmarks.comparison "$RUNS/$name" --out "$RECORDS/$name" --command "make results-$name"
}

case $name in
  places) places_default lite; report ;;
  places-fastdepth) places_default "$FASTDEPTH"; report ;;
  strong) strong stored ;;
  strong-affine) strong affine:stored ;;
  places-affine-lite) places_affine lite ;;
  places-affine-fastdepth) places_affine "$FASTDEPTH" ;;
  comparison) comparison ;;
  *) echo "no record $name" >&2; exit 2 ;;
esac
