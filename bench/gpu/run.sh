#!/usr/bin/env bash
# Checks and times the kernels on one GPU in at most 8 minutes: bash bench/gpu/run.sh [--dry-run] [--out FOLDER] [PART…]
# Parts: ceilings smoke grid ablations comparators; tiles, if asked for, times tile sizes for `python -m
# kvbudget_kernels.tune --refresh`. Rows go to FOLDER/rows.jsonl and FOLDER/rows.csv as they are made, so
# that a stop loses nothing. --dry-run: tiny shapes in Triton's interpreter on the CPU; nothing is timed.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
limit=480
for argument in "$@"; do
  if [ "$argument" = --dry-run ]; then
    export TRITON_INTERPRET=1 PYTHONWARNINGS=ignore
    limit=1800
  fi
done
export PYTHONPATH=core:kernels:bench OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec timeout --signal=TERM $limit "$python" -m gpu.main "$@"
