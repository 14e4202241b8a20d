#!/bin/bash
# Where do the features F help? The paper's preset on two splits of the same frames, one by blocks
# of frames within every source and one by place; D divided by its median over the image, so that
# the scale is unknown; F and F = 0; three seeds. Then the learning curve over the number of
# training frames, and the readings of the gate loss, which the paper's G₀ ≈ .21 tells apart.
#
#   recipes/paper_experiment.sh DATA OUT --train-only taskonomy/sample_model_1 -- --k 8 --seeds 0
#
# Flags before -- are those of paper_splits.py, flags after it those of `scalefield reproduce`; they
# replace the ones below. After an interruption the same command continues. Each part is a folder
# OUT/PART with results, training.json and a report.
set -euo pipefail
DATA=$1 OUT=$2
shift 2
SPLIT_FLAGS=()
while (($#)) && [[ $1 != -- ]]; do SPLIT_FLAGS+=("$1"); shift; done
shift || true
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python "$(dirname "$0")/paper_splits.py" "$DATA" "$OUT/splits" "${SPLIT_FLAGS[@]}"

part() { # NAME SPLIT FLAGS…
  local name=$1 split=$2
  shift 2
  scalefield reproduce --data "$split=$OUT/splits/$split" --range kitti=0.1,80 '*=0.1,10' \
    --mde lite --depth-unit median --k 8 30 --seeds 0 1 2 --no-disparity --no-gallery \
    --mde-batch 16 --title "F and F = 0: $name" --out "$OUT/$name" "$@"
}

for split in ${SPLITS:-blocks places}; do
  part "$split" "$split" --mde lite affine:lite "$@"
  for frames in ${CURVE:-100 200 400}; do
    part "$split-$frames" "$split" --k 8 --no-aligners --limit "$frames" "$@"
  done
done
for gate in ${GATES-patches mean}; do
  part "gate-$gate" blocks --k 8 --no-ablation --no-aligners --gate-reduction "$gate" "$@"
done
