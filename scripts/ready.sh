#!/usr/bin/env bash
# All that the demo and the end-to-end tests need: a cluster, both images built and loaded, the weights. The parts that do not
# need each other run side by side.
. "$(dirname "$0")/lib.sh"
cd "$root"
bash scripts/venv.sh
bash e2e/kind/docker.sh

images_and_weights() {
  bash images/build.sh
  bash images/save.sh
  logged "weights of SmolLM2-135M-Instruct" weights.log .venv/bin/python scripts/weights.py
}

beside images_and_weights
beside bash e2e/kind/cluster.sh up
for _ in 1 2; do # a failure of either side ends the other: nobody should wait half an hour to read why
  wait -n || die "the cluster, the images or the weights are not ready" "read the lines above, then run the same command again"
done
end_beside
bash images/load.sh
