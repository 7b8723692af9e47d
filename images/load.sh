#!/usr/bin/env bash
# load.sh [operator] [worker]: loads the built images into the test cluster, where both are there: the operator on every
# node, the worker only on the node that advertises GPUs. A node gets what it lacks: nothing, the last layer, or all layers.
. "$(dirname "$0")/../e2e/kind/env.sh"
exclusive cluster "$0" "$@"

if ! use_docker || [ ! -s "$KUBECONFIG" ] || ! kind get clusters 2>/dev/null | grep -x "$CLUSTER" >/dev/null; then exit 0; fi
python=$(find_python)

kind_load() { # docker-image TAG | image-archive FILE, then NODE…
  local what=$1 which=$2
  shift 2
  (
    IFS=,
    exec kind load "$what" "$which" --name "$CLUSTER" --nodes "$*"
  )
}

bring_last_layers() { # TAG: to the nodes in `lacking`; leaves in it those that need more
  local tag=$1 node more=() part
  part=$(mktemp "$CACHE/images/layer-XXXXXX")
  for node in "${lacking[@]}"; do
    case $("$python" "$KIND_DIR/last_layer.py" "$tag" "$node" "$part") in
      fresh) echo "$node has $tag" ;;
      layer)
        echo "$node: the last layer of $tag"
        kind_load image-archive "$part" "$node" || more+=("$node")
        ;;
      *) more+=("$node") ;;
    esac
  done
  rm -f "$part"
  lacking=("${more[@]}")
}

load() { # IMAGE NODE…
  local image=$1 tag=kvbudget/$1:dev lacking archive
  shift
  lacking=("$@")
  bring_last_layers "$tag"
  [ "${#lacking[@]}" -gt 0 ] || return 0
  bash "$root/images/save.sh" "$image"
  archive=$(saved_image "$image")
  if [ -s "$archive" ]; then
    echo "${lacking[*]}: $archive"
    kind_load image-archive "$archive" "${lacking[@]}"
    bring_last_layers "$tag" # the copy may have older code
    [ "${#lacking[@]}" -gt 0 ] || return 0
  fi
  kind_load docker-image "$tag" "${lacking[@]}"
}

load_logged() { logged "loading kvbudget/$1:dev" "load-$1.log" load "$@"; }

mkdir -p "$CACHE/images"
rm -f "$CACHE"/images/layer-*
[ $# -gt 0 ] || set -- operator worker
mapfile -t nodes < <(kind get nodes --name "$CLUSTER")
begun=0
for image; do
  [ -n "$(docker images -q "kvbudget/$image:dev")" ] || continue
  if [ "$image" = worker ]; then on=("$GPU_NODE"); else on=("${nodes[@]}"); fi
  beside load_logged "$image" "${on[@]}"
  begun=$((begun + 1))
done
for ((; begun > 0; begun--)); do
  wait -n || die "an image is not in the cluster" "read the lines above, then run: bash images/load.sh"
done
end_beside
