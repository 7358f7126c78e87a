# Two commands do everything: `make run` and `make test`; `make check` is for every change. Nothing here needs root.
# Stamp files under .make/ remember what was installed from which inputs, so that a second run is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNELS := $(wildcard $(foreach room,core core/* core/*/* gateway/* spark,$(room)/*.pyx $(room)/*.pxd))
BUILD_INPUTS := pyproject.toml setup.py $(KERNELS)
# How long `make fuzz` may take altogether.
SECONDS_TOTAL := $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60)
TEST_ARGS ?=
# Processes that share the tests; 0 runs them in pytest's own, for a debugger. Unit tests mostly compute; the whole
# suite waits for servers and their clocks half of its time.
WORKERS ?=
CORES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
UNIT_WORKERS := $(or $(WORKERS),$(shell expr $(CORES) + 1))
SUITE_WORKERS := $(or $(WORKERS),$(shell expr 2 \* $(CORES) + 1))
PYTEST := $(BIN)/python -m pytest --maxprocesses=8 --dist=loadscope
DEV_ARGS ?=
BENCH_ARGS ?=

# Where it is set, each process that the tests start would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run debug check test lint types unit suite fuzz bench wheel wheels clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 10

run: .make/run  ## build and start the whole stack on loopback (motelog dev)
	@$(BIN)/motelog dev $(DEV_ARGS)

debug: .make/test  ## a Python prompt with a gateway in memory: send packets, see what it does
	@$(BIN)/python -m tests.debug

check: .make/test  ## lint, types, unit and repository tests, at once: about 40 seconds on two cores
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint types unit

test: .make/test  ## lint, types and every test, the conformance tests among them
	@$(MAKE) --no-print-directory --jobs=3 lint types suite

lint: .make/test  ## ruff and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache

types: .make/test  ## mypy --strict
	@$(BIN)/mypy

unit: .make/test  ## unit and repository tests alone; their files are in memory (make test: on the disk)
	@TMPDIR="$$(.ci/memory-folder)" $(PYTEST) --numprocesses=$(UNIT_WORKERS) --quiet tests/unit tests/repo

suite: .make/test  ## the tests alone; TEST_ARGS='-k store' selects
	@.ci/java-note
	@$(PYTEST) --numprocesses=$(SUITE_WORKERS) $(TEST_ARGS)

fuzz: .make/test  ## kernels and whole servers under AddressSanitizer and UBSan; SECONDS=60 in all
	@.ci/fuzz $(BIN)/python $(SECONDS_TOTAL)

bench: .make/test  ## write docs/bench/table.md: beside mosquitto and bare floors; BENCH_ARGS='--no-store' only prints
	@$(BIN)/python -m motelog.loadtest.bench.table $(or $(BENCH_ARGS),--output docs/bench/table.md)

wheel: .make/test  ## build the source distribution, and the wheel from it, in dist
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist .

wheels: .make/wheels  ## build the source distribution, and wheels for x86-64 and ARM from it, in dist
	@rm -rf dist
	@.ci/wheels $(BIN)/python

clean:  ## remove everything that was built, and the virtual environment
	rm -rf $(VENV) .make build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find bridge core gateway loadtest spark -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what the commands above need

.make/checked:
	@.ci/check-tools $(PYTHON)
	@mkdir -p .make && touch $@

.make/venv: | .make/checked
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

.make/run: .make/venv $(BUILD_INPUTS)
	@echo "building kernels and installing (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.make/test: .make/venv $(BUILD_INPUTS)
	@echo "building kernels and installing with every extra (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[spark,loadtest,test,dev]'
	@touch $@ .make/run

.make/wheels: .make/test .ci/wheels.txt
	@echo "installing a compiler for both processors (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement .ci/wheels.txt
	@touch $@
