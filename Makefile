# Every target does its own set-up and can be run again; scripts/ and e2e/kind/ hold the logic.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast soak mutants aot lint format e2e images weights cluster-up cluster-down cluster-status cluster-binaries generate venv clean-cache

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

demo: ## the main job on a real cluster: refuse, serve, refuse by tokens, scale (from nothing: about 25 minutes)
	@bash scripts/demo.sh

test: ## lint, unit tests, laws, API-server tests and end-to-end tests on kind
	@bash scripts/test.sh

test-fast: ## lint, unit tests, laws; a smoke test of API server and chart where their binaries are built (under 2 minutes)
	@bash scripts/test_fast.sh

soak: ## MINUTES=10 of random traffic, beside random laws and kills of the operator (about half an hour)
	@bash scripts/soak.sh

mutants: venv ## put 362 faults into the code, one at a time, and report those that no test finds (half an hour and more)
	@.venv/bin/python scripts/mutants.py

aot: ## compile the kernels for GPUs with both Tritons and compare with aot.csv; WRITE=1 stores what came out
	@bash scripts/aot.sh $(if $(WRITE),--write,--check)

lint: ## ruff, mypy, import-linter, yamllint, shellcheck, generated files
	@bash scripts/lint.sh

format: venv ## let ruff format and fix
	@.venv/bin/ruff format -q . && .venv/bin/ruff check -q --fix .

e2e: ## the end-to-end tests only
	@bash scripts/e2e.sh

images: ## build kvbudget/operator:dev and kvbudget/worker:dev where they changed; load them into the cluster if it is up
	@bash images/build.sh && bash images/load.sh

weights: venv ## fetch SmolLM2-135M-Instruct into the cache folder
	@.venv/bin/python scripts/weights.py

cluster-up: ## a kind cluster of three nodes, one of which advertises two GPUs, and kubectl and helm; a healthy one is kept
	@bash e2e/kind/cluster.sh up && bash images/load.sh

cluster-down: ## remove the cluster, and stop the Docker daemon if we started it
	@bash e2e/kind/cluster.sh down

cluster-status: ## is the cluster up?
	@bash e2e/kind/cluster.sh status

cluster-binaries: ## build kind, kubectl, helm, etcd and Kubernetes from Go modules into the cache folder
	@bash e2e/kind/binaries.sh

generate: venv ## write the generated files again (crds/, docs, the chart's copies)
	@.venv/bin/python scripts/generate.py && .venv/bin/python scripts/chart_readme.py

venv: ## .venv with the locked requirements and this project
	@bash scripts/venv.sh

clean-cache: ## remove the cluster, our Docker daemon and all that was built or downloaded
	@bash scripts/clean_cache.sh
