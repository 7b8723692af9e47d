#!/usr/bin/env bash
# A Docker daemon: the one that answers already, else dockerd from Debian with its data in the cache folder.
. "$(dirname "$0")/env.sh"
exclusive docker "$0" "$@"

data=$CACHE/docker log=$LOGS/dockerd.log

# systemd inside a node needs the host to have this v1 hierarchy where cgroup v2 is not mounted: a cgroup namespace cannot make one
mount_systemd_cgroup() {
  [ ! -e /sys/fs/cgroup/cgroup.controllers ] && ! mountpoint -q /sys/fs/cgroup/systemd || return 0
  mkdir -p /sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
  touch "$CACHE/systemd-cgroup-mounted"
}

lacks_sys_resource() { # CAP_SYS_RESOURCE is bit 24 of the bounding set
  local bounding
  bounding=$(sed -n 's/^CapBnd:\s*//p' /proc/self/status)
  ((!(16#$bounding >> 24 & 1)))
}

start_daemon() {
  need_root "starting dockerd (no Docker daemon answers)"
  [ "${#own_socket}" -le 90 ] || die "the cache folder's path is too long for a socket: $CACHE" "set XDG_CACHE_HOME to a shorter path"
  need_commands dockerd=docker.io docker=docker.io containerd=containerd runc=runc iptables=iptables
  mount_systemd_cgroup
  if daemon_pid >/dev/null; then step "ending a dockerd that does not answer (process $(daemon_pid))"; fi
  end_daemon 15
  sysctl -qw fs.inotify.max_user_instances=1024 2>/dev/null || true # the default, 128, is few for three kubelets
  local args=(-H "unix://$own_socket" --data-root "$data" --exec-root "$exec_root" --pidfile "$pidfile")
  if lacks_sys_resource; then
    install -m755 "$KIND_DIR/runc_bounded.py" "$CACHE/runc-bounded"
    args+=(--add-runtime "bounded=$CACHE/runc-bounded" --default-runtime bounded)
  fi
  step "starting dockerd (data in $data, log in $log)"
  setsid nohup dockerd "${args[@]}" >"$log" 2>&1 </dev/null &
  local daemon=$! last=$((SECONDS + 120))
  export DOCKER_HOST=unix://$own_socket
  until answers; do
    if ! kill -0 "$daemon" 2>/dev/null || [ "$SECONDS" -gt "$last" ]; then
      kill "$daemon" 2>/dev/null || true
      end_daemon 15
      tail -n 15 "$log" >&2
      die "dockerd does not start" "read $log; or start Docker yourself and set DOCKER_HOST; or make clean-cache and try again"
    fi
    sleep 0.2
  done
}

use_docker || start_daemon
step "docker $(docker version --format '{{.Server.Version}}') answers at ${DOCKER_HOST:-the default socket}"
