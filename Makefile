# Everything runs in .venv, which the first command makes.
SHELL := /bin/bash
PYTHON ?= python3
# for `make wheels`, PYTHON is the version on the other machine
BASE = $(if $(filter wheels,$(MAKECMDGOALS)),python3,$(patsubst 3.%,python3.%,$(PYTHON)))
SWEEP ?= report
BUDGET ?=
NOISY ?=
MACHINE ?=
MACHINES ?=
SHARD ?=
ADDRESS ?=
WITH ?=
# pip's index is the user's own; this one is for PyTorch alone, which may be another build
TORCH_INDEX ?=
# the wheel of torch 2.13.0 for Python 3.12 in pip's default index; its metadata name CUDA's libraries beside it
PLATFORM := $(shell uname -sm | tr ' ' -)
WHEEL_Linux-x86_64 := 530 MB, and CUDA's libraries take more
WHEEL_Linux-aarch64 := 430 MB, and CUDA's libraries take more
WHEEL_Darwin-arm64 := 110 MB
SIZE = $(if $(TORCH_INDEX),PyTorch comes from TORCH_INDEX,PyTorch is a download of $(or $(WHEEL_$(PLATFORM)),unknown size))
PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALL := $(PIP) --editable
CHOSEN = $(if $(MACHINE),--machine $(MACHINE)) $(if $(MACHINES),--machines $(MACHINES))
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help report test torture sweep status render pdf markdown calibrate publish peers lab wheels clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: .venv/ready ## Measure this machine with the quick sweep for its device, an hour at most, and write reports/report.html
	@$(PY) -m lib.sweep report --budget $(or $(BUDGET),3600) --noisy 90; ended=$$?; [ $$ended -le 1 ] || exit $$ended; \
	  $(PY) -m lib.experiments.calibration --short || ended=1; \
	  $(PY) -m lib.report $(if $(MACHINES),--machines $(MACHINES)) && exit $$ended

test: .venv/dev .venv/cluster .venv/peers .venv/triton .venv/browser ## Check the style and run the tests
	@$(PY) -m ruff check && $(PY) -m ruff format --check && .venv/bin/lint-imports && OMP_NUM_THREADS=1 $(PY) -m pytest -n 3 --dist worksteal

torture: .venv/dev .venv/cluster .venv/triton ## Run all fault tests (half an hour); print how many faults were injected, survived and lost
	@TORTURE=1 OMP_NUM_THREADS=1 $(PY) -m pytest tests/torture tests/sweep/test_ray_cluster.py tests/flash -n 2 --dist worksteal

sweep: .venv/ready ## Run a sweep: SWEEP=report, smoke, quick, quick-gpu, cpu, gpu or unclear.yaml; BUDGET=seconds, DRY=1, STALE=1, RETRY=1, NOISY=seconds, SHARD=k/n, ADDRESS=host:port
	@$(PY) -m lib.sweep $(SWEEP) $(if $(BUDGET),--budget $(BUDGET)) $(if $(NOISY),--noisy $(NOISY)) $(if $(filter-out 0,$(DRY)),--dry) \
	  $(if $(filter-out 0,$(STALE)),--stale) $(if $(filter-out 0,$(RETRY)),--retry) \
	  $(if $(SHARD),--shard $(SHARD)) $(if $(ADDRESS),--address $(ADDRESS))

status: .venv/ready ## Show the progress of the sweeps on these results
	@$(PY) -m lib.sweep status

render: .venv/ready ## Write reports/report.html from the records; MACHINE=name or MACHINES="a b" choose machines, CHECK=1 only compares
	@$(PY) -m lib.report $(CHOSEN) $(if $(filter-out 0,$(CHECK)),--check)

pdf: .venv/ready .venv/browser ## Also write reports/report.pdf, with Chromium; MACHINE=name
	@$(PY) -m lib.report pdf $(CHOSEN)

markdown: .venv/ready ## Also write reports/report.md and reports/figures, for GitHub and the like; MACHINE=name
	@$(PY) -m lib.report markdown $(CHOSEN)

