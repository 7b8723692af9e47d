#!/usr/bin/env bash
# Lint and unit tests; the API-server tests too where their binaries are built. No cluster.
. "$(dirname "$0")/layers.sh"
bash scripts/venv.sh

bash scripts/lint.sh >"$LOGS/lint.log" 2>&1 &
lint=$!
began=$SECONDS
marks="not weights" ignored=()
if [ ! -x "$BIN/kube-apiserver" ] || [ ! -x "$BIN/etcd" ]; then
  step "no kube-apiserver yet (make cluster-binaries): leaving out the API-server tests"
  marks+=" and not apiserver"
fi
[ -x "$BIN/helm" ] || ignored=(--ignore=tests/chart)
layer unit tests -n 2 --dist loadfile -m "$marks" "${ignored[@]}"
rc=0
wait "$lint" || rc=$?
cat "$LOGS/lint.log"
record lint "$rc" "$((SECONDS - began))" "$(grep -c ': ok' "$LOGS/lint.log") checks passed"
finish
