# Everything runs in .venv, which the first command makes.
SHELL := /bin/bash
PYTHON ?= python3
# for `make wheels` it is the version of a Python elsewhere
BASE = $(if $(filter wheels,$(MAKECMDGOALS)),python3,$(patsubst 3.%,python3.%,$(PYTHON)))
SWEEP ?= quick
BUDGET ?=
MACHINE ?=
MACHINES ?=
SHARD ?=
ADDRESS ?=
WITH ?=
PY := .venv/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
CHOSEN = $(if $(MACHINE),--machine $(MACHINE)) $(if $(MACHINES),--machines $(MACHINES))
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help report test torture sweep status render pdf markdown calibrate publish lab wheels clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: .venv/ready ## Measure this machine with the quick sweep, then write reports/report.html
	@$(PY) -m lib.sweep quick; ended=$$?; [ $$ended -le 1 ] || exit $$ended; \
	  $(PY) -m lib.report $(if $(MACHINES),--machines $(MACHINES)) && exit $$ended

test: .venv/dev .venv/cluster .venv/browser ## Check the style and run the tests
	@$(PY) -m ruff check && $(PY) -m ruff format --check && .venv/bin/lint-imports && OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

torture: .venv/dev .venv/cluster ## Run the tests of faults in full, half an hour; print what was injected, survived and lost
	@TORTURE=1 OMP_NUM_THREADS=1 $(PY) -m pytest tests/torture tests/sweep/test_ray_cluster.py -n 2 --dist worksteal

sweep: .venv/ready ## Measure: SWEEP=smoke, quick or gpu; BUDGET=seconds, DRY=1, STALE=1, RETRY=1, SHARD=k/n, ADDRESS=host:port
	@$(PY) -m lib.sweep $(SWEEP) $(if $(BUDGET),--budget $(BUDGET)) $(if $(filter-out 0,$(DRY)),--dry) \
	  $(if $(filter-out 0,$(STALE)),--stale) $(if $(filter-out 0,$(RETRY)),--retry) \
	  $(if $(SHARD),--shard $(SHARD)) $(if $(ADDRESS),--address $(ADDRESS))

status: .venv/ready ## Say how far the sweeps are that run on these results
	@$(PY) -m lib.sweep status

render: .venv/ready ## Write reports/report.html from the records there are; MACHINE=name picks another, MACHINES="a b" several; CHECK=1 only compares
	@$(PY) -m lib.report $(CHOSEN) $(if $(filter-out 0,$(CHECK)),--check)

pdf: .venv/ready .venv/browser ## Write reports/report.pdf too, by Chromium; MACHINE=name as for render
	@$(PY) -m lib.report pdf $(CHOSEN)

markdown: .venv/ready ## Write reports/report.md and reports/figures too, for a repository's page; MACHINE=name
	@$(PY) -m lib.report markdown $(CHOSEN)

calibrate: .venv/ready ## Try the measuring itself on this machine: known times, another timer, equal programs
	@$(PY) -m lib.experiments.calibration && $(PY) -m lib.report.self_check

publish: .venv/ready ## Let the records of reports/results replace those of their experiments in reports/reference, to be kept in git
	@$(PY) -m lib.report publish

lab: .venv/ready ## Open JupyterLab on notebooks/explore.ipynb, the other notebooks beside it
	@.venv/bin/jupyter lab notebooks/explore.ipynb --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

wheels: .venv/ready ## Collect in .whl what a PyTorch image lacks to run the notebooks, for a box without a registry: PYTHON=3.12; WITH="scipy"
	@$(PY) -m lib.sweep.wheels $(or $(filter 3.%,$(PYTHON)),3.12) $(or $(PROCESSOR),x86_64) $(WITH)

clean: ## Remove the report and the executed notebooks; records, figures that were saved and .venv stay
	@rm -rf reports/runs reports/chapters reports/report.{html,pdf,md} reports/figures/[0-9]*.svg

# Built whole or not at all: what fails half-way is removed, and only the last step makes `ready`.
.venv/ready: pyproject.toml constraints.txt
	@$(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv, once; this takes a few minutes"
	@rm -rf .venv
	@{ $(BASE) -m venv .venv && $(INSTALL) . && touch $@; } || { rm -rf .venv; exit 1; }

# What only those need who change the code: the tests and the tools that check the style.
.venv/dev: .venv/ready
	@$(INSTALL) '.[dev]' && touch $@

# The tests have a cluster on this machine, where Ray has a build for its Python.
.venv/cluster: .venv/ready
	@$(INSTALL) '.[cluster]' && touch $@ || echo "Ray cannot be installed here: no clusters, and their tests are skipped"

# A Chromium prints the report, and the tests look at it there: the system's, else Debian's package, else Playwright's.
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
	@$(HAS_BROWSER) && touch $@ || echo "No Chromium can be installed here: no PDF, and the tests that need it are skipped"
