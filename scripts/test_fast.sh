#!/usr/bin/env bash
# Lint and unit tests, and the schema's tests on a real API server where its binaries are built. No cluster.
. "$(dirname "$0")/layers.sh"
bash scripts/venv.sh

bash scripts/lint.sh >"$LOGS/lint.log" 2>&1 &
lint=$!
began=$SECONDS
layer unit tests -n 2 --dist loadfile -m "not apiserver and not weights" --ignore=tests/chart tests core
if [ -x "$BIN/kube-apiserver" ] && [ -x "$BIN/etcd" ]; then
  layer apiserver tests tests/apiserver
else
  step "no kube-apiserver yet (make cluster-binaries): leaving out the API-server tests"
fi
rc=0
wait "$lint" || rc=$?
cat "$LOGS/lint.log"
record lint "$rc" "$((SECONDS - began))" "$(grep -c ': ok' "$LOGS/lint.log") checks passed"
finish
