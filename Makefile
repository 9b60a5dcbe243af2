# Everything runs in .venv, which the first command makes.
SHELL := /bin/bash
PYTHON ?= python3
SWEEP ?= quick
BUDGET ?=
MACHINE ?=
MACHINES ?=
PY := .venv/bin/python
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help report test torture sweep wheels render pdf markdown calibrate publish lab clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: .venv/ready ## Measure this machine with the quick sweep, then write reports/report.html
	@$(PY) -m lib.sweep quick
	@$(PY) -m lib.report $(if $(MACHINES),--machines $(MACHINES))

test: .venv/ready ## Check the style and run the tests
	@$(PY) -m ruff check && $(PY) -m ruff format --check && OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup

torture: .venv/ready ## Run the tests of faults in full, half an hour, and print what was injected, survived and lost
	@TORTURE=1 OMP_NUM_THREADS=1 $(PY) -m pytest -m faults

sweep: .venv/ready ## Measure: SWEEP=smoke, quick or gpu; BUDGET=seconds stops early; DRY=1 lists the cases
	@$(PY) -m lib.sweep $(SWEEP) $(if $(BUDGET),--budget $(BUDGET)) $(if $(filter-out 0,$(DRY)),--dry)

wheels: ## Collect in .whl what a GPU box without a package registry lacks: PYTHON=3.12 is the one there; WITH="scipy pandas"
	@$(MAKE) --no-print-directory PYTHON=$(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)) .venv/ready
	@$(PY) -m lib.wheels $(if $(filter 3.%,$(PYTHON)),--python $(PYTHON)) $(WITH)

render: .venv/ready ## Write reports/report.html from the records there are; MACHINE=name picks another; CHECK=1 only compares
	@$(PY) -m lib.report $(if $(MACHINE),--machine $(MACHINE)) $(if $(MACHINES),--machines $(MACHINES)) \
	  $(if $(filter-out 0,$(CHECK)),--check)

pdf: .venv/ready ## Write reports/report.pdf too, by the system's Chromium; MACHINE=name as for render
	@$(PY) -m lib.export pdf $(if $(MACHINE),--machine $(MACHINE)) $(if $(MACHINES),--machines $(MACHINES))

markdown: .venv/ready ## Write reports/report.md and reports/figures too, for a repository's page; MACHINE=name
	@$(PY) -m lib.export markdown $(if $(MACHINE),--machine $(MACHINE)) $(if $(MACHINES),--machines $(MACHINES))

calibrate: .venv/ready ## Try the measuring itself on this machine: known times, another timer, equal programs
	@$(PY) -m lib.calibrate

publish: .venv/ready ## Copy this machine's records to reports/reference, to be kept in git
	@$(PY) -m lib.publish

lab: .venv/ready ## Open JupyterLab on notebooks/explore.ipynb, the other notebooks beside it
	@.venv/bin/jupyter lab notebooks/explore.ipynb --notebook-dir=notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

clean: ## Remove the report and the executed notebooks; records, figures that were saved and .venv stay
	@rm -rf reports/runs reports/chapters reports/report.{html,pdf,md} reports/figures/[0-9]*.svg

# Built whole or not at all: what fails half-way is removed, and only the last step makes `ready`.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv, once; this takes a few minutes"
	@rm -rf .venv
	@{ $(PYTHON) -m venv .venv && $(PY) -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable . && touch $@; } || { rm -rf .venv; exit 1; }
