#!/usr/bin/env bash
# binaries.sh [NAME…]: builds static Linux binaries from Go modules into $BIN; without names, all of them.
# mods/go.mod pins what is fetched, in one module for all: what two programs share is compiled once. A binary is rebuilt when the
# pins or flags change, and appears whole or not at all.
. "$(dirname "$0")/env.sh"
exclusive binaries "$0" "$@"

P=k8s.io/component-base/version
# kubeadm and kind read the version; without -X it is v0.0.0-master
FLAGS="-s -w -X $P.gitVersion=$KUBERNETES_VERSION -X $P.gitMajor=1 -X $P.gitMinor=34 -X $P.gitTreeState=clean"
# helm without a cluster (template, lint) takes Kubernetes for v1.20 unless told otherwise, too old for our chart
H=helm.sh/helm/v3
HELM_FLAGS="-X $H/internal/version.version=$(grep -F $'\t'"$H " "$KIND_DIR/mods/go.mod" | cut -d' ' -f2)"
for package in pkg/chartutil pkg/lint/rules; do HELM_FLAGS+=" -X $H/$package.k8sVersionMajor=1 -X $H/$package.k8sVersionMinor=34"; done
TABLE="kind sigs.k8s.io/kind
kubectl k8s.io/kubernetes/cmd/kubectl
helm helm.sh/helm/v3/cmd/helm
etcd go.etcd.io/etcd/server/v3
kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager
kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler
kube-proxy k8s.io/kubernetes/cmd/kube-proxy
kubelet k8s.io/kubernetes/cmd/kubelet
kubeadm k8s.io/kubernetes/cmd/kubeadm
coredns ./coredns
crictl sigs.k8s.io/cri-tools/cmd/crictl
pause ./pause"

# a compiler lives for seconds: collecting less often saves it a fifth of its time
export GOGC=${GOGC:-400} CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath -mod=readonly" GOOS=linux
export GOMODCACHE=${GOMODCACHE:-$CACHE/go/mod} GOCACHE=${GOCACHE:-$CACHE/go/build}

check_go() {
  local version
  command -v go >/dev/null || die "Go is not on PATH" "install Go 1.24 or newer (https://go.dev/dl) and put its bin folder on PATH"
  version=$(GOTOOLCHAIN=local go env GOVERSION)
  [ "$(printf '%s\n' go1.24 "$version" | sort -V | head -1)" = go1.24 ] || die "Go $version is too old" "install Go 1.24 or newer (https://go.dev/dl)"
}

build() { # NAME PACKAGE
  local name=$1 flags=$FLAGS key
  [ "$name" != helm ] || flags+=" $HELM_FLAGS"
  key=$(digest "$KIND_DIR"/mods/{,*/}*.*)-$(sha256sum <<<"$2 $flags" | cut -c1-8)
  [ ! -x "$BIN/$name" ] || [ "$(cat "$BIN/.$name.key" 2>/dev/null)" != "$key" ] || return 0
  check_go
  rm -f "$BIN/.$name.key"
  logged "go build $name" "build-$name.log" go build -C "$KIND_DIR/mods" -ldflags "$flags" -o "$BIN/.$name.part" "$2"
  mv "$BIN/.$name.part" "$BIN/$name"
  echo "$key" >"$BIN/.$name.key"
}

[ $# -gt 0 ] || mapfile -t all < <(cut -d' ' -f1 <<<"$TABLE")
[ $# -gt 0 ] || set -- "${all[@]}"
for name; do
  read -r _ package < <(grep "^$name " <<<"$TABLE") || die "no binary is called $name" "one of: $(cut -d' ' -f1 <<<"$TABLE" | paste -sd' ')"
  build "$name" "$package"
done
