# Two commands do everything from a bare Python 3.11: `make demo` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
EXAMPLES ?= 2000
SCHEDULES ?= 10000
LOCK := pyproject.toml constraints.txt
# The build tool comes from the constraints too, so it is installed first and not fetched afresh by the build.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation

.PHONY: demo test fuzz schedules bench format clean

demo: .venv/demo.stamp
	$(BIN)/weft train ppo gymnax:CartPole-v1 --steps 500000

test: .venv/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q

fuzz: .venv/test.stamp
	WEFT_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q tests/project/test_random_programs.py

schedules: .venv/test.stamp
	WEFT_EXAMPLES=$(SCHEDULES) $(BIN)/python -m pytest -q tests/runtime/test_schedules.py

bench: .venv/demo.stamp
	$(BIN)/python benchmarks/core.py

format: .venv/test.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build weft.egg-info .pytest_cache .ruff_cache .hypothesis

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
