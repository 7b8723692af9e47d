#!/usr/bin/env bash
# load.sh [operator] [worker]: loads the built images into the test cluster, where both are there: the operator on every
# node, the worker only on the node that advertises GPUs. A node that has the image already is skipped.
. "$(dirname "$0")/../e2e/kind/env.sh"
exclusive cluster "$0" "$@"

if ! use_docker || [ ! -s "$KUBECONFIG" ] || ! kind get clusters 2>/dev/null | grep -x "$CLUSTER" >/dev/null; then exit 0; fi
[ $# -gt 0 ] || set -- operator worker
for image; do
  tag=kvbudget/$image:dev
  [ -n "$(docker images -q "$tag")" ] || continue
  nodes=()
  [ "$image" != worker ] || nodes=(--nodes "$GPU_NODE")
  logged "loading $tag" "load-$image.log" kind load docker-image "$tag" --name "$CLUSTER" "${nodes[@]}"
done
