# make demo      set up, train a policy in about a minute, show what came out
# make test      set up, then format, lint, types and the test suite
# make test-slow the tests that take minutes: heavy simulators
# make notebooks execute the notebooks
# make test-latest  contracts and one learning test on a newer Python with the newest JAX it allows

SHELL := bash
VENV ?= .venv
BIN := $(VENV)/bin
# The first Python of a supported version that really runs (a shim of a version manager may only pretend to).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
DEMO ?= runs/demo
PYTEST := timeout 3000 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: setup demo test lint types suite test-slow notebooks test-latest docs clean

setup: $(VENV)/.complete

$(VENV)/.complete: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "jaxppo needs Python 3.11, 3.12 or 3.13; name one with PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	@rm -rf $(DEMO)
	$(BIN)/jaxppo train --preset demo --run $(DEMO)
	$(BIN)/jaxppo eval $(DEMO)
	@echo "A trained policy: $(DEMO)/checkpoints, its learning curve: $(DEMO)/learning_curve.png, the table: $(DEMO)/metrics.csv"

test: setup lint types suite

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# A type checker does not follow the mapping of envs/ to jaxppo.envs in an editable install: check an installed copy.
types: setup
	@rm -rf build/types
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/types .
	$(BIN)/pyright --project pyrightconfig.json

suite: setup
	$(PYTEST) -m "not slow and not notebook"

test-slow: setup
	$(PYTEST) -m slow

notebooks: setup
	timeout 1200 $(BIN)/python -m pytest tests/test_notebooks.py -m notebook

test-latest:
	bash tests/latest.sh

docs: setup
	$(BIN)/python -m experiments.report

clean:
	rm -rf build .pytest_cache .ruff_cache
