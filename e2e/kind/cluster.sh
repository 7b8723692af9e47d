#!/usr/bin/env bash
# cluster.sh up | down | status: the test cluster, one control plane and two workers, one of which advertises two GPUs.
# `up` keeps a healthy cluster and replaces a broken one. KVBUDGET_NODE_IMAGE=IMAGE takes that kind node image,
# =build builds one from nothing, =default takes kind's own; unset: kind's own where a registry answers, else build.
. "$(dirname "$0")/env.sh"
exclusive cluster "$0" "$@"

kubectl_quick() { kubectl --request-timeout=5s "$@" 2>/dev/null; }

containers_run() { # all three, and with the weights of this cache folder: another one's cluster may have the same name
  [ "$(docker ps -q --filter "label=io.x-k8s.kind.cluster=$CLUSTER" | wc -l)" = 3 ] &&
    docker inspect -f '{{range .Mounts}}{{println .Source}}{{end}}' "$GPU_NODE" 2>/dev/null | grep -F -- "$CACHE/weights" >/dev/null
}

remove_nodes() { # whole or not, running or not
  docker ps -aq --filter "label=io.x-k8s.kind.cluster=$CLUSTER" | xargs -r docker rm -fv >/dev/null
}

drop_kubeconfig() { rm -f "$KUBECONFIG" "$KUBECONFIG.lock"; }

write_kubeconfig() { # of the cluster that runs: the file may be missing, cut short, or an older cluster's
  drop_kubeconfig
  kind export kubeconfig --name "$CLUSTER" >/dev/null 2>&1
}

healthy() {
  local nodes
  containers_run || return 1 # the API server takes 40 s to notice that a node is gone
  [ -s "$KUBECONFIG" ] && kubectl_quick get --raw /readyz >/dev/null || return 1
  nodes=$(kubectl_quick get nodes -o jsonpath='{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}') || return 1
  [ "$nodes" = "$CLUSTER-control-plane=True $CLUSTER-worker=True $CLUSTER-worker2=True " ] &&
    kubectl_quick -n kube-system wait deployment/coredns --for=condition=Available --timeout=10s >/dev/null
}

healthy_soon() { # a busy or just started cluster gets a minute, as long as its containers run
  local until=$((SECONDS + 60))
  until healthy; do
    [ "$SECONDS" -lt "$until" ] && containers_run && [ -s "$KUBECONFIG" ] || return 1
    sleep 1
  done
}

default_image() { # kind's own node image of the pinned version: name and digest
  (cd "$KIND_DIR/mods" && GOFLAGS=-mod=readonly GOMODCACHE=${GOMODCACHE:-$CACHE/go/mod} go mod download -json sigs.k8s.io/kind) |
    sed -n 's/.*"Dir": "\(.*\)".*/\1/p' | xargs -I{} sed -n 's/^const Image = "\(.*\)"/\1/p' {}/pkg/apis/config/defaults/image.go
}

choose_image() { # sets image, and own: whether it is one that we build, which brings its own CNI configuration
  local wanted=${KVBUDGET_NODE_IMAGE:-} built
  own=false
  built=$(bash "$KIND_DIR/node_image_name.sh")
  if [ -z "$wanted" ]; then
    if [ -n "$(docker images -q "$built")" ]; then
      wanted=build
    else
      image=$(default_image)
      if [ -n "$(docker images -q "$image")" ] || timeout 15 docker manifest inspect "$image" >/dev/null 2>&1; then wanted=default; else wanted=build; fi
    fi
  fi
  case $wanted in
    default) image=$(default_image) ;;
    build)
      own=true
      image=$built
      bash "$KIND_DIR/binaries.sh" kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm etcd coredns crictl pause
      bash "$KIND_DIR/node_image.sh"
      ;;
    *) image=$wanted ;;
  esac
}

kind_config() {
  local patches=''
  if "$own"; then # our node image brings its own CoreDNS
    patches="kubeadmConfigPatches:
- '{kind: ClusterConfiguration, dns: {imageTag: $COREDNS_VERSION}}'"
  fi
  cat <<Y
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking:
  apiServerAddress: 127.0.0.1
  podSubnet: 10.61.0.0/16
  serviceSubnet: 10.62.0.0/16
  disableDefaultCNI: ${own}
${patches}
nodes:
- role: control-plane
- &worker
  role: worker
  extraMounts:
  - {hostPath: "$CACHE/weights", containerPath: /var/lib/kvbudget/weights, readOnly: true}
- *worker
Y
}

