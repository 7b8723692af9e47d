#!/usr/bin/env bash
# Prints the path of the pinned uv; installs it first, hash-checked, into the cache folder.
. "$(dirname "$0")/lib.sh"

at=$CACHE/tools/uv-$(digest requirements/uv.txt)
if [ ! -x "$at/bin/uv" ]; then
  exec {lock}>"$CACHE/locks/uv"
  flock "$lock"
fi
if [ ! -x "$at/bin/uv" ]; then # another run may have installed it while this one waited
  python=$(find_python)
  rm -rf "$CACHE"/tools/uv-*
  trap 'rm -rf "$at.part"' EXIT
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then need_commands ensurepip=python3-venv >&2; fi
  "$python" -m venv "$at.part" >&2
  logged "installing uv" uv.log "$at.part/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$root/requirements/uv.txt" >&2
  mkdir -p "$at/bin"
  cp "$at.part/bin/uv" "$at/bin/uv.part"
  mv "$at/bin/uv.part" "$at/bin/uv"
fi
echo "$at/bin/uv"