calibrate: .venv/ready ## Check the measurement itself: known times, another timer, equal programs
	@$(PY) -m lib.experiments.calibration && $(PY) -m lib.report.self_check

publish: .venv/ready ## Copy the records in reports/results to reports/reference, which git keeps; replaces those of the same experiments
	@$(PY) -m lib.report publish

peers: .venv/peers ## Time our training step beside that of Hugging Face transformers, in pairs, and print them
	@$(PY) -m lib.sweep peers; ended=$$?; [ $$ended -le 1 ] || exit $$ended; $(PY) -m lib.chapters.peers && exit $$ended

lab: .venv/ready ## Open JupyterLab on notebooks/explore.ipynb
	@.venv/bin/jupyter lab notebooks/explore.ipynb --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

wheels: .venv/ready ## Download wheels into .whl for a PyTorch machine without a package registry; PYTHON=3.12, WITH="scipy"
	@$(PY) -m lib.sweep.wheels $(or $(filter 3.%,$(PYTHON)),3.12) $(or $(PROCESSOR),x86_64) $(WITH)

clean: ## Remove the report and the executed notebooks; records, saved figures and .venv stay
	@rm -rf reports/runs reports/chapters reports/report.{html,pdf,md} reports/figures/[0-9]*.svg

# A setup that fails is removed, and only the last step creates `ready`.
.venv/ready: pyproject.toml constraints.txt
	@$(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv; this takes a few minutes, once. $(SIZE)"
	@rm -rf .venv
	@{ $(BASE) -m venv .venv && $(if $(TORCH_INDEX),$(PIP) --no-deps --index-url '$(TORCH_INDEX)' torch &&) $(INSTALL) . && touch $@; } || { rm -rf .venv; exit 1; }

# Tools for development: tests and style checks.
.venv/dev: .venv/ready
	@$(INSTALL) '.[dev]' && touch $@

# Ray, for a cluster on this machine in the tests, if it supports this Python.
.venv/cluster: .venv/ready
	@$(INSTALL) '.[cluster]' && touch $@ || echo "Ray cannot be installed here; the tests that need it are skipped"

# Hugging Face transformers, whose Llama is timed beside our model.
.venv/peers: .venv/ready
	@$(INSTALL) '.[peers]' && touch $@ || echo "transformers cannot be installed here; what needs it is skipped"

# Triton, which compiles and, without a GPU, interprets our kernels.
.venv/triton: .venv/ready
	@$(INSTALL) '.[triton]' && touch $@ || echo "Triton cannot be installed here; the tests that need it are skipped"

# Chromium prints the report and shows it to the tests: the installed one, else Debian's package, else Playwright's.
HAS_BROWSER = $(PY) -c 'import sys; from lib.report.document import export; sys.exit(not export.chromium())'
BY_DEBIAN = [ "$$(id -u)" = 0 ] && grep -qsx ID=debian /etc/os-release && apt-get -qq update && \
  apt-get -qq install --yes --no-install-recommends chromium > /dev/null
BY_PLAYWRIGHT = $(MAKE) -s .venv/dev && $(PY) -m playwright install --no-shell chromium && \
  printf '\#!/bin/sh\nexec "%s" "$$@"\n' "$$($(PY) -c '$(PLAYWRIGHTS)')" > .venv/bin/chromium && \
  chmod +x .venv/bin/chromium && .venv/bin/chromium --version > /dev/null || { rm -f .venv/bin/chromium; false; }
PLAYWRIGHTS = from playwright.sync_api import sync_playwright as run; print(run().start().chromium.executable_path)
.venv/browser: export DEBIAN_FRONTEND = noninteractive
.venv/browser: export PLAYWRIGHT_BROWSERS_PATH = $(CURDIR)/.venv/share/browsers
.venv/browser: .venv/ready
	@$(HAS_BROWSER) || { $(BY_DEBIAN); } || { $(BY_PLAYWRIGHT); } || true
	@$(HAS_BROWSER) && touch $@ || echo "Chromium cannot be installed here; there is no PDF, and the tests that need it are skipped"
