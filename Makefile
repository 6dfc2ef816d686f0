# covertfl: `make help` lists what can be made.
PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SOURCES := $(wildcard src/covertfl/*/_*.c src/covertfl/*/_*.h)

.DEFAULT_GOAL := help
# Tests start many processes: modules are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow test-deploy test-browser test-timing attack mutants soak check format bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The environment is created again when its definition changes.
$(READY): pyproject.toml setup.py constraints.txt $(SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "covertfl needs Python 3.11 or newer")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,text,simulation,report,service,dev]"
	touch $@

demo: $(READY)  ## train covertly, show what an eavesdropper gets; the page goes to out/demo
	$(BIN)/covertfl demo --out out/demo

# In their order, or files with a single long test would come last and leave a core idle.
TWO_FILES := -n 2 --dist loadfile --no-loadscope-reorder

test: $(READY)  ## run the tests, two files at a time
	$(BIN)/python -m pytest $(TWO_FILES)

test-slow: $(READY)  ## run the long tests: statistics over many runs, whole experiments
	$(BIN)/python -m pytest $(TWO_FILES) -m slow

test-deploy: $(READY)  ## run the tests that start a Flower federation on this machine
	$(BIN)/python -m pytest -m deployment

test-browser: $(READY)  ## look at pages in Chromium, where it is installed
	$(BIN)/python -m pytest -m browser

test-timing: $(READY)  ## let a client try to tell true queries from decoys by times and sizes
	$(BIN)/python benchmarks/measure_timing.py

attack: $(READY)  ## attack the scheme and the server with many seeds, print what was gained
	$(BIN)/python benchmarks/run_attacks.py

mutants: $(READY)  ## inject known bugs one at a time, list those that no test notices
	$(BIN)/python scripts/mutants.py known

soak: $(READY)  ## run a service for 5,000 rounds, kill services and servers many times, search policies often
	$(BIN)/python benchmarks/soak_service.py --write
	COVERTFL_SOAK=1 $(BIN)/python -m pytest -m 'slow or deployment' tests/service tests/engines/flower/test_crash.py \
		tests/engines/flower/test_gathering.py tests/solvers/spga/test_score.py

check: $(READY)  ## lint, format and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## format the code and apply the linter's automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BENCH)/.ready: pyproject.toml setup.py constraints.txt $(SOURCES) benchmarks/requirements.txt
	$(PYTHON) -m venv --clear $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --editable .
	$(BENCH)/bin/python -m pip install --quiet --requirement benchmarks/requirements.txt
	touch $@

bench: $(BENCH)/.ready  ## compare with other solvers and the last run, write docs/benchmarks.md and docs/scale.md
	$(BENCH)/bin/python benchmarks/run.py --write --history benchmarks/history.jsonl

clean:  ## remove environments, caches and output
	rm -rf $(VENV) $(BENCH) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
