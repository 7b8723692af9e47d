#!/usr/bin/env bash
# Builds the kind node image with no registry: a Debian tree, kind's own node files (read from the pinned module), our
# binaries, a CNI configuration, and the images kubeadm asks for, preloaded into containerd's store.
# Prints nothing and does nothing when the image of these inputs is there.
. "$(dirname "$0")/env.sh"
exclusive node-image "$0" "$@"
use_docker || die "no Docker daemon answers" "make cluster-up"

IMAGE=$(bash "$KIND_DIR/node_image_name.sh")
[ -z "$(docker images -q "$IMAGE")" ] || exit 0
need_root "building the node image (chroot)"
need_commands jq=jq
bash "$KIND_DIR/debian.sh" node systemd systemd-sysv conntrack iptables nftables iproute2 ethtool kmod libseccomp2 jq procps \
  ca-certificates curl containerd runc containernetworking-plugins

export GOMODCACHE=${GOMODCACHE:-$CACHE/go/mod} GOFLAGS=-mod=readonly
kind_module=$(cd "$KIND_DIR/mods" && go mod download -json sigs.k8s.io/kind@"$(go list -m -f '{{.Version}}' sigs.k8s.io/kind)" | jq -r .Dir)
work=$CACHE/node
R=$work/rootfs
remove_tree "$work"
mkdir -p "$work"
trap 'remove_tree "$work"' EXIT
cp -a "$CACHE/debian/node" "$R"

step "node image: kind's files, containerd, CNI"
files=$kind_module/images/base/files
cp -r --no-preserve=mode,ownership "$files"/etc/. "$R"/etc/
cp -r --no-preserve=mode,ownership "$files"/kind/. "$R"/kind/
install -m755 "$files"/usr/local/bin/* "$R"/usr/local/bin/
chmod 755 "$R"/kind "$R"/kind/bin "$R"/kind/bin/*
find "$R"/lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete
rm -f "$R"/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* "$R"/etc/systemd/system/*.wants/* \
  "$R"/lib/systemd/system/sockets.target.wants/*{udev,initctl}*
echo ReadKMsg=no >>"$R"/etc/systemd/journald.conf
ln -sf /usr/bin/containerd "$R"/usr/local/bin/containerd # where kind's unit looks for it
mkdir -p "$R"/etc/kubernetes/manifests "$R"/opt/cni/bin "$R"/kind/manifests "$R"/etc/cni/net.d
for plugin in host-local loopback ptp portmap; do cp "$R/usr/lib/cni/$plugin" "$R"/opt/cni/bin/; done
# some hosts may not lower oom_score_adj: without this no container starts there ("can't get final child's PID from pipe: EOF")
sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$R"/etc/containerd/config.toml
cat "$KIND_DIR"/node/cni.toml >>"$R"/etc/containerd/config.toml
install -m644 "$KIND_DIR"/node/cni.template "$R"/kind/
install -m755 "$KIND_DIR"/node/pod-routes "$R"/usr/local/bin/
install -m644 "$KIND_DIR"/node/pod-routes.service "$R"/etc/systemd/system/
install -m644 "$KIND_DIR"/node/default-storage.yaml "$R"/kind/manifests/
for binary in kubeadm kubectl kubelet crictl; do install -m755 "$BIN/$binary" "$R"/usr/bin/; done
printf %s "$KUBERNETES_VERSION" >"$R"/kind/version
in_tree() { chroot "$R" env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
in_tree systemctl --quiet enable kubelet containerd undo-mount-hacks pod-routes 2>/dev/null
in_tree systemctl --quiet mask systemd-binfmt 2>/dev/null
# kind's hook and no rlimits, as in kind's own image
in_tree ctr oci spec | jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' >"$R"/etc/containerd/cri-base.json

step "node image: the images kubeadm asks for"
mapfile -t wanted < <("$BIN/kubeadm" config images list --kubernetes-version "$KUBERNETES_VERSION" 2>/dev/null |
  grep -v /pause: | sed "s|/coredns:.*|/coredns:$COREDNS_VERSION|")
wanted+=("$(sed -n 's/.*sandbox_image = "\(.*\)".*/\1/p' "$R"/etc/containerd/config.toml)")
with_libraries() { # TREE PROGRAM…: programs of the node at their own paths, with the libraries they link
  local to=$1 path
  shift
  for path in "$@" $(in_tree ldd "$@" | grep -o '/[^ ]* (0x' | cut -d' ' -f1 | sort -u); do
    install -D "$R$(in_tree realpath "$path")" "$to$path"
  done
}
pack() { # IMAGE: a one-layer image of our binary of the same name
  local image=$1 name tree change=()
  name=${image##*/}
  name=${name%%:*}
  tree=$work/$name
  mkdir -p "$tree"/{run,etc/ssl/certs}
  mkdir -m1777 "$tree/tmp"
  cp "$R"/etc/ssl/certs/ca-certificates.crt "$tree"/etc/ssl/certs/
  case $name in
    pause | coredns)
      install "$BIN/$name" "$tree/$name"
      change=(--change "ENTRYPOINT [\"/$name\"]")
      ;;
    *) install -D "$BIN/$name" "$tree/usr/local/bin/$name" ;;
  esac
  if [ "$name" = kube-proxy ]; then # iptables beside it, of the node's mode; its match modules link libm
    # shellcheck disable=SC2046
    with_libraries "$tree" /usr/sbin/xtables-nft-multi /usr/sbin/nft /usr/sbin/conntrack /bin/kmod $(cd "$R" && printf '/%s\n' usr/lib/x86_64-linux-gnu/xtables/*.so)
    for link in ip{,6}tables{,-save,-restore}; do ln -s xtables-nft-multi "$tree/usr/sbin/$link"; done
    ln -s /bin/kmod "$tree/usr/sbin/modprobe"
  fi
  import_image "$image" "$tree" --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' "${change[@]}"
}
for image in "${wanted[@]}"; do pack "$image"; done

step "node image: preloading them into containerd's store"
state=$work/containerd
mkdir "$state"
cat >"$state/config.toml" <<C
version = 2
root = "$R/var/lib/containerd"
state = "$state/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "$state/s"
[ttrpc]
  address = "$state/t"
C
containerd -c "$state/config.toml" >"$LOGS/preload.log" 2>&1 &
preload=$!
guard "$preload"
trap 'kill $preload 2>/dev/null; end_guard; remove_tree "$work"' EXIT
until ctr -a "$state/s" version >/dev/null 2>&1; do
  kill -0 $preload 2>/dev/null || die "containerd does not start" "read $LOGS/preload.log"
  sleep 0.2
done
docker save "${wanted[@]}" | ctr -a "$state/s" -n k8s.io images import --all-platforms --no-unpack --digests - >>"$LOGS/preload.log"
docker rmi "${wanted[@]}" >/dev/null # they were only on the way
kill $preload
wait $preload || true
end_guard
trap 'remove_tree "$work"' EXIT

step "node image: docker import"
import_image "$IMAGE" "$R" --change 'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]' --change 'ENV container=docker'
step "node image: $IMAGE"
