# shellcheck shell=bash
# Sourced by the test runners: runs layers of tests, goes on after a failure, and ends with a table of all.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # the tests' models are tiny: threads only disturb each other
results=() any_failed=

record() { # NAME EXIT-CODE SECONDS TEXT
  local verdict=passed
  if [ "$2" != 0 ]; then
    verdict=FAILED any_failed=yes
  fi
  results+=("$(printf '%-10s %-7s %5s s  %s' "$1" "$verdict" "$3" "$4")")
}

layer() { # NAME COMMAND…: runs it now; its last line goes into the table
  local name=$1 began=$SECONDS rc=0 log=$LOGS/layer-$1.log
  shift
  step "== layer $name"
  "$@" 2>&1 </dev/null | tee "$log" || rc=$?
  record "$name" "$rc" "$((SECONDS - began))" "$(tail -n 1 "$log" | sed 's/\x1b\[[0-9;]*m//g; s/^=* //; s/ =*$//')"
}

skipped() { # NAME WHY: a layer that cannot run counts as failed
  record "$1" 1 0 "did not run: $2"
}

tests() { # PYTEST-ARGUMENT…
  "$root/.venv/bin/python" -m pytest -q -p no:cacheprovider "$@"
}

finish() { # prints the table; exits with 1 where a layer failed
  printf '\n'
  printf '%s\n' "${results[@]}"
  [ -z "$any_failed" ] || die "a layer failed" "its output is above, and in $LOGS/layer-NAME.log"
  step "all layers passed"
  exit 0
}
