# Needs Python 3.11 or newer with pip and venv, and make; `make setup` brings the rest into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and tools find each other, and the servers linked by `setup`, by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup venv check test test-long demo bench peers format lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z][a-z -]*:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything the other targets use; does nothing when it is up to date
venv: setup

# Written last: an installation that broke off half-way is begun again.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "duly needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=python3.12 setup" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check >/dev/null \
		|| { $(BIN)/python -m pip check; echo "requirements.lock does not fit pyproject.toml: make lock" >&2; exit 1; }
	@$(MAKE) --no-print-directory redis tools databases
	@touch $@

# The store tests also run on Debian's redis-server (7.0 in bookworm).  The package of that name would
# enable a system service and start it; redis-tools carries the same binary, which acts by the name that
# it is called by, and no service.
.PHONY: redis
redis:
	@if command -v redis-server >/dev/null; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing redis-tools for the store tests"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-tools >/dev/null; \
		ln -sf "$$(command -v redis-check-rdb)" $(BIN)/redis-server; \
	fi; \
	if command -v redis-server >/dev/null && redis-server --version; then exit 0; fi; \
	echo "no redis-server found: the store tests run on the embedded Valkey only" >&2; \
	if [ -n "$$CI" ]; then exit 1; fi

# What the example workers in other languages are run with.
.PHONY: tools
tools:
	@for pair in curl:curl node:nodejs; do \
		command -v $${pair%:*} >/dev/null && continue; \
		if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
			echo "installing $${pair#*:} for the example workers"; \
			apt-get update -qq; \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $${pair#*:} >/dev/null; \
		fi; \
		command -v $${pair%:*} >/dev/null && continue; \
		echo "no $${pair%:*} found: the example worker that needs it is not tested; apt-get install $${pair#*:}" >&2; \
		if [ -n "$$CI" ]; then exit 1; fi; \
	done

# The record is tested on these, too: the tests start them themselves.  Debian's postgresql would make a cluster
# and start its service at once, unless it is told not to; MariaDB's core packages have no service.
.PHONY: databases
databases:
	@has_postgresql() { command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; }; \
	has_mariadb() { PATH="$$PATH:/usr/sbin" command -v mariadbd >/dev/null; }; \
	if has_postgresql && has_mariadb; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing postgresql and mariadb-server-core for the tests of the record"; \
		apt-get update -qq; \
		mkdir -p /etc/postgresql-common; \
		test -e /etc/postgresql-common/createcluster.conf \
			|| echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			postgresql mariadb-server-core mariadb-client-core >/dev/null; \
	fi; \
	if has_postgresql && has_mariadb; then exit 0; fi; \
	echo "the record is tested on SQLite only: apt-get install postgresql mariadb-server-core mariadb-client-core" >&2; \
	if [ -n "$$CI" ]; then exit 1; fi

check: setup ## Lint, check format, types, import directions and script headers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src $(wildcard tests/typing/*.py)
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit/test_scripts.py

# Half of a test's time is spent waiting, so two files run side by side; what kills processes under load and looks at
# the clock runs by itself.  Each part may be empty (exit code 5), when ARGS choose tests of the other.
PYTEST := $(BIN)/pytest -q
SIDE_BY_SIDE := -n 2 --dist loadfile

test: setup ## Run the tests, without the long ones (ARGS='-k claim' for some of them)
	$(PYTEST) $(SIDE_BY_SIDE) -m "not alone and not long" $(ARGS) || [ $$? = 5 ]
	$(PYTEST) -m "alone and not long" $(ARGS) || [ $$? = 5 ]

test-long: setup ## Run all tests, the long ones too
	$(PYTEST) --long $(SIDE_BY_SIDE) -m "not alone" $(ARGS) || [ $$? = 5 ]
	$(PYTEST) --long -m alone $(ARGS) || [ $$? = 5 ]

demo: setup ## See it work: jobs run on time although a worker is killed, and a report (ARGS='--count 200')
	$(BIN)/duly demo $(ARGS)

bench: setup ## Measure throughput, lateness and memory (ARGS='--help' for a choice)
	$(BIN)/duly bench $(ARGS)

peers: setup ## Compare with other job queues, for hours (ARGS='--quick' for minutes; see docs/explanation/comparison.md)
	$(BIN)/python -m bench.peers $(ARGS)

format: setup ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

# Universal: one lock for every platform and Python that pyproject.toml allows.  No index is written
# into it, so it installs from whichever one pip is set up for, and the hashes hold everywhere.
# Does without `setup`, which refuses a lock that does not fit: the very thing to be mended here.
lock: ## Compile requirements.lock after a change of the dependencies (ARGS=--upgrade for newer ones)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
		--no-emit-index-url --no-emit-package duly --custom-compile-command "make lock" \
		--output-file requirements.lock $(ARGS) pyproject.toml

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf bench/peers/.venvs bench/peers/.node bench/peers/.quick
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
