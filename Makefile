# `make demo` and `make test` do everything on a fresh Debian or Ubuntu machine; CONTRIBUTING.md has the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
BIN := .venv/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E)

.PHONY: help install install-dev system-packages demo demo-torch test test-all test-gpu checks docs pictures lint types tests-compiled test-packages unit bench requirements clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

system-packages: ## what the sandbox needs from Debian or Ubuntu, installed where it is missing
	@sandbox/ec2_sandbox/system-packages

install: .venv/.installed ## .venv with the command in .venv/bin/cluster

install-dev: .venv/.installed-dev

.venv/.python: | system-packages
	$(if $(PYTHON),,$(error Python 3.11 or newer was not found; install it (apt-get install python3 python3-venv) or say PYTHON=/path/to/python3.11))
	$(PYTHON) -m venv .venv
	@touch $@

# As pip: the authorities of the system, with that of a company's proxy.
export UV_SYSTEM_CERTS ?= 1

# uv takes two seconds for what takes pip a minute and a half. pip, with its own settings, installs where uv cannot.
define INSTALL
$(BIN)/uv pip install --quiet --python $(1)/bin/python $(2) || { \
	echo "uv cannot install (see above): pip does, which takes longer"; \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2); }
endef

.venv/.installed: .venv/.python requirements/uv.txt requirements/run.txt pyproject.toml sandbox/pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@$(call INSTALL,.venv,--require-hashes -r requirements/run.txt)
	@$(call INSTALL,.venv,--no-deps --no-build-isolation --editable ./sandbox --editable .)
	@touch $@

.venv/.installed-dev: .venv/.installed requirements/dev.txt
	@$(call INSTALL,.venv,--require-hashes -r requirements/dev.txt)
	@touch $@

.venv/.installed-docs: .venv/.installed requirements/docs.txt
	$(BIN)/python -m venv .venv/docs
	@$(call INSTALL,.venv/docs,--require-hashes -r requirements/docs.txt)
	@touch $@

demo: install ## the main job, end to end, on the sandbox
	@examples/demo/mxnet

demo-torch: install ## the same with PyTorch
	@examples/demo/torch

lint: install-dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-dev ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 node  # that of the default image, Ubuntu 22.04

pictures: install-dev ## the documentation's pictures, the recording from a real run in the sandbox
	$(BIN)/python docs/pictures/recording.py
	$(BIN)/python docs/pictures/diagrams.py

docs: .venv/.installed-docs ## the documentation as a site, build/docs/index.html; a broken link is an error
	@.venv/docs/bin/python -m sphinx --quiet --fail-on-warning --nitpicky --jobs auto --conf-dir docs . build/docs

unit: install-dev ## tests that need neither root nor the sandbox
	$(BIN)/pytest -m 'not sandbox and not slow'

# Where it is set, every Python that the tests start, some thousand, would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
# An index that is out of reach for a minute, as when names cannot be resolved, fails nothing.
export PIP_RETRIES ?= 8
# Four processes keep two cores busy while some wait for hosts. A file's tests share what they set up.
PYTEST := $(SUDO) $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder
test: checks ## lint, types, unit, sandbox and end-to-end tests (root or sudo)
	@$(PYTEST) -m 'not slow'

test-all: checks ## also what is slow on purpose
	@$(PYTEST)

coverage: checks ## the lines that no test reaches here; what runs on the sandbox's hosts is not counted
	@$(SUDO) rm -rf build/coverage && mkdir -p build/coverage
	@$(SUDO) $(BIN)/coverage run -m pytest -n 5 --dist loadfile --no-loadscope-reorder -m 'not slow'
	@$(SUDO) $(BIN)/coverage combine --quiet && $(SUDO) $(BIN)/coverage report

test-gpu: install-dev ## what only a GPU can show, on this machine's (NVIDIA's driver, PyTorch); see bench/GPU.md
	@$(BIN)/pytest tests/gpu

test-aws: install ## the main job on your AWS account, below two dollars: says the price, asks; see bench/aws.py
	@$(BIN)/python -m bench.aws

checks: install-dev .venv/.installed-docs
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint types docs tests-compiled test-packages

test-packages: install-dev
	@sandbox/ec2_sandbox/system-packages debootstrap fish g++ tcsh zsh

# Otherwise each of pytest's processes would rewrite the assertions of all tests at once.
tests-compiled: install-dev
	@said=$$($(BIN)/pytest --collect-only --quiet) || { echo "$$said" | tail -n 50; exit 1; }

bench: install-dev ## side-by-side benchmarks; see bench/RESULTS.md
	$(SUDO) $(BIN)/python -m bench

PIN := $(BIN)/uv pip compile --quiet --no-emit-package ec2-sandbox --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links --no-annotate
requirements: install-dev ## pin the requirements anew, with hashes
	$(PIN) --extra build --extra pack -o requirements/run.txt pyproject.toml
	echo uv | $(PIN) -c requirements/run.txt -o requirements/uv.txt -
	$(PIN) --all-extras -c requirements/run.txt -o requirements/dev.txt pyproject.toml
	$(PIN) --fork-strategy fewest --group docs -o requirements/docs.txt

clean: ## remove everything that make made here
	@if [ -x $(BIN)/cluster ]; then $(SUDO) $(BIN)/cluster sandbox stop --yes; fi
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info demo-data demo-model
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
