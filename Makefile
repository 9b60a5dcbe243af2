# Everything runs in .venv, which the first command makes.
SHELL := /bin/bash
PYTHON ?= python3
# what other programs export under these names is not meant for us
NAMES := MACHINE SWEEP ROUNDS BUDGET SHARD ADDRESS RETRY STALE DRY
$(foreach name,$(NAMES),$(if $(filter environment,$(origin $(name))),$(eval $(name) :=)))
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
OFF := 0 no false off n No False Off N NO FALSE OFF
# what a sweep takes from the command line
OPTIONS = $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(SHARD),--shard $(SHARD)) \
  $(if $(ADDRESS),--address $(ADDRESS)) $(if $(filter-out $(OFF),$(RETRY)),--retry) \
  $(if $(filter-out $(OFF),$(STALE)),--stale) $(if $(filter-out $(OFF),$(DRY)),--dry)
# also after a sweep with a case that failed; not where nothing is new
THEN_RENDER = ended=$$?; [ $$ended -le 1 ] || exit $$ended; { $(PY) -m lib.sources || $(PY) -m lib.report; } && exit $$ended
CHOSEN = $(if $(MACHINE),--machine $(MACHINE))
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
# several pips at once would break one environment
.NOTPARALLEL:
.PHONY: help report test torture sweep status render pdf publish peers lab clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: .venv/ready ## Measure this machine for 15 to 30 minutes and write reports/report.html; ROUNDS=5 narrows its intervals, BUDGET=seconds ends it early
	@$(PY) -m lib.sweep report $(OPTIONS); $(THEN_RENDER)

test: .venv/dev .venv/cluster .venv/peers .venv/triton .venv/browser ## Check the style and run the tests
	@$(PY) -m ruff check && $(PY) -m ruff format --check && $(PY) .venv/bin/lint-imports && OMP_NUM_THREADS=1 $(PY) -m pytest -n 3 --dist worksteal

torture: .venv/dev .venv/cluster .venv/triton ## Kill kernels and sweeps, fill the disk, damage files; print how many faults were injected, and after how many something was lost
	@TORTURE=1 OMP_NUM_THREADS=1 $(PY) -m pytest tests/torture -n 2 --dist worksteal

sweep: .venv/ready ## Run SWEEP=quick, cpu, gpu, ...; ROUNDS=n, BUDGET=seconds, SHARD=k/n, ADDRESS=host:port, RETRY=1, STALE=1, DRY=1
	@$(PY) -m lib.sweep '$(SWEEP)' $(OPTIONS)

status: .venv/ready ## Show how far the sweeps are, and count the records
	@$(PY) -m lib.sweep status

render: .venv/ready ## Write reports/report.html from the records, also where nothing is new; MACHINE="a b" tells of a, with b beside it
	@$(PY) -m lib.report $(CHOSEN)

pdf: .venv/ready .venv/browser ## Also print reports/report.pdf, with Chromium
	@$(PY) -m lib.report pdf $(CHOSEN)

publish: .venv/ready ## Write the records and the report to reports/reference, which git keeps
	@$(PY) -m lib.report publish $(CHOSEN)

peers: .venv/peers ## Time our training step in pairs with that of Hugging Face transformers, then render
	@$(PY) -m lib.sweep peers $(OPTIONS); $(THEN_RENDER)

lab: .venv/ready ## Open JupyterLab on notebooks/explore.ipynb
	@PYTHONPATH="$$PWD"$${PYTHONPATH:+:$$PYTHONPATH} $(PY) -m jupyterlab notebooks/explore.ipynb --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

clean: ## Remove the report and the executed notebooks; the records and .venv stay
	@rm -rf reports/runs reports/report.{html,pdf}

# A setup that fails is removed, and only the last step creates `ready`.
FOREIGN = .venv is not of this Makefile: move it away, or install this package into it and touch .venv/ready
.venv/ready: pyproject.toml constraints.txt
	@[ ! -e .venv ] || [ -e .venv/ready ] || [ -e .venv/begun ] || { echo '$(FOREIGN)'; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv; this takes a few minutes, once. $(SIZE)"
	@rm -rf .venv
	@{ mkdir .venv && touch .venv/begun && '$(PYTHON)' -m venv .venv && $(if $(TORCH_INDEX),$(PIP) --no-deps --index-url '$(TORCH_INDEX)' torch &&) $(INSTALL) . && touch $@; } || { rm -rf .venv; exit 1; }

# Tools for development: tests and style checks.
.venv/dev: .venv/ready
	@$(INSTALL) '.[dev]' && touch $@

# Ray, for sweeps on several boxes and for a cluster on this machine in the tests, if it supports this Python.
.venv/cluster: .venv/ready
	@$(INSTALL) '.[cluster]' && touch $@ || echo "Ray cannot be installed here; the tests that need it are skipped"

# Hugging Face transformers, whose Llama is timed beside our model.
.venv/peers: .venv/ready
	@$(INSTALL) '.[peers]' && touch $@ || echo "transformers cannot be installed here; what needs it is skipped"

# Triton, which compiles and, without a GPU, interprets our kernels.
.venv/triton: .venv/ready
	@$(INSTALL) '.[triton]' && touch $@ || echo "Triton cannot be installed here; the tests that need it are skipped"

# Chromium prints the report and shows it to the tests: the installed one, else Debian's package, else Playwright's.
HAS_BROWSER = $(PY) -c 'import sys; from lib.report.__main__ import browser; sys.exit(not browser())'
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
