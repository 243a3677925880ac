# KVTide's commands. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := kvtide_sizing kvtide_kernels kvtide_worker kvtide_operator
FAST := not cluster and not slow

# The tests run the model too: OpenMP threads that spin between operations starve each other on shared cores.
export OMP_WAIT_POLICY := PASSIVE

##@ Try it
.PHONY: demo plan
demo: $(STAMP) ## The whole story on this machine: a cluster, the operator, a real model, an answer, load, scaling
	$(BIN)/python -m devcluster.demo

plan: $(STAMP) ## What Llama-2-7B needs on an 80 GB A100, as an example of `kvtide plan`
	$(BIN)/kvtide plan --model llama-2-7b --device a100-80gb --context 4096

##@ Check it
.PHONY: test test-fast lint
test: lint ## Everything: lint, unit tests, real weights, the real cluster
	$(BIN)/pytest -m "not cluster"
	$(BIN)/pytest -m cluster

test-fast: $(STAMP) ## All that needs no cluster, without the slow ones
	$(BIN)/pytest -n auto --dist loadfile -m "$(FAST)"

.PHONY: bench-peers
bench-peers: $(STAMP) ## The engine beside vLLM's CPU build and llama.cpp, in one run (bench/peers.py says how)
	$(BIN)/python -m bench.peers

lint: $(STAMP) ## Style, types, and which part may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	$(BIN)/mypy devcluster bench
	$(BIN)/lint-imports

##@ Work on it
.PHONY: install crds up down images model
install: $(STAMP) ## The virtual environment in .venv, with every part and the test tools

crds: $(STAMP) ## Write the CRD from the typed model into crds/ and into the chart
	$(BIN)/python -m kvtide_operator.api.generate crds/llmdeployments.yaml
	cp crds/llmdeployments.yaml charts/kvtide/files/

up: $(STAMP) ## A real Kubernetes on this machine (devcluster), with Prometheus beside it
	$(BIN)/python -m devcluster up

images: $(STAMP) ## Build both images and load them into the devcluster
	$(BIN)/python -m devcluster images

model: $(STAMP) ## Fetch SmolLM2-135M-Instruct, the model of the demo and the tests
	$(BIN)/python -m devcluster model

down: $(STAMP) ## Remove the devcluster; caches stay
	$(BIN)/python -m devcluster down

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z][a-z-]*:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo

$(STAMP): pyproject.toml
	test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/pip install --quiet uv; }
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[operator,worker,dev]'
	touch $@
