# shellcheck shell=bash
# Sourced by the cluster's scripts: pins, names, and which Docker daemon they talk to.
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

KIND_DIR=$root/e2e/kind
KUBERNETES_VERSION=v1.34.4
COREDNS_VERSION=v1.12.4 # the first that compiles with this client-go; mods/go.mod says it too
CLUSTER=kvbudget
GPU_NODE=$CLUSTER-worker
KUBECONFIG=$CACHE/kubeconfig
SAVED=$CACHE/images/saved
export PATH=$BIN:$PATH:/usr/sbin:/sbin KUBECONFIG KIND_DIR KUBERNETES_VERSION COREDNS_VERSION CLUSTER GPU_NODE SAVED

own_socket=$CACHE/docker.sock pidfile=$CACHE/docker.pid exec_root=$CACHE/dockerexec
answers() { timeout 20 docker version >/dev/null 2>&1; }

use_docker() { # exports DOCKER_HOST; true when a daemon answers: our own where it runs, else the one the user's environment reaches
  command -v docker >/dev/null || return 1
  if [ -S "$own_socket" ] && DOCKER_HOST=unix://$own_socket answers; then
    export DOCKER_HOST=unix://$own_socket
    return 0
  fi
  [ "${DOCKER_HOST:-}" != "unix://$own_socket" ] || unset DOCKER_HOST
  answers
}

daemon_pid() { # the process id of the dockerd that we started; false where the pid file is stale: nobody's, or another program's by now
  local pid
  pid=$(cat "$pidfile" 2>/dev/null) && [[ $pid =~ ^[0-9]+$ ]] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 1
  tr '\0' '\n' <"/proc/$pid/cmdline" | grep -Fx -- "$pidfile" >/dev/null || return 1
  echo "$pid"
}

end_daemon() { # SECONDS: ends our dockerd, with force where it has not ended by then, and removes what it left
  local pid
  if pid=$(daemon_pid); then
    kill "$pid" 2>/dev/null || true
    timeout "$1" tail --pid="$pid" -s 0.1 -f /dev/null || kill -KILL "$pid" 2>/dev/null || true
    timeout 10 tail --pid="$pid" -s 0.1 -f /dev/null || die "dockerd (process $pid) cannot be ended" "end it as root: kill -9 $pid"
  fi
  # a dead containerd that nobody has reaped keeps its process id, and the next dockerd would wait for it
  if ! daemon_rest | xargs -rI{} cat /proc/{}/comm 2>/dev/null | grep -x containerd >/dev/null; then rm -f "$exec_root/containerd/containerd.pid"; fi
  rm -f "$pidfile" "$own_socket"
}

daemon_rest() { # process ids of containerd and its shims that outlived our dockerd
  local file
  { grep -lF -- "$exec_root/" /proc/[0-9]*/cmdline 2>/dev/null || true; } | while IFS= read -r file; do
    case $(cat "${file%cmdline}comm" 2>/dev/null) in
      containerd*) basename "${file%/cmdline}" ;;
    esac
  done
}

import_image() { # IMAGE FOLDER [DOCKER-IMPORT-OPTION…]: a one-layer image; it has its name only once it is whole
  local image=$1 folder=$2 id
  shift 2
  id=$(tar -C "$folder" --numeric-owner --one-file-system -c --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' . | docker import "$@" -) ||
    die "the image $image cannot be made of $folder" "df -h '$CACHE' (is the disk full?), then run the same command again"
  docker tag "${id##*$'\n'}" "$image"
}

saved_image() { # IMAGE: the path of the copy that images/save.sh keeps, named after the layers below the last one
  local layers
  layers=$(docker image inspect -f '{{range .RootFS.Layers}}{{println .}}{{end}}' "kvbudget/$1:dev" | sed '/^$/d' | sed '$d')
  echo "$SAVED/$1-$(sha256sum <<<"$layers" | cut -c1-16).tar"
}