# real GPU scheduling without a GPU: the node's capacity as a device plugin reports it, and the labels of GPU feature discovery
advertise_gpus() {
  kubectl label --overwrite node "$CLUSTER-control-plane" "$CLUSTER-worker2" nvidia.com/gpu.present=false >/dev/null
  kubectl label --overwrite node "$GPU_NODE" nvidia.com/gpu.present=true nvidia.com/gpu.count=2 nvidia.com/gpu.product=KVBUDGET-DEMO-GPU \
    nvidia.com/gpu.memory=8192 nvidia.com/gpu.family=demo nvidia.com/gpu.compute.major=8 nvidia.com/gpu.compute.minor=0 nvidia.com/gpu.machine=kind \
    nvidia.com/gpu.replicas=1 nvidia.com/gpu.sharing-strategy=none nvidia.com/mig.capable=false nvidia.com/mig.strategy=single \
    nvidia.com/cuda.driver-version.full=580.00.00 nvidia.com/cuda.runtime-version.full=13.0 "nvidia.com/gfd.timestamp=$(date +%s)" >/dev/null
  kubectl patch node "$GPU_NODE" --subresource=status --type=json -p '[{"op":"add","path":"/status/capacity/nvidia.com~1gpu","value":"2"}]' >/dev/null
  kubectl wait node "$GPU_NODE" --for='jsonpath={.status.allocatable.nvidia\.com/gpu}=2' --timeout=60s >/dev/null
}

build_cluster() {
  kind create cluster --name "$CLUSTER" --image "$image" --config "$LOGS/kind.yaml" --wait 180s --retain &&
    kubectl wait node --all --for=condition=Ready --timeout=90s &&
    kubectl -n kube-system rollout status deployment/coredns --timeout=120s
}

create() { # or leaves nothing but the nodes' logs
  mkdir -p "$CACHE/weights"
  kind_config >"$LOGS/kind.yaml"
  if build_cluster; then return 0; fi
  rm -rf "$LOGS/kind"
  kind export logs --name "$CLUSTER" "$LOGS/kind" >/dev/null 2>&1 || true
  remove_nodes
  drop_kubeconfig
  echo "the nodes are removed; their logs are in $LOGS/kind"
  return 1
}

up() {
  local free_gib
  bash "$KIND_DIR/docker.sh"
  use_docker
  bash "$KIND_DIR/binaries.sh" kind kubectl helm
  if healthy || { containers_run && write_kubeconfig && healthy_soon; }; then
    step "cluster $CLUSTER is healthy: kept"
  else
    free_gib=$(($(df --output=avail -k "$CACHE" | tail -1) >> 20))
    [ "$free_gib" -ge 8 ] || die "only $free_gib GiB are free at $CACHE; the cluster and its images need 8 at least (25 from nothing)" "free some space, or set XDG_CACHE_HOME to a larger disk"
    choose_image
    if [ -n "$(docker ps -aq --filter "label=io.x-k8s.kind.cluster=$CLUSTER")" ]; then step "cluster $CLUSTER is broken or half made: replacing it"; fi
    remove_nodes
    drop_kubeconfig
    logged "kind create cluster ($image)" cluster.log create
  fi
  advertise_gpus
  step "cluster $CLUSTER is up; $GPU_NODE advertises 2 nvidia.com/gpu; export KUBECONFIG=$KUBECONFIG"
}

down() {
  if use_docker; then remove_nodes; fi
  drop_kubeconfig
  if [ "${DOCKER_HOST:-}" = "unix://$own_socket" ] && [ -z "$(docker ps -q)" ]; then
    end_daemon 30
    step "stopped the dockerd of $CACHE"
  fi
  step "cluster $CLUSTER is gone; images and binaries are kept (make clean-cache removes them)"
}

status() {
  if ! use_docker || ! healthy; then die "cluster $CLUSTER is not up" "make cluster-up"; fi
  kubectl get nodes -o wide
}

case ${1:-} in
  up | down | status) "$1" ;;
  *) die "usage: cluster.sh up | down | status" ;;
esac
