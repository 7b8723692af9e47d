# shellcheck shell=bash
# Sourced by every script: the cache folder, progress with elapsed time, errors that name the next command, locks.
set -euo pipefail

# HOME may be unset, as in a bare container
: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache_home=${XDG_CACHE_HOME:-$HOME/.cache}
CACHE=${cache_home%/}/kvbudget # everything built or downloaded lies here; `make clean-cache` removes it
BIN=$CACHE/bin
LOGS=$CACHE/log
TAG=$CACHE/CACHEDIR.TAG TAG_TEXT='Signature: 8a477f597d28d172789f06886806bc55'
export HOME root CACHE BIN LOGS

step() { # MESSAGE…: one progress line, with the seconds since this script started
  printf '[%(%H:%M:%S)T %4d s] %s\n' -1 "$SECONDS" "$*"
}

die() { # WHAT [FIX]: the error and the next command to try, then the end
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '  fix: %s\n' "$2" >&2
  exit 1
}

open_cache() { # makes the cache folder and marks it as ours; refuses one that is somebody's, since `make clean-cache` would remove it
  local entry
  case $cache_home/ in
    /*/../*) die "XDG_CACHE_HOME is '$cache_home': a path with .. in it" "unset it, or name the folder without .." ;;
    /*[!/]*) ;;
    /*) die "XDG_CACHE_HOME is the root folder" "unset it, or name a folder for caches, such as $HOME/.cache" ;;
    *) die "XDG_CACHE_HOME is '$cache_home': no absolute path" "unset it, or write the folder from the root on: $PWD/$cache_home" ;;
  esac
  if [ ! -e "$TAG" ] && [ ! -d "$CACHE/locks" ] && [ ! -e "$CACHE/weights.lock" ]; then
    for entry in "$CACHE"/* "$CACHE"/.[!.]*; do
      [ ! -e "$entry" ] || die "$CACHE is not our cache folder: ${entry##*/} is in it" "set XDG_CACHE_HOME to another folder"
    done
  fi
  # the locks first: whoever comes in between sees a folder of ours. The tag: https://bford.info/cachedir, for backup programs and clean-cache
  if ! { mkdir -p "$CACHE/locks" && mkdir -p "$BIN" "$LOGS" && [ -w "$CACHE" ] && [ -w "$LOGS" ] && { [ -s "$TAG" ] || echo "$TAG_TEXT" >"$TAG"; }; }; then
    die "the cache folder $CACHE cannot be written (as uid $(id -u))" "look at its owner and its free space (ls -ld '$CACHE'; df -h '$cache_home'), or set XDG_CACHE_HOME to another folder"
  fi
}
open_cache

guard() { # PROCESS or -GROUP: ends it where this script is killed and cannot; sets `guard`, for end_guard
  local self=$BASHPID state
  set -m
  {
    # a killed script may stay as a zombie, where nobody reaps, as in some containers
    while read -r state 2>/dev/null <"/proc/$self/stat" && [[ $state != *") Z "* ]]; do sleep 0.5; done
    kill -KILL -- "$1"
  } </dev/null >/dev/null 2>&1 &
  guard=$!
  set +m
  disown "$guard"
}

end_guard() { kill -- "-$guard" 2>/dev/null || true; }

remedy() { # LOG: what to do about a command that failed, by the end of its log
  local free_mib
  free_mib=$(($(df --output=avail -k "$CACHE" | tail -n 1) >> 10))
  if [ "$free_mib" -lt 16 ] || tail -n 200 "$1" | grep -iF 'no space left on device' >/dev/null; then
    echo "a disk is full ($free_mib MiB are free at $CACHE): free some space, or set XDG_CACHE_HOME to a larger disk, then run the same command again"
  elif tail -n 200 "$1" | grep -vE '/(healthz|livez|readyz)|:6443|dial unix' | grep -iE "$NETWORK_ERRORS" >/dev/null; then
    echo "a package registry cannot be reached: check the network, or name a mirror in PIP_INDEX_URL and UV_DEFAULT_INDEX (Python) or GOPROXY (Go), then run the same command again: finished parts are kept"
  else
    echo "read $1, then run the same command again: finished parts are kept"
  fi
}
# as pip, uv, Go, apt and debootstrap say it
NETWORK_ERRORS='connection refused|no such host|temporary failure|could not resolve|failed to fetch|error sending request|network is unreachable|i/o timeout|failed getting release|connect timeout|from versions: none'

logged() { # WHAT LOG COMMAND…: runs a long command into a log; a line every 30 s says that it still works; a failure shows the log's end
  local what=$1 log=$LOGS/$2 began=$SECONDS job guard rc=0
  shift 2
  step "$what …"
  : >"$log" || die "$what: its log $log cannot be written" "$(remedy /dev/null)"
  set -m # its own process group, so that an interrupt ends its children too
  "$@" >"$log" 2>&1 </dev/null &
  job=$!
  set +m
  guard "-$job" # or a killed run would go on writing what the next one makes anew
  # shellcheck disable=SC2064
  trap "kill -- -$job 2>/dev/null; exit 130" INT TERM
  until timeout --foreground 30 tail --pid="$job" -s 0.2 -f /dev/null; do step "$what … still at work after $((SECONDS - began)) s (log: $log)"; done
  wait "$job" || rc=$?
  end_guard
  trap - INT TERM
  if [ "$rc" != 0 ]; then
    tail -n 40 "$log" >&2
    die "$what failed with exit code $rc after $((SECONDS - began)) s" "$(remedy "$log")"
  fi
  step "$what: done in $((SECONDS - began)) s"
}

unmount_below() { # FOLDER: what is mounted in it, the deepest first; nothing where it is not there
  local folder mount mounts=()
  folder=$(realpath -e "$1" 2>/dev/null) || return 0
  while read -r _ mount _; do
    mount=${mount//\\040/ }
    [[ $mount != "$folder"/* ]] || mounts=("$mount" "${mounts[@]}")
  done </proc/mounts
  for mount in "${mounts[@]}"; do
    umount -l "$mount" || die "$mount is mounted and cannot be unmounted" "umount '$mount' as root, then run the same command again"
  done
}

remove_tree() { # FOLDER…: a folder that a killed run may have mounted things in
  local folder
  for folder; do
    unmount_below "$folder"
    rm -rf "$folder"
  done
}

fresh_folder() { # FOLDER KEY-FILE KEY: is it there, whole, and made of what KEY stands for?
  [ -d "$1" ] && [ "$(cat "$2" 2>/dev/null)" = "$3" ]
}

begin_folder() { # FOLDER KEY-FILE: makes room for FOLDER.part; what killed runs left goes
  rm -f "$2" # first: a folder that is half gone is none
  remove_tree "$1" "$1.part"
  mkdir -p "${1%/*}"
}

finish_folder() { # FOLDER KEY-FILE KEY: FOLDER.part is whole: it becomes FOLDER
  mv "$1.part" "$1"
  echo "$3" >"$2"
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

install_packages() { # DEBIAN-PACKAGE…: also where a killed run left dpkg half way, or another one is at work
  export DEBIAN_FRONTEND=noninteractive
  dpkg --configure -a && apt-get update -qq &&
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@"
}

need_commands() { # COMMAND=DEBIAN-PACKAGE…: installs the packages of missing commands where apt can
  local pair missing=()
  for pair in "$@"; do command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}"); done
  [ "${#missing[@]}" -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "missing programs; the Debian packages are: ${missing[*]}" "install them with this system's package manager"
  need_root "installing ${missing[*]}"
  logged "apt-get install ${missing[*]}" apt.log install_packages "${missing[@]}"
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
