# shellcheck shell=bash
# Sourced by every script: the cache folder, progress with elapsed time, errors that name the next command, locks.
set -euo pipefail

: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/kvbudget # everything built or downloaded lies here; `make clean-cache` removes it
BIN=$CACHE/bin
LOGS=$CACHE/log
export HOME root CACHE BIN LOGS
mkdir -p "$BIN" "$LOGS" "$CACHE/locks"

step() { # MESSAGE…: one progress line, with the seconds since this script started
  printf '[%(%H:%M:%S)T %4d s] %s\n' -1 "$SECONDS" "$*"
}

die() { # WHAT [FIX]: the error and the next command to try, then the end
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '  fix: %s\n' "$2" >&2
  exit 1
}

logged() { # WHAT LOG COMMAND…: runs a long command into a log; a line every 30 s says that it still works; a failure shows the log's end
  local what=$1 log=$LOGS/$2 began=$SECONDS job rc=0
  shift 2
  step "$what …"
  set -m # its own process group, so that an interrupt ends its children too
  "$@" >"$log" 2>&1 </dev/null &
  job=$!
  set +m
  # shellcheck disable=SC2064
  trap "kill -- -$job 2>/dev/null; exit 130" INT TERM
  until timeout --foreground 30 tail --pid="$job" -s 0.2 -f /dev/null; do step "$what … still at work after $((SECONDS - began)) s (log: $log)"; done
  wait "$job" || rc=$?
  trap - INT TERM
  if [ "$rc" != 0 ]; then
    tail -n 40 "$log" >&2
    die "$what failed with exit code $rc after $((SECONDS - began)) s" "read $log, then run the same command again: finished parts are kept"
  fi
  step "$what: done in $((SECONDS - began)) s"
}

besides=()
beside() { # COMMAND…: starts it beside this script, in its own process group; sets `beside` to the group, for wait
  set -m
  "$@" &
  beside=$!
  set +m
  besides+=("$beside")
  trap 'end_beside; exit 130' INT TERM
  trap end_beside EXIT
}

end_beside() { # ends all that `beside` started and still runs; the number of one that has ended may be another process's by now
  local group running
  trap - EXIT INT TERM
  running=$(jobs -rp)
  for group in "${besides[@]}"; do
    if grep -x "$group" <<<"$running" >/dev/null; then kill -- "-$group"; fi
  done
}

exclusive() { # NAME "$0" "$@": runs the calling script again under the lock NAME; waits while another run holds it
  local name=$1 lock=$CACHE/locks/$1 rc=0
  shift
  [ "${KVBUDGET_LOCK:-}" != "$name" ] || return 0
  # -o: no child inherits the lock, so that a daemon or a killed run never keeps it
  KVBUDGET_LOCK=$name flock -n -E 75 -o "$lock" bash "$@" || rc=$?
  if [ "$rc" = 75 ]; then
    step "another run holds $lock: waiting for it to end"
    exec env KVBUDGET_LOCK="$name" flock -o "$lock" bash "$@"
  fi
  exit "$rc"
}

digest() { # FILE…: one hash over the names (below the root) and the contents
  (cd "$root" && sha256sum -- "${@#"$root"/}") | sha256sum | cut -c1-16
}

need_root() { # FOR-WHAT
  [ "$(id -u)" = 0 ] || die "$1 needs root (you are uid $(id -u))" "run it again with sudo -E, or as root"
}

need_commands() { # COMMAND=DEBIAN-PACKAGE…: installs the packages of missing commands where apt can
  local pair missing=()
  for pair in "$@"; do command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}"); done
  [ "${#missing[@]}" -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "missing programs; the Debian packages are: ${missing[*]}" "install them with this system's package manager"
  need_root "installing ${missing[*]}"
  logged "apt-get install ${missing[*]}" apt.log bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"' - "${missing[@]}"
}

find_python() { # a Python 3.11 that runs: a version manager's shim may only say that it is there
  local candidate
  for candidate in python3.11 python3 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  die "no Python 3.11 is on PATH" "apt-get install python3 (Debian 12), or install Python 3.11 and put it on PATH"
}
