#!/bin/bash
# The paper's experiment on a plain folder of frames with the estimators at hand, in one command:
#
#   recipes/paper_rehearsal.sh DATA OUT
#
# DATA is a folder in the layout of scalefield.datasets.Folder (train.txt, val.txt, test.txt). All K
# and regimes, F and F = 0, three seeds, the aligners, `field`, the drop-anchor test, the ablation and
# the spectrum. Run it again after an interruption to go on. Which estimators take part:
#
#   FASTDEPTH=fastdepth.onnx   an ONNX estimator that never saw the frames
#   LITE_RUNS=runs             holds lite/model and lite-fold{0,1,2}/model (recipes/train_shipped.py)
#   VIT_RUNS=runs              holds teacher/model and teacher-fold{0,1,2}/model (train_teacher.py)
#
# Others: SEEDS (0 1 2), JOBS generators trained at a time (5), WORKERS processes (16), PYTHON
# (python3), and anything else that `scalefield reproduce` takes, after OUT.
set -euo pipefail
DATA=$1 OUT=$2
shift 2
HERE=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$HERE/src${PYTHONPATH:+:$PYTHONPATH}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

mdes=() folds=()
if [ -n "${LITE_RUNS:-}" ]; then
  mdes+=("lite=$LITE_RUNS/lite/model")
  folds+=("lite=$LITE_RUNS/lite-fold0/model,$LITE_RUNS/lite-fold1/model,$LITE_RUNS/lite-fold2/model")
fi
if [ -n "${VIT_RUNS:-}" ]; then
  mdes+=("vit-s=$VIT_RUNS/teacher/model")
  folds+=("vit-s=$VIT_RUNS/teacher-fold0/model,$VIT_RUNS/teacher-fold1/model,$VIT_RUNS/teacher-fold2/model")
fi
if [ -n "${FASTDEPTH:-}" ]; then
  mdes+=("fastdepth=$FASTDEPTH")
fi
if [ ${#mdes[@]} = 0 ]; then
  echo "paper_rehearsal.sh: set LITE_RUNS, VIT_RUNS or FASTDEPTH" >&2
  exit 2
fi

PYTHON=${PYTHON:-python3}
# Figures need matplotlib. Without it: scalefield report OUT/results/* on a machine that has it.
"$PYTHON" -c 'import matplotlib' 2> /dev/null && report=--report || report=--no-report

read -ra seeds <<< "${SEEDS:-0 1 2}"
began=$(date +%s)
"$PYTHON" -m scalefield.cli reproduce \
  --data "places=$DATA" --range kitti=0.1,80 '*=0.1,10' \
  --mde "${mdes[@]}" ${folds[@]:+--cross-fit "${folds[@]}"} \
  --seeds "${seeds[@]}" --rows 'Field: field' --no-disparity --no-gallery $report \
  --jobs "${JOBS:-5}" --workers "${WORKERS:-16}" --mde-batch 16 \
  --title "The paper's experiment on places" --out "$OUT" "$@"
echo "done in $(($(date +%s) - began)) s"

# What is worth keeping: configurations, metrics, results and the report, without frames or weights.
(cd "$OUT" && find . -path ./prepared -prune -o -type f \
  \( -name 'report.md' -o -name 'results.json' -o -name 'images.csv' -o -name 'metrics.jsonl' \
     -o -name 'clock.json' -o -name 'config.json' -o -name 'timings.json' -o -name 'run.json' -o -name '*.csv' -o -name 'left_out.json' \) -print0 \
  | tar --null -czf results.tar.gz -T -)
ls -l "$OUT/results.tar.gz"
