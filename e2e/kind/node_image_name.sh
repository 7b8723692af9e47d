#!/usr/bin/env bash
# Prints the name of the node image that the present inputs give.
. "$(dirname "$0")/env.sh"
inputs=("$KIND_DIR"/node_image.sh "$KIND_DIR"/node/* "$KIND_DIR"/binaries.sh "$KIND_DIR"/mods/{,*/}*.*)
echo "kvbudget/node:$KUBERNETES_VERSION-$(digest "${inputs[@]}")"
