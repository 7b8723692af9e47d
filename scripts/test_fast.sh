#!/usr/bin/env bash
# shellcheck disable=SC2329 # functions are called by lane and beside
# Lint, unit tests and laws, and a smoke test of the API server and the chart where their binaries are built. No cluster.
. "$(dirname "$0")/layers.sh"
bash scripts/venv.sh
export KVBUDGET_LAWS=fast

# The worker's tests import torch and transformers: nobody else should pay for that, so they are a process of their own.
lint() { layer lint bash scripts/lint.sh; }
worker() { layer worker tests -m "not slow and not weights" tests/model tests/worker_http; }
unit() {
  layer unit tests -m "not slow and not apiserver" --ignore=tests/model --ignore=tests/worker_http --ignore=tests/kernels --ignore=tests/chart tests core
  if [ -x "$BIN/kube-apiserver" ] && [ -x "$BIN/etcd" ] && [ -x "$BIN/helm" ]; then
    layer smoke tests -m "not slow and (smoke or not apiserver)" tests/apiserver tests/chart tests/operator/test_*_apiserver.py
  else
    step "no kube-apiserver yet (make cluster-binaries): leaving out the smoke test of the API server and the chart"
  fi
}

lane unit
lane worker
lane lint
wait_lanes
finish
