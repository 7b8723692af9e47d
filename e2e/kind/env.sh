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
export PATH=$BIN:$PATH:/usr/sbin:/sbin KUBECONFIG KIND_DIR KUBERNETES_VERSION COREDNS_VERSION CLUSTER GPU_NODE

own_socket=$CACHE/docker.sock
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
