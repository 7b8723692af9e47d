#!/usr/bin/env bash
# shellcheck disable=SC2329 # functions are called by lane and beside
# Every test. The cluster and the images are made while lint, unit and API-server tests run in two lanes; the end-to-end
# tests come last.
. "$(dirname "$0")/layers.sh"
bash scripts/venv.sh
# Triton's launcher is built for the image for GPUs: a C compiler, and the headers of the Python that runs
need_commands cc=gcc cc=libc6-dev
headers=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -f "$headers/Python.h" ] || need_commands "no-python-headers=python3-dev"

prepare() { bash scripts/ready.sh 2>&1 | sed -u 's/^/  cluster | /'; }
beside prepare
cluster=$beside
began=$SECONDS

worker() {
  layer weights .venv/bin/python scripts/weights.py
  layer worker tests tests/model tests/worker_http
  layer mutants .venv/bin/python scripts/mutants.py --sample
}
others() {
  layer lint bash scripts/lint.sh
  layer unit tests -m "not apiserver" --ignore=tests/model --ignore=tests/worker_http --ignore=tests/kernels --ignore=tests/chart tests core
  layer binaries bash e2e/kind/binaries.sh etcd kube-apiserver kubectl helm
  layer apiserver tests -n 2 --dist loadfile -m apiserver tests/apiserver tests/operator tests/chart
  layer chart tests -m "not apiserver" tests/chart
  layer kernels tests tests/kernels
}
lane worker
lane others
wait_lanes

step "waiting for the cluster and the images"
rc=0
wait "$cluster" || rc=$?
end_beside
record cluster "$rc" "$((SECONDS - began))" "kind cluster up, images loaded"
if [ "$rc" = 0 ]; then
  layer e2e tests e2e
else
  skipped e2e "the cluster is not ready: see the lines that start with 'cluster |'"
fi
finish
