# Every task of this repository, one target each. `make` alone lists them.
#
# A target is listed by the help if a `##` comment follows it. Everything but `help` and `clean` depends on
# `setup`, so that each target works on a fresh clone without any preparation.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# Only those that exist, so that a target does not fail for a directory nobody needed yet.
CODE := $(wildcard src tests benchmarks examples tools)

# Spark starts `python3` for its workers unless it is told otherwise, and that one has none of our dependencies.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)

# Hundreds of processes of the tests import the same modules, and half of that time compiles them.
unexport PYTHONDONTWRITEBYTECODE

# Number of pytest workers: the simulator keeps one core busy for each of them.
JOBS ?= 2

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- Environment ----------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP) ## Create .venv and install the pinned dependencies and the project into it

# make compares times, the stamp compares contents: a checkout that only touches the files installs nothing. The
# stamp names the directory too, because an editable install points at the place where the repository was.
# With flock (Linux) a second make waits for the first one and then finds its work done.
# Of 15,000 modules most are never imported, so pip compiles none of them: whoever imports one does.
$(STAMP): requirements.txt pyproject.toml
	@mkdir -p $(VENV)
	@if command -v flock >/dev/null; then exec 9>$(VENV)/.lock; flock 9; fi; \
	wanted="$$(cat requirements.txt pyproject.toml | cksum) $(CURDIR)"; \
	if [ -x $(PY) ] && [ "$$(cat $@ 2>/dev/null || true)" = "$$wanted" ]; then touch $@; exit 0; fi; \
	rm -f $@; \
	base=""; \
	for candidate in python3.11 python3 python; do \
		if command -v $$candidate >/dev/null \
			&& $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then base=$$candidate; break; fi; \
	done; \
	if [ -z "$$base" ]; then \
		echo "error: Penstock needs Python 3.11 or newer, and none of python3.11, python3 and python is one." >&2; exit 1; \
	fi; \
	if ! $(PY) -m pip --version >/dev/null 2>&1; then \
		echo "Creating $(VENV) with $$($$base --version)"; \
		rm -rf $(VENV)/bin $(VENV)/lib $(VENV)/pyvenv.cfg; \
		$$base -m venv $(VENV) || { echo "error: could not create $(VENV); on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	fi; \
	echo "Installing the dependencies of requirements.txt"; \
	$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.txt; \
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	echo "$$wanted" > $@

# --- Checks ---------------------------------------------------------------------------------------------------

.PHONY: lint
lint: setup ## Check style and formatting with ruff
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)

.PHONY: typecheck
typecheck: setup ## Check the types of the package with mypy --strict
	$(PY) -m mypy src/penstock

# The order is given by the recipe and not by prerequisites: with `make -j` pytest's summary must still come last.
.PHONY: test
test: setup ## Run everything that must pass before a change is merged
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory typecheck
	$(PY) -m pytest -n $(JOBS)

.PHONY: test-fast
test-fast: setup ## Run the unit tests only
	$(PY) -m pytest -q tests/unit

.PHONY: coverage
coverage: setup ## Show that the tests cover every branch of the protocol
	$(PY) -m coverage run --branch --source=src/penstock/protocol -m pytest -q tests/unit/protocol
	$(PY) -m coverage report --fail-under=100 -m

.PHONY: simulate
simulate: setup ## Run the simulator on all cores: SEEDS=300 of them, or one SEED=n; ONLY=scenario
	$(PY) -m tests.simulation --seeds $(or $(SEEDS),300) $(if $(filter command line,$(origin JOBS)),--jobs $(JOBS)) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

.PHONY: fuzz
fuzz: setup ## Run random pipelines against plain models: SEEDS=300 of them, or one SEED=n with its story
	$(PY) -m tests.fuzz --jobs $(JOBS) --seeds $(or $(SEEDS),300) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED))

.PHONY: rescale-matrix
rescale-matrix: setup ## Run every rescale pair in the simulator, SEEDS=1 of each; about ten minutes
	$(PY) -m tests.simulation --matrix --seeds $(or $(SEEDS),1)

.PHONY: mutants
mutants: setup ## Plant known defects one at a time and see each one caught; ONLY=name, CHANGED=revision, NEW=1, RECORD=1
	$(PY) -m tests.mutants --jobs $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(CHANGED),--changed $(CHANGED)) $(if $(NEW),--new) $(if $(RECORD),--record)

# --- Documents ------------------------------------------------------------------------------------------------

# NO_MKDOCS_2_WARNING: the theme warns of a version of MkDocs that pyproject.toml excludes.
.PHONY: docs
docs: setup ## Build the users' site into site/, without network; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "Open site/index.html"

# --- Housekeeping ---------------------------------------------------------------------------------------------

.PHONY: format
format: setup ## Format the code and fix what ruff can fix
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

.PHONY: clean
clean: ## Remove the environment and everything that was generated
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov build dist site
	rm -rf src/*.egg-info spark-warehouse metastore_db derby.log
	find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +

# --- On Spark -------------------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## Run a pipeline on local Spark, kill its workers twice, and verify what came out
	@$(PY) examples/demo.py

.PHONY: demo-kafka
demo-kafka: setup ## The same between two topics of Kafka, with a broker that is killed too; needs Maven for its jars
	@$(PY) -m tests.kafka.demo

.PHONY: bench
bench: setup ## Measure Penstock beside its peers, in turns: RUNS=3 of each; ONLY=name. The peers install themselves
	@$(PY) -m benchmarks --runs $(or $(RUNS),3) $(if $(ONLY),--only "$(ONLY)")
	@$(PY) -m benchmarks --write

.PHONY: bench-quick
bench-quick: setup ## One run of Penstock and of Flink: keyed sum, windows, checkpoints under backpressure
	@$(PY) -m benchmarks --quick

.PHONY: nexmark
nexmark: setup ## Ask all questions of Nexmark, beside Flink: RUNS=3 of each; ONLY=q5; EVENTS=10000000
	@$(PY) -m benchmarks.nexmark --runs $(or $(RUNS),3) $(if $(ONLY),--only $(ONLY)) $(if $(EVENTS),--events $(EVENTS))

.PHONY: chaos
chaos: setup ## Kill workers at random for MINUTES=1 and verify that nothing was lost
	@$(PY) -m tests.chaos --minutes $(or $(MINUTES),1)

.PHONY: rescale
rescale: setup ## Rescale pipelines on local Spark, killed while they recover: RUNS=1 of each pair; ONLY=pair
	@$(PY) -m tests.rescale --runs $(or $(RUNS),1) $(if $(ONLY),--only $(ONLY))

.PHONY: large-recovery
large-recovery: setup ## Recover MIB=2048 of in-flight data on local Spark, in bounded memory
	@$(PY) -m tests.large_recovery --mib $(or $(MIB),2048)
