#!/usr/bin/env bash
# The end-to-end tests alone, on a cluster that is made first where there is none.
. "$(dirname "$0")/layers.sh"
bash scripts/ready.sh
layer e2e tests e2e
finish
