#!/usr/bin/env bash
# build.sh [operator] [worker]: builds kvbudget/operator:dev and kvbudget/worker:dev where their inputs changed.
#   KVBUDGET_BASE_IMAGE    base with Python 3.11; unset: the Dockerfile's where a registry answers, else made by debootstrap
#   KVBUDGET_WORKER_DEVICE cpu (default); cuda keeps what a GPU needs and gives kvbudget/worker:dev-cuda
#   KVBUDGET_TORCH_WHEEL, KVBUDGET_TORCH_INDEX   a CPU-only wheel of torch, or an index that has one
. "$(dirname "$0")/../e2e/kind/env.sh"
exclusive images "$0" "$@"

cd "$root"
device=${KVBUDGET_WORKER_DEVICE:-cpu} wheel=${KVBUDGET_TORCH_WHEEL:-} index=${KVBUDGET_TORCH_INDEX:-}
[ -z "$wheel" ] || [ -f "$wheel" ] || die "KVBUDGET_TORCH_WHEEL=$wheel is not a file" "give the path of a torch wheel for CPython 3.11 on Linux"
[ "$device" = cpu ] || [ "$device" = cuda ] || die "KVBUDGET_WORKER_DEVICE=$device is no device" "cpu or cuda"
work=$CACHE/images
python=$root/.venv/bin/python
label=dev.kvbudget.inputs

choose_base() { # sets base
  local public
  public=$(sed -n 's/^ARG BASE=//p' images/operator.Dockerfile)
  base=${KVBUDGET_BASE_IMAGE:-}
  [ -z "$base" ] || return 0
  base=kvbudget/base:bookworm-python3.11
  [ -z "$(docker images -q "$base")" ] || return 0
  if docker image inspect "$public" >/dev/null 2>&1 || timeout 15 docker manifest inspect "$public" >/dev/null 2>&1; then
    base=$public
    return 0
  fi
  bash "$KIND_DIR/debian.sh" python python3 ca-certificates
  step "base image $base from debootstrap"
  import_image "$base" "$CACHE/debian/python"
}

prepare() { # IMAGE: its dependencies at prepared/dependencies in its folder, kept while their inputs stay
  local image=$1 at=$work/$1$variant key args=()
  key=$(digest "requirements/$image.txt" images/dependencies.py images/stub_library.py)-$device-$(sha256sum <<<"$wheel $index" | cut -c1-8)
  if [ "$image" = worker ]; then
    args=(--device "$device")
    [ -z "$wheel" ] || args+=(--torch-wheel "$wheel")
    [ -z "$index" ] || args+=(--torch-index "$index")
  fi
  ! fresh_folder "$at/prepared" "$at/key" "$key" || return 0
  # the large layers of the old dependencies; in a daemon that others use too, cleaning up is theirs
  [ "${DOCKER_HOST:-}" != "unix://$own_socket" ] || docker image prune -f >/dev/null
  begin_folder "$at/prepared" "$at/key"
  mkdir "$at/prepared.part"
  UV=$UV UV_CACHE_DIR=$CACHE/uv logged "$image image: dependencies" "dependencies-$image.log" \
    "$python" "$root/images/dependencies.py" "$image" "$root/requirements/$image.txt" "$at/prepared.part/dependencies" "${args[@]}"
  finish_folder "$at/prepared" "$at/key" "$key"
}

kernels() { # the worker's kernels for GPUs at prepared/kernels, kept while kernels and compiler stay
  local at=$work/worker$variant key files
  mapfile -t files < <(find kernels core/kvbudget/layout.py -type f -not -path '*/__pycache__/*' | LC_ALL=C sort)
  key=$(digest requirements/worker.txt "${files[@]}")
  [ "$(cat "$at/kernels-key" 2>/dev/null)" != "$key" ] || return 0
  rm -rf "$at/prepared/kernels" "$at/kernels-key"
  logged "worker image: kernels for GPUs (a process per target, some minutes)" "kernels-worker.log" \
    "$python" -m kvbudget_kernels.aot --ship "$at/prepared/kernels"
  echo "$key" >"$at/kernels-key"
}

size_of() { # TAG
  echo "$(($(docker image inspect -f '{{.Size}}' "$1") >> 20)) MiB"
}

build() { # IMAGE PACKAGE…: sources below the repository
  local image=$1 tag=kvbudget/$1:dev$variant key at=$work/$1$variant context sources
  context=$at/context
  shift
  mapfile -t sources < <(find "$@" -type f -not -path '*/__pycache__/*' | LC_ALL=C sort)
  key=$(digest "requirements/$image.txt" images/*.py "images/$image.Dockerfile" pyproject.toml "${sources[@]}")-$device-$(sha256sum <<<"$wheel $index $base" | cut -c1-8)
  if [ "$(docker image inspect -f "{{index .Config.Labels \"$label\"}}" "$tag" 2>/dev/null)" = "$key" ]; then
    step "$tag is fresh ($(size_of "$tag"))"
    return 0
  fi
  prepare "$image"
  [ -z "$variant" ] || kernels
  rm -rf "$context"
  mkdir -p "$context"
  cp --parents -t "$context" pyproject.toml "requirements/$image.txt" images/*.py "images/$image.Dockerfile" "${sources[@]}"
  cp -al "$at/prepared" "$context/prepared"
  docker buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0
  logged "docker build $tag" "image-$image.log" docker build --label "$label=$key" --build-arg "BASE=$base" --build-arg "DEVICE=$device" \
    -f "$context/images/$image.Dockerfile" -t "$tag" "$context"
  rm -rf "$context"
  step "$tag: $(size_of "$tag")"
}

[ $# -gt 0 ] || set -- operator worker
for image; do
  [ "$image" = operator ] || [ "$image" = worker ] || die "no image is called $image" "operator or worker"
done
bash "$KIND_DIR/docker.sh"
use_docker
bash "$root/scripts/venv.sh"
UV=$(bash "$root/scripts/uv.sh")
choose_base
for image; do
  variant=''
  [ "$image $device" != "worker cuda" ] || variant=-cuda
  sources=(core "$image")
  [ "$image" = operator ] || sources+=(kernels)
  build "$image" "${sources[@]}"
done
