#!/usr/bin/env bash
# shellcheck disable=SC2329 # functions are called by lane and beside
# Longer proofs than `make test` has: laws with new and many more examples, minutes of random traffic on a real worker, and an
# operator that is killed many more times. MINUTES (default 10) is the traffic's length; all of it takes about twice that.
. "$(dirname "$0")/layers.sh"
bash scripts/venv.sh
bash e2e/kind/binaries.sh etcd kube-apiserver
minutes=${MINUTES:-10}
[[ $minutes =~ ^[1-9][0-9]*$ ]] || die "MINUTES is '$minutes': it must be a whole number" "make soak MINUTES=10"
export KVBUDGET_LAWS=soak KVBUDGET_SOAK_SECONDS=$((minutes * 60))

laws() { layer laws tests --timeout 3600 -m hypothesis tests; }
worker() {
  layer worker tests -rA tests/worker_http/test_worker_soak.py
  layer operator tests --timeout 3600 tests/operator/test_reconcile_apiserver.py -k killed
}
lane laws
lane worker
wait_lanes
finish
