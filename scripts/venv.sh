#!/usr/bin/env bash
# The development environment: .venv in the clone with the locked requirements and this project, editable. Fresh: nothing to do.
. "$(dirname "$0")/lib.sh"
exclusive "venv-$(sha256sum <<<"$root" | cut -c1-16)" "$0" "$@"

venv=$root/.venv
stamp=$venv/kvbudget-requirements
key=$(digest requirements/uv.txt requirements/dev.txt pyproject.toml)
runs() { "$venv/bin/python" -c '' 2>/dev/null; } # not where its Python went away, or a killed run left half of it
[ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || ! runs || exit 0

uv=$(bash "$root/scripts/uv.sh")
export UV_CACHE_DIR=$CACHE/uv UV_PYTHON_DOWNLOADS=never
rm -f "$stamp"
if ! runs; then
  step "new environment .venv"
  python=$(find_python)
  "$uv" venv --quiet --clear --python "$python" "$venv"
fi
logged "installing the locked requirements (torch is large)" venv.log \
  "$uv" pip install --python "$venv/bin/python" --require-hashes -r "$root/requirements/dev.txt"
logged "installing this project, editable" venv-project.log \
  "$uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --editable "$root"
echo "$key" >"$stamp"
