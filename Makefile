PYTHON ?= python3
BIN := .venv/bin
# The package laid out as it is installed, with callbacks/ inside: mypy, import-linter and MkDocs ignore package-dir.
TREE := .venv/tree
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Return freed memory to the system, so that two test processes and what they start fit into 2.5 GB.
# One process begins with the first half of the tests, the other one with the second, so the tests of a file share fixtures.
# Processes that tests start use the bytecode that the first one has compiled, whatever the environment says.
PYTEST := PYTHONDONTWRITEBYTECODE= MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=1000000 $(BIN)/python -m pytest -n auto --dist worksteal

# Reuses the packages of .venv, so that torch is installed once.
THIRDPARTY := .venv-thirdparty
SITE_PACKAGES := -c "import sysconfig; print(sysconfig.get_path('purelib'))"

.PHONY: run test test-all test-thirdparty lint docs format setup tree clean benchmark benchmark-peers

run: setup  ## compare FedAvg and FedNNNN on real handwritten digits: a table and a report
	@$(BIN)/fl-lightning compare configs/demo_suite.yaml --jobs 2

test: lint  ## run what CI runs: documentation, linters, type checks and all tests that are not slow
	$(PYTEST)

test-all: lint  ## also run the slow tests
	$(PYTEST) -m ""

test-thirdparty: $(THIRDPARTY)/ready  ## federate models of six libraries, installed into an environment of its own
	$(THIRDPARTY)/bin/python -m pytest --confcutdir tests/thirdparty tests/thirdparty

lint: tree  # tests/docs builds the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(TREE) && ../bin/lint-imports --no-cache --config ../../pyproject.toml
	MYPYPATH=$(TREE) $(BIN)/mypy --num-workers auto

docs: tree  ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

tree: setup
	@rm -rf $(TREE) && mkdir -p $(TREE)/fl_lightning
	@ln -s $(CURDIR)/fl_lightning/* $(CURDIR)/callbacks $(TREE)/fl_lightning

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: setup  ## time rounds against a plain PyTorch loop and other simulators: a table and a picture
	$(BIN)/python benchmarks/simulators

benchmark-peers: setup  ## set up the environments of the other simulators in .venv-peers
	PYTHON=$(BIN)/python benchmarks/peers.sh

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@echo "Setting up .venv: about 3 minutes and 5.5 GB, because torch comes with CUDA"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

$(THIRDPARTY)/ready: .venv/ready tests/thirdparty/requirements.txt
	@echo "Setting up $(THIRDPARTY): about 1 minute and 1 GB"
	$(BIN)/python -m venv --clear $(THIRDPARTY)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(SITE_PACKAGES))')" \
		> "$$($(THIRDPARTY)/bin/python $(SITE_PACKAGES))/main_environment.pth"
	$(THIRDPARTY)/bin/python -m pip install --constraint constraints.txt --requirement tests/thirdparty/requirements.txt
	@touch $@

clean:
	rm -rf .venv .venv-peers $(THIRDPARTY) build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
