#!/bin/bash
# The paper's experiment on a plain folder of frames (train.txt, val.txt, test.txt), with any
# estimator that gives F: all K and regimes, F and F = 0, three seeds, the aligners, `field`, the
# drop-anchor test, the ablation and the spectrum; with D in the estimator's unit, to which the
# paper's ridge is not invariant, and with D divided by its median over the image.
#
#   recipes/paper_rehearsal.sh DATA OUT --mde fastdepth=fastdepth.onnx
#   recipes/paper_rehearsal.sh DATA OUT --mde lite=MODEL --cross-fit lite=FOLD0,FOLD1,FOLD2
#   timeout 560 recipes/paper_rehearsal.sh DATA OUT --mde lite --in-sample --jobs 8 --frames-on-device
#
# After an interruption the same command continues. Flags after OUT are those of `scalefield
# reproduce`, and replace those below: --seeds 0, --depth-unit raw, --gate-reduction mean, --plan,
# --no-report where matplotlib is missing. The record of a run is OUT/results, OUT/training.json and
# OUT/report.
set -euo pipefail
DATA=$1 OUT=$2
shift 2
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec scalefield reproduce --data "places=$DATA" --range kitti=0.1,80 '*=0.1,10' \
  --seeds 0 1 2 --depth-unit raw median --rows 'Field: field' --no-disparity --no-gallery \
  --mde-batch 16 --title "The paper's experiment on places" --out "$OUT" "$@"
