#!/usr/bin/env bash
# Every test. The cluster and the images are made while lint, unit and API-server tests run; the end-to-end tests come last.
. "$(dirname "$0")/layers.sh"
bash scripts/venv.sh

# shellcheck disable=SC2329 # beside calls it
prepare() { bash scripts/ready.sh 2>&1 | sed -u 's/^/  cluster | /'; }
beside prepare
began=$SECONDS

layer lint bash scripts/lint.sh
layer weights .venv/bin/python scripts/weights.py
layer unit tests -n 2 --dist loadfile -m "not apiserver" --ignore=tests/chart tests core
layer binaries bash e2e/kind/binaries.sh etcd kube-apiserver kubectl helm
layer apiserver tests -n 2 --dist loadfile -m apiserver tests
layer chart tests -n 2 --dist worksteal -m "not apiserver" tests/chart

step "waiting for the cluster and the images"
rc=0
wait "$beside" || rc=$?
end_beside
record cluster "$rc" "$((SECONDS - began))" "kind cluster up, images loaded"
if [ "$rc" = 0 ]; then
  layer e2e tests e2e
else
  skipped e2e "the cluster is not ready: see the lines that start with 'cluster |'"
fi
finish
