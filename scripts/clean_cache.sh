#!/usr/bin/env bash
# Removes the cluster, the Docker daemon we started, our mounts, and the whole cache folder; nothing else, and again where it is run again.
. "$(dirname "$0")/../e2e/kind/env.sh"

refuse_unless_ours() {
  [ ! -L "$CACHE" ] || die "$CACHE is a symbolic link to $(readlink "$CACHE")" "remove that folder and the link yourself"
  [ -s "$TAG" ] || die "$CACHE has no $(basename "$TAG"): it may not be ours" "look at it, then remove it yourself"
  case $(realpath "$root")/ in
    "$(realpath "$CACHE")"/*) die "this clone lies in the cache folder $CACHE" "move the clone elsewhere" ;;
  esac
  if mountpoint -q "$CACHE"; then die "$CACHE is a mount point" "umount '$CACHE', then run make clean-cache again"; fi
}

refuse_while_in_use() {
  local lock
  for lock in "$CACHE"/locks/* "$CACHE/weights.lock"; do
    [ ! -e "$lock" ] || flock -n "$lock" true || die "another run is at work (it holds $lock)" "wait until it ends, or end it; then run make clean-cache again"
  done
}

refuse_unless_ours
refuse_while_in_use
if [ -z "$(daemon_pid)" ] && [ -n "$(daemon_rest)" ]; then
  bash "$KIND_DIR/docker.sh" || true # containers outlived our daemon: only a daemon ends them properly
fi
if use_docker; then
  if [ "${DOCKER_HOST:-}" = "unix://$own_socket" ]; then
    docker ps -aq | xargs -r docker rm -fv >/dev/null
  else
    docker images --format '{{.Repository}}:{{.Tag}}' 'kvbudget/*' | xargs -r docker rmi -f >/dev/null
  fi
  bash "$KIND_DIR/cluster.sh" down
fi
end_daemon 30
daemon_rest | xargs -r kill -KILL 2>/dev/null || true
unmount_below "$CACHE" # what a killed daemon left
if [ -e "$CACHE/systemd-cgroup-mounted" ] && mountpoint -q /sys/fs/cgroup/systemd; then umount -l /sys/fs/cgroup/systemd; fi
[ ! -d "$CACHE/go" ] || chmod -R u+w "$CACHE/go" # the module cache is read-only
rm -rf --one-file-system -- "$CACHE" || die "$CACHE cannot be removed whole" "look at what is left (ls -la '$CACHE'), then run make clean-cache again, as root if need be"
step "removed $CACHE"
