#!/usr/bin/env bash
# The product's main job on a real cluster.
. "$(dirname "$0")/lib.sh"
bash "$root/scripts/ready.sh"
step "everything is ready; the demo starts"
PYTHONPATH=$root/e2e exec "$root/.venv/bin/python" "$root/e2e/demo.py"
