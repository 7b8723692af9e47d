# shellcheck shell=bash
# Sourced by the test runners: runs layers of tests, goes on after a failure, and ends with a table of all. Lanes are layers
# one after another, side by side with other lanes.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # the tests' models are tiny: threads only disturb each other
results=$(mktemp "$LOGS/results-XXXXXX")     # a file: a lane is a process of its own
lanes=() lane_name=""

record() { # NAME EXIT-CODE SECONDS TEXT
  local verdict=passed
  [ "$2" = 0 ] || verdict=FAILED
  printf '%-10s %-7s %5s s  %s\n' "$1" "$verdict" "$3" "$4" >>"$results"
}

layer() { # NAME COMMAND…: runs it now; its last line goes into the table
  local name=$1 began=$SECONDS rc=0 log=$LOGS/layer-$1.log
  shift
  step "== layer $name"
  "$@" 2>&1 </dev/null | tee "$log" | if [ -n "$lane_name" ]; then sed -u "s/^/  $name | /"; else cat; fi || rc=$?
  record "$name" "$rc" "$((SECONDS - began))" "$(tail -n 1 "$log" | sed 's/\x1b\[[0-9;]*m//g; s/^=* //; s/ =*$//')"
}

lane() { # FUNCTION: begins its layers now
  lane_name=$1
  beside "$1"
  lanes+=("$beside")
  lane_name=""
}

wait_lanes() { # waits for all lanes; one that ended early is a failure too
  local group
  for group in "${lanes[@]}"; do wait "$group" || record lane 1 "$SECONDS" "a lane ended early"; done
}

skipped() { # NAME WHY: a layer that cannot run counts as failed
  record "$1" 1 0 "did not run: $2"
}

tests() { # PYTEST-ARGUMENT…
  "$root/.venv/bin/python" -m pytest -q -p no:cacheprovider "$@"
}

finish() { # prints the table; exits with 1 where a layer failed
  local table
  table=$(cat "$results")
  rm -f "$results"
  printf '\n%s\n' "$table"
  ! grep -q '^[^ ]* *FAILED ' <<<"$table" || die "a layer failed" "its output is above, and in $LOGS/layer-NAME.log"
  step "all layers passed"
  exit 0
}
