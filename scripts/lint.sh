#!/usr/bin/env bash
# Every check that runs no code of ours; goes on after a failure, so that one run shows them all.
. "$(dirname "$0")/lib.sh"
cd "$root"
bash scripts/venv.sh
export PATH=$root/.venv/bin:$PATH

failed=()
check() { # WHAT FIX COMMAND…
  local what=$1 fix=$2 began=$SECONDS output
  shift 2
  if output=$("$@" 2>&1); then
    step "lint: $what: ok ($((SECONDS - began)) s)"
  else
    printf '%s\n' "$output" >&2
    step "lint: $what: FAILED; fix: $fix"
    failed+=("$what")
  fi
}

mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' .ci/run e2e/kind/node/pod-routes)
python_roots=(core operator worker kernels scripts images tests)
[ -z "$(git ls-files -co --exclude-standard 'bench/*.py')" ] || python_roots+=(bench)

check "ruff format" "make format" ruff format --check .
check "ruff" "make format, or read the rule's page: ruff rule CODE" ruff check .
check "import-linter" "see .importlinter for who may import whom" lint-imports
check "yamllint" "see .yamllint" yamllint -s .
check "shellcheck" "see the wiki page that the finding names" shellcheck "${scripts[@]}"
check "generated files" "make generate" python scripts/generate.py --check
check "chart README" "make generate" python scripts/chart_readme.py --check
# two runs: tests/ and e2e/ each have a conftest.py
check "mypy --strict" "correct the types" mypy --cache-dir "$CACHE/mypy" "${python_roots[@]}"
check "mypy --strict e2e" "correct the types" mypy --cache-dir "$CACHE/mypy" e2e

[ "${#failed[@]}" = 0 ] || die "lint: ${failed[*]}" "the lines above; then make lint"
