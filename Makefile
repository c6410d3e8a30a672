# Everything that a developer and CI do with this repository; `make` alone lists it.
# One virtual environment serves all targets: it is made once, and again when a lock file changes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The lock files are for CPython 3.11.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCKS := requirements/engine-cpu.lock requirements/dev.lock
PYTEST := $(BIN)/python -m pytest
# What takes long is named at the end of each stage, so that it can be kept short.
SLOWEST := --durations=10 --durations-min=15
# Most of what a test takes is waiting, or one core: two files run at a time.
PARALLEL := -n 2 --dist loadfile
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help venv demo check test fuzz e2e e2e-kube bench bench-quick bench-all bench-gpu docs lint-fix clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## Make the virtual environment that all other targets use

$(STAMP): $(LOCKS) pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "The lock files need CPython 3.11, and $(PYTHON) is not that: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	@test -x $(BIN)/python || { echo "[1/4] making $(VENV)"; "$(PYTHON)" -m venv $(VENV); }
	@echo "[2/4] installing the engine's packages (about 1 GB; a few minutes the first time)"
	@$(PIP) install -qq --no-deps -r requirements/engine-cpu.lock
	@echo "[3/4] installing the development packages"
	@$(PIP) install -qq --no-deps -r requirements/dev.lock
	@echo "[4/4] installing Sternpost itself, editable"
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Show the whole of Sternpost on this machine, on a small model
	@$(BIN)/sternpost model fetch
	@$(BIN)/python -m bench.demo $(ARGS)

check: $(STAMP) ## Formatting, lint, types, import rules, images and layout
	@echo "== format";  $(BIN)/ruff format --check . || { echo "run: make lint-fix" >&2; exit 1; }
	@echo "== lint";    $(BIN)/ruff check --quiet .
	@echo "== types";   $(BIN)/mypy
	@echo "== imports"; $(BIN)/lint-imports --no-logo
	@echo "== images";  $(BIN)/hadolint --failure-threshold style */Containerfile
	@echo "== layout";  $(PYTEST) -q tests/unit/test_layout.py tests/unit/test_tidy.py

test: check ## check, the tests, and those against the real vLLM, API server, Prometheus and browser
	@echo "== tests"
	@$(PYTEST) -q $(SLOWEST) $(PARALLEL)
	@echo "== model"
	@$(BIN)/sternpost model fetch
	@echo "== tests against vLLM"
	@tests/support/clients/install.sh >/dev/null
	@$(PYTEST) -q $(SLOWEST) $(PARALLEL) -m "engine and not kube and not slow"
	@echo "== tests against an API server"
	@tests/support/apiserver/build.sh >/dev/null
	@tests/support/prometheus/install.sh >/dev/null
	@$(PYTEST) -q $(SLOWEST) -m "kube and not slow"
	@echo "== tests against Prometheus"
	@$(PYTEST) -q $(SLOWEST) -m "prometheus and not kube and not slow"
	@echo "== tests in a browser"
	@tests/support/chromium/install.sh >/dev/null
	@$(PYTEST) -q -m "browser and not slow"

fuzz: $(STAMP) ## Try what must hold for any input; STERNPOST_FUZZ_SECONDS says for how long
	@STERNPOST_FUZZ_SECONDS=$${STERNPOST_FUZZ_SECONDS:-600} $(PYTEST) -q --timeout=0 tests/fuzz

e2e: $(STAMP) ## Every test that needs the real vLLM, the slow ones too
	@$(BIN)/sternpost model fetch
	@tests/support/clients/install.sh >/dev/null
	@$(PYTEST) -q -m "(engine or slow) and not kube"

e2e-kube: $(STAMP) ## Every test that needs a real API server, the slow ones too
	@$(BIN)/sternpost model fetch
	@tests/support/apiserver/build.sh >/dev/null
	@tests/support/prometheus/install.sh >/dev/null
	@$(PYTEST) -q -m kube

bench-quick: $(STAMP) ## Sternpost beside plain vLLM and other routers, in 15 minutes; run again to go on
	@$(BIN)/sternpost model fetch
	@$(BIN)/python -m bench.evaluation --scope quick $(ARGS)

bench: $(STAMP) ## The same with every workload, and more of what is judged, in 90 minutes
	@$(BIN)/sternpost model fetch
	@$(BIN)/python -m bench.evaluation --scope whole $(ARGS)

bench-all: $(STAMP) ## Run every benchmark but the GPU's; make bench-NAME runs one
	@$(BIN)/sternpost model fetch
	@for file in bench/[a-z]*.py bench/*/__main__.py; do \
	  name=$${file#bench/}; name=$${name%/__main__.py}; name=$${name%.py}; \
	  [[ ! "$$name" =~ ^(demo|gpu)$$ ]] || continue; \
	  echo "== $$name"; $(BIN)/python -m "bench.$$name"; done

bench-kill: $(STAMP) ## Time the kill switch by each of its ways, on a real API server
	@tests/support/apiserver/build.sh >/dev/null
	@PYTHONPATH=tests/support $(BIN)/python -m bench.kill $(ARGS)

bench-apply: $(STAMP) ## Time policies from kubectl apply until gateways serve by them, on a real API server
	@tests/support/apiserver/build.sh >/dev/null
	@PYTHONPATH=tests/support $(BIN)/python -m bench.apply $(ARGS)

bench-gpu: $(STAMP) ## Time the reference engine at the shapes of an 8B model; needs a GPU
	@$(BIN)/python -m bench.gpu $(ARGS)

bench-%: $(STAMP)
	@$(BIN)/sternpost model fetch
	@$(BIN)/python -m bench.$* $(ARGS)

docs: $(STAMP) ## Make the references, the benchmarks' page, the chart's copy of the custom resources, and its dashboards
	@$(BIN)/python -m docs.make_crds
	@$(BIN)/python -m docs.make_metrics
	@$(BIN)/python -m docs.make_benchmarks
	@$(BIN)/python -m charts.make_dashboards
	@cp crds/*.yaml charts/sternpost/files/crds/

lint-fix: $(STAMP) ## Format, and mend what ruff can mend
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

clean: ## Remove everything that is made, the virtual environment too
	@rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
