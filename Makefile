# Every target sets up what it needs and asks no questions. `make` alone lists the targets.

PYTHON ?= python3
ARGS ?=
STORE ?= sqlite
SEEDS ?= 2000

VENV := .venv
BIN := $(VENV)/bin
PEERS := build/peers
# The lock pins uv, too.
UV := $(shell grep -o '^uv==[0-9.]*' requirements.lock)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# The lock brings the servers, so a test that finds none has failed; elsewhere it is skipped.
export DURABUS_REQUIRE_SERVERS := 1
# The tests start hundreds of processes. Without its caches, Python would compile every module for each of them again.
unexport PYTHONDONTWRITEBYTECODE

# Thousands of tests wait for a disk. Memory that looks like one spares them that, where it has room and may hold programs.
RAM_DISK := $(shell awk '$$2 == "/dev/shm" && $$4 !~ /noexec/ { print $$2 }' /proc/mounts 2>/dev/null)
RAM_DISK := $(if $(RAM_DISK),$(shell df -Pk $(RAM_DISK) | awk 'END { if ($$4 > 12 * 1024 * 1024) print $$6 }'))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install check check-types check-style compiled-tests java-classes browser test coverage long races chaos soak sim sim-mutants mutants chaos-pipeline fuzz demo demo-cluster bench bench-peers bench-pipeline format lock clean FORCE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.installed ## Create .venv with the locked dependencies and durabus itself (PYTHON=python3.13)

check: install ## Lint, format, types, import contracts
	@$(MAKE) --no-print-directory -j 2 check-types check-style

# mypy takes as long as all the others together.
check-types:
	$(BIN)/mypy

check-style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo --no-cache

test: install ## Everything that must pass: check, then all tests but those of `make long`
	@$(MAKE) --no-print-directory -j 2 check-types browser check-style compiled-tests java-classes
	$(if $(RAM_DISK),TMPDIR=$(RAM_DISK)) $(BIN)/pytest -q -n 6 --no-loadscope-reorder -m 'not long' $(ARGS)

# Otherwise each process of the tests would compile all modules and rewrite all assertions for itself.
compiled-tests:
	-@$(BIN)/pytest --collect-only -q -m 'not long' > /dev/null

# Spark reads its classes from one file then. Without it the tests run as well, but for longer.
java-classes:
	-@$(BIN)/python -m tests.pipeline.spark_home

# On Debian this installs Chromium if it is absent. Without a browser, the tests that need one say so.
browser:
	-@$(BIN)/python -m tests.dashboard.chromium

coverage: install browser ## Run the tests, and report which lines and branches of src/durabus none of them takes
	$(BIN)/coverage erase
	$(if $(RAM_DISK),TMPDIR=$(RAM_DISK)) $(BIN)/coverage run -m pytest -q -n 6 --no-loadscope-reorder -m 'not long' $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

long: install browser ## The same at full length: more random sequences, more records, more kills
	$(BIN)/pytest -q -m long $(ARGS)

races: install ## Only the tests that start and kill real processes
	$(BIN)/pytest -m processes $(ARGS)

chaos: install ## Kill workers, servers and connections for some minutes, and check every promise (STORE=postgresql, ARGS=--quick)
	$(BIN)/python -m tests.lab $(STORE) $(ARGS)

soak: install ## A steady load with kills, in which nothing may grow (STORE=postgresql, ARGS='--seconds 3600')
	$(BIN)/python -m tests.lab.soak $(STORE) $(ARGS)

sim: install ## Simulate a fleet in virtual time under crashes, freezes and a bad network (SEEDS=2000, ARGS='--seed 17')
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

sim-mutants: install ## Plant the classic bugs of queues, and see which seed of the simulation catches each
	$(BIN)/python -m tests.simulation.mutants

mutants: install ## Plant one change after the other in the source, and expect the test that is named for it to fail (ARGS='Redis')
	$(BIN)/python -m tests.mutants $(ARGS)

chaos-pipeline: install ## Kill the pipeline 20 times at random points while 8 processes write, on two stores (ARGS='-k late')
	DURABUS_PIPELINE_KILLS=20 $(BIN)/pytest -q -m long tests/pipeline/test_kill.py $(ARGS)

fuzz: install ## Make up patterns, payloads and texts, then thousands of requests to the HTTP API; check every answer (ARGS=500 a route)
	$(BIN)/python -m pytest -q --hypothesis-profile=fuzz tests/unit
	$(BIN)/python -m tests.api.fuzz $(ARGS)

demo: install ## Watch durabus survive a killed worker (STORE=postgresql, KEEP=1 stays up with the dashboard, ARGS=--help)
	$(BIN)/durabus demo --pipeline --store $(STORE) $(if $(KEEP),--stay) $(ARGS)

bench: install ## Measure throughput and latency (ARGS=--help)
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(PEERS)/.installed ## Measure durabus and its peers on one server, in one run (ARGS='--store redis', PYTHON=python3.13)
	$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

demo-cluster: install ## Run the pipeline on a standalone Spark cluster of a master and two workers on this host
	$(BIN)/python examples/pipeline_cluster.py

bench-pipeline: install ## Measure the pipeline against the plain ways from a store to Delta (ARGS=--help)
	$(BIN)/python -m benchmarks.pipeline $(ARGS)

format: install ## Format the code and repair what ruff can repair
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock: ## Rewrite requirements.lock from pyproject.toml (ARGS=--upgrade takes newer releases)
	@set -e; \
	tools=$$(mktemp -d); \
	trap 'rm -rf "$$tools"' EXIT; \
	export PIP_FIND_LINKS= UV_FIND_LINKS=; \
	$(PYTHON) -m venv "$$tools/venv"; \
	"$$tools/venv/bin/pip" install --quiet '$(UV)'; \
	"$$tools/venv/bin/uv" pip compile pyproject.toml --extra postgres --extra redis --extra nats --extra kafka --extra server --extra client \
		--extra spark --extra servers --extra cli --group dev --group bench \
		--universal --python-version 3.11 --generate-hashes \
		--python "$$tools/venv/bin/python" --no-config --cache-dir "$$tools/cache" \
		--custom-compile-command 'make lock' --output-file requirements.lock --quiet $(ARGS)

clean: ## Remove .venv, caches and build results
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests $(wildcard benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: a new lock makes a new environment, a new pyproject.toml only installs durabus again.
# The first stamp names the interpreter and the folder, because an environment works in no other place.
FINGERPRINT := $(PYTHON) $(CURDIR)
ifneq ($(shell test -x $(BIN)/python && cat $(VENV)/.locked 2>/dev/null),$(FINGERPRINT))
$(VENV)/.locked: FORCE
endif

$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("durabus needs Python 3.11 or newer: make PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	awk '/^uv==/, !/\\$$/' requirements.lock > $(VENV)/uv.lock
	$(BIN)/pip install --quiet --require-hashes -r $(VENV)/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@echo '$(FINGERPRINT)' > $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/pip check --quiet
	@touch $@

# The newest peers, so no lock; the newest pip, because older ones know no groups. oban is left out below Python 3.12; arq
# and saq need an older redis-py.
$(PEERS)/.installed: pyproject.toml
	rm -rf $(PEERS)
	$(PYTHON) -m venv --upgrade-deps $(PEERS)
	$(PEERS)/bin/pip install --quiet --editable '.[cli,postgres,redis,servers]' --group bench --group peers
	$(PYTHON) -m venv $(PEERS)/older
	$(PEERS)/older/bin/pip install --quiet --editable . arq 'saq[redis,hiredis]'
	@touch $@
