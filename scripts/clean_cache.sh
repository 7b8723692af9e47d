#!/usr/bin/env bash
# Removes the cluster, the Docker daemon we started, our mounts, and the whole cache folder.
. "$(dirname "$0")/../e2e/kind/env.sh"
[ "${CACHE##*/}" = kvbudget ] || die "$CACHE does not look like the cache folder"

if use_docker; then
  if [ "${DOCKER_HOST:-}" = "unix://$own_socket" ]; then
    docker ps -aq | xargs -r docker rm -fv >/dev/null
  else
    docker images --format '{{.Repository}}:{{.Tag}}' 'kvbudget/*' | xargs -r docker rmi -f >/dev/null
  fi
  bash "$KIND_DIR/cluster.sh" down
fi
# what a killed daemon left; the deepest first
awk -v below="$CACHE/" 'index($2, below) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -n1 umount -l
if [ -e "$CACHE/systemd-cgroup-mounted" ] && mountpoint -q /sys/fs/cgroup/systemd; then umount -l /sys/fs/cgroup/systemd; fi
[ ! -d "$CACHE/go" ] || chmod -R u+w "$CACHE/go" # the module cache is read-only
rm -rf "$CACHE"
step "removed $CACHE"
