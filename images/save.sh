#!/usr/bin/env bash
# save.sh [operator] [worker]: keeps a saved copy of each built image, from which new clusters take the layers that seldom change:
# `docker save` of the worker takes as long as making the cluster. A change of code needs no new copy (see e2e/kind/last_layer.py).
. "$(dirname "$0")/../e2e/kind/env.sh"
exclusive save "$0" "$@"
use_docker || die "no Docker daemon answers" "make cluster-up"

[ $# -gt 0 ] || set -- operator worker
mkdir -p "$SAVED"
for image; do
  tag=kvbudget/$image:dev
  [ -n "$(docker images -q "$tag")" ] || continue
  archive=$(saved_image "$image")
  [ ! -s "$archive" ] || continue
  rm -f "$SAVED/$image"-*
  needed_mib=$((($(docker image inspect -f '{{.Size}}' "$tag") >> 20) + 4096))
  if [ "$(($(df --output=avail -k "$SAVED" | tail -n 1) >> 10))" -lt "$needed_mib" ]; then
    step "keeping no copy of $tag for new clusters: less than $needed_mib MiB are free at $SAVED"
    continue
  fi
  logged "keeping a copy of $tag for new clusters" "save-$image.log" docker save -o "$archive.part" "$tag"
  mv "$archive.part" "$archive"
done
