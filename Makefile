# Everything a newcomer and a CI job need. Each target sets up what it uses; the second time that takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Checks look at the code, not at somebody's settings.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-slow check format bench gpu clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

run: $(READY)  ## the quickstart: a real verdict in a few minutes
	$(BIN)/fp8migrate run configs/quickstart.yaml

test: $(READY)  ## the test suite, one of each kind (under five minutes)
	$(BIN)/python -m pytest --numprocesses auto

test-slow: $(READY)  ## the long tests: calibration, twenty kills, whole plans
	$(BIN)/python -m pytest -m slow

check: $(READY)  ## ruff, mypy, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)  ## lay the code out
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## benchmarks, each against its peer in the same run
	$(BIN)/python -m tests.benchmarks

gpu: $(READY)  ## tests that need a CUDA GPU
	$(BIN)/python -m pytest -m gpu

clean:  ## everything that make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist
