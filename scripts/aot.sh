#!/usr/bin/env bash
# aot.sh --check | --write: compiles the kernels of kernels/kvbudget_kernels/aot.csv with the locked Triton and with the
# older one that many GPU machines have, and compares with the table or replaces it. What did not change comes from the cache.
. "$(dirname "$0")/lib.sh"
cd "$root"
mode=${1:---check}
[ "$mode" = --check ] || [ "$mode" = --write ] || die "aot.sh does not know $mode" "--check or --write"
bash scripts/venv.sh
old=$CACHE/tools/triton-$(digest requirements/triton-old.txt)
if [ ! -d "$old" ]; then
  rm -rf "$CACHE"/tools/triton-*
  logged "the older Triton" triton-old.log "$(bash scripts/uv.sh)" pip install --python .venv/bin/python --target "$old.part" --no-deps \
    --require-hashes -r requirements/triton-old.txt
  mv "$old.part" "$old"
fi
export TRITON_CACHE_DIR=$CACHE/triton
rc=0
.venv/bin/python -m kvbudget_kernels.aot "$mode" || rc=$?
PYTHONPATH=$old .venv/bin/python -m kvbudget_kernels.aot "$mode" --targets sm_90 || rc=$?
[ "$rc" = 0 ] || die "the compiled kernels differ from aot.csv, or a gate is broken" "the lines above that do not begin with ok; make aot WRITE=1 stores them"
