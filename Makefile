PYTHON ?= python3
BIN := .venv/bin
TYPES := .venv/types/fl_lightning
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test test-all lint format setup clean

run: setup  ## FedAvg beside FedNNNN on real handwritten digits: a table, a report
	@$(BIN)/fl-lightning compare configs/suites/demo.yaml --jobs 2

test: lint  ## what CI runs: linters, types, all tests that are not slow
	$(BIN)/python -m pytest -n auto

test-all: lint  ## slow tests too
	$(BIN)/python -m pytest -n auto -m ""

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Type checkers do not know that callbacks/ installs as fl_lightning.callbacks: they get links laid out as installed.
	@rm -rf $(TYPES) && mkdir -p $(TYPES) && ln -s $(CURDIR)/fl_lightning/* $(CURDIR)/callbacks $(TYPES)
	MYPYPATH=$(TYPES)/.. $(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@echo "Setting up .venv: about 3 minutes and 5.5 GB, for torch comes with CUDA"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
