# `make demo` and `make test` need nothing but Python 3.11 or later.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
EXAMPLES ?= 2000
SCHEDULES ?= 10000
# Processes that run tests. Each file's tests stay in one process.
WORKERS ?= 2
LOCK := pyproject.toml constraints.txt
# constraints.txt pins the build tool too, so install it first and do not let the build download another.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS)

.PHONY: help demo test test-all lint fuzz schedules bench format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' Makefile

demo: .venv/demo.stamp  ## install weft and train PPO on CartPole
	$(BIN)/weft train ppo gymnax:CartPole-v1 --steps 500000

test: lint  ## lint, types and every property, on small sizes and a covering set of the layout matrix
	$(PYTEST)

test-all: lint  ## every test at full size, with the whole layout matrix; run it before a release
	WEFT_TESTS=all $(PYTEST)

lint: .venv/test.stamp  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

fuzz: .venv/test.stamp  ## try EXAMPLES random programs
	WEFT_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q tests/project/test_random_programs.py

schedules: .venv/test.stamp  ## try SCHEDULES thread schedules
	WEFT_EXAMPLES=$(SCHEDULES) $(BIN)/python -m pytest -q tests/runtime/test_schedules.py

bench: .venv/demo.stamp  ## measure the cost of the projection on this machine
	$(BIN)/python benchmarks/core.py

format: .venv/test.stamp  ## format the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and everything that tests and tools wrote
	rm -rf .venv build weft.egg-info .pytest_cache .ruff_cache .hypothesis .test_cache

.venv/demo.stamp: $(LOCK) | $(BIN)/python
	$(INSTALL) setuptools
	$(INSTALL) -e .
	touch $@

.venv/test.stamp: $(LOCK) | $(BIN)/python
	$(INSTALL) setuptools
	$(INSTALL) -e '.[test]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv
