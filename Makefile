# The project's verbs. Each makes what it needs: on a fresh machine `make demo` or `make test` is the only command.

VENV ?= .venv
PYTEST_ARGS ?=
SUPPORTED = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
ifndef PYTHON
PYTHON := $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c "$(SUPPORTED)" 2>/dev/null && echo $$python && break; done)
endif

BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

# The peers have an environment of their own, so that none of them meets the tests.
BENCH_VENV ?= .venv-bench
BENCH_ARGS ?=
CHAOS_ARGS ?= --page
SOAK_ARGS ?=
FUZZ_ARGS ?=
BENCH_INSTALLED = $(BENCH_VENV)/.installed

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo run test test-servers check format lint contracts types django bench chaos soak fuzz docs clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## make the virtual environment (PYTHON=python3.12 and VENV=… to choose)

$(INSTALLED): requirements.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: name one with PYTHON=/path/to/python"; exit 2; }
	@"$(PYTHON)" -c "$(SUPPORTED)" || { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13"; exit 2; }
	"$(PYTHON)" -m venv --clear "$(VENV)"
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch "$@"

demo: $(INSTALLED) ## open the flash sale, send shoppers and scripts, print the report
	@"$(BIN)/python" manage.py demo

run: $(INSTALLED) ## the same site, left running until Ctrl-C
	@"$(BIN)/python" manage.py demo --serve

test: check ## all checks, then every test (PYTEST_ARGS="-k rates" to choose)
	"$(BIN)/pytest" $(PYTEST_ARGS)

test-servers: $(INSTALLED) ## what touches a server, on the one that TEST_SERVER names, such as /usr/bin/redis-server
	@test -n "$(TEST_SERVER)" || { echo "Name a server: make test-servers TEST_SERVER=/usr/bin/redis-server"; exit 2; }
	TEST_SERVER="$(TEST_SERVER)" "$(BIN)/pytest" tests/store tests/test_limiter.py tests/test_publishing.py \
		tests/test_offences.py tests/test_promotion.py tests/integration/test_exactness.py $(PYTEST_ARGS)

check: lint contracts types django ## everything that is checked without running a test

format: $(INSTALLED) ## rewrite the code in the house's form
	"$(BIN)/ruff" check --fix-only --quiet .
	"$(BIN)/ruff" format .

lint: $(INSTALLED) ## formatting and lint
	"$(BIN)/ruff" format --check .
	"$(BIN)/ruff" check .

contracts: $(INSTALLED) ## who may import whom
	@"$(BIN)/lint-imports"

types: $(INSTALLED) ## mypy, strict
	"$(BIN)/mypy"

django: $(INSTALLED) ## system checks and missing migrations
	"$(BIN)/python" manage.py check --fail-level WARNING
	"$(BIN)/python" manage.py makemigrations --check --dry-run

bench: $(BENCH_INSTALLED) ## what one decision costs, beside a bare script call and beside other limiters
	@"$(BENCH_VENV)/bin/python" -m benchmarks $(BENCH_ARGS)

$(BENCH_INSTALLED): benchmarks/requirements.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: name one with PYTHON=/path/to/python"; exit 2; }
	"$(PYTHON)" -m venv --clear "$(BENCH_VENV)"
	"$(BENCH_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@touch "$@"

chaos: $(INSTALLED) ## break Redis, network, clocks and processes, and see what holds (CHAOS_ARGS="--short killed" to choose)
	@"$(BIN)/python" -m tests.chaos $(CHAOS_ARGS)

soak: $(BENCH_INSTALLED) ## ten minutes of a busy site: memory, file descriptors and latency, drawn
	@"$(BENCH_VENV)/bin/python" -m tests.chaos.soak $(SOAK_ARGS)

fuzz: $(INSTALLED) ## 240,000 hostile inputs for addresses, rates and keys (FUZZ_ARGS="--inputs 1000000" for more)
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -r tests/fuzz/requirements.txt || \
		echo "atheris cannot be installed here: hypothesis draws every input"
	@"$(BIN)/python" -m tests.fuzz $(FUZZ_ARGS)

docs: $(INSTALLED) ## links, headings and names of the documentation
	"$(BIN)/pytest" tests/test_docs.py

clean: ## remove what the verbs have made
	rm -rf .venv .venv-bench .demo build dist *.egg-info .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
