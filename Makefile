# Needs Python 3.11 or newer with pip and venv, and make; `make setup` brings the rest into .venv, and
# `make demo` only what it runs into .venv-demo.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and tools find each other, and the servers linked by `setup`, by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup venv check test test-long demo bench peers mutants format lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z][a-z -]*:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything the other targets use; does nothing when it is up to date
venv: setup

define need_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "duly needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=python3.12 $(1)" >&2; exit 1; }
endef

# Written last: an installation that broke off half-way is begun again.
$(STAMP): pyproject.toml requirements.lock
	$(call need_python,setup)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check >/dev/null \
		|| { $(BIN)/python -m pip check; echo "requirements.lock does not fit pyproject.toml: make lock" >&2; exit 1; }
	@$(MAKE) --no-print-directory redis tools nginx clients databases pgbouncer
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

# The service is tested behind it.  The package would start a service on port 80: only its files are taken.
.PHONY: nginx
nginx:
	@has_nginx() { PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null; }; \
	if has_nginx; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "unpacking nginx for the tests of the service"; \
		apt-get update -qq; \
		rm -rf $(VENV)/nginx && mkdir -p $(VENV)/nginx && cd $(VENV)/nginx; \
		apt-get download -qq nginx 2>/dev/null && dpkg-deb -x nginx_*.deb . && ln -sf ../nginx/usr/sbin/nginx ../bin/nginx; \
	fi; \
	if has_nginx; then exit 0; fi; \
	echo "no nginx found: the service is not tested behind a proxy; apt-get install nginx" >&2; \
	if [ -n "$$CI" ]; then exit 1; fi

# What makes a client in TypeScript of the OpenAPI document, for a test that uses it.  Without a lock file, which npm
# writes for one platform; every version is exact.
CLIENTS := tests/http/clients/package.json
.PHONY: clients
clients:
	@if cmp -s $(CLIENTS) $(VENV)/clients/installed.json; then exit 0; fi; \
	if ! command -v npm >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "installing npm for the test of generated clients"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null; \
	fi; \
	rm -rf $(VENV)/clients && mkdir -p $(VENV)/clients && cp $(CLIENTS) $(VENV)/clients; \
	if (cd $(VENV)/clients && npm install --silent --no-package-lock --no-audit --no-fund) \
		&& cp $(CLIENTS) $(VENV)/clients/installed.json; then exit 0; fi; \
	echo "no client in TypeScript is tested: apt-get install npm, and make clients" >&2; \
	if [ -n "$$CI" ]; then exit 1; fi

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

# The record is tested behind it.  The package would start a service: only its files are taken, and those of a library
# that few have.
.PHONY: pgbouncer
pgbouncer:
	@has_pgbouncer() { PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null; }; \
	if has_pgbouncer; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "unpacking pgbouncer for the tests of the record"; \
		apt-get update -qq; \
		rm -rf $(VENV)/pgbouncer && mkdir -p $(VENV)/pgbouncer && cd $(VENV)/pgbouncer; \
		apt-get download -qq pgbouncer libc-ares2 libevent-2.1-7 2>/dev/null \
			&& for package in *.deb; do dpkg-deb -x $$package . || exit; done \
			&& printf '#!/bin/sh\nexport LD_LIBRARY_PATH="%s"\nexec "%s" "$$@"\n' \
				"$$(dirname "$$PWD"/usr/lib/*/libcares.so.2)" "$$PWD/usr/sbin/pgbouncer" > ../bin/pgbouncer \
			&& chmod +x ../bin/pgbouncer; \
	fi; \
	if has_pgbouncer; then exit 0; fi; \
	echo "no pgbouncer found: the record is not tested behind a pooler; apt-get install pgbouncer" >&2; \
	if [ -n "$$CI" ]; then exit 1; fi

check: setup ## Lint, check format, types, import directions and script headers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src $(wildcard tests/typing/*.py)
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit/test_scripts.py

# Half of a test's time is spent waiting, so three files run side by side on two cores; what kills processes under load
# and looks at the clock runs by itself.  Each part may be empty (exit code 5), when ARGS choose tests of the other.
PYTEST := $(BIN)/pytest -q
SIDE_BY_SIDE := -n 3 --dist loadfile

test: setup ## Run the tests, without the long ones (ARGS='-k claim' for some of them)
	$(PYTEST) $(SIDE_BY_SIDE) -m "not alone and not long" $(ARGS) || [ $$? = 5 ]
	$(PYTEST) -m "alone and not long" $(ARGS) || [ $$? = 5 ]

test-long: setup ## Run all tests, the long ones too
	$(PYTEST) --long $(SIDE_BY_SIDE) -m "not alone" $(ARGS) || [ $$? = 5 ]
	$(PYTEST) --long -m alone $(ARGS) || [ $$? = 5 ]

# The demo is the first command of many readers, so it installs what it runs and nothing besides: no system package, no
# test tool.  The report needs Spark and a Java, half a gigabyte; REPORT=no does without.  Where `make setup` has been,
# everything is there already.  Everything is a wheel but pyspark, which is published as source only: a wheel is made of
# it with the setuptools of requirements/build.lock, without a compiler, and nothing is fetched that no lock names.
DEMO_VENV := .venv-demo
DEMO_PIP = $(DEMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all:
ifeq ($(REPORT),no)
DEMO_LOCK := requirements/demo.lock
DEMO_STAMP := $(DEMO_VENV)/.installed-demo
DEMO_FLAGS := --no-report
DEMO_BUILD :=
DEMO_NEWS := about 20 MB of packages go into $(DEMO_VENV), once.
else
DEMO_LOCK := requirements/report.lock
DEMO_STAMP := $(DEMO_VENV)/.installed-report
DEMO_FLAGS :=
DEMO_BUILD := --no-binary pyspark --no-build-isolation
DEMO_NEWS := The report at the end needs Spark and a Java: half a gigabyte goes into $(DEMO_VENV), once, in a minute or two. Without it: make demo REPORT=no
endif
ifneq ($(wildcard $(STAMP)),)
DEMO_PYTHON := $(BIN)/python
DEMO_NEEDS :=
else
DEMO_PYTHON := $(DEMO_VENV)/bin/python
DEMO_NEEDS := $(DEMO_STAMP)
endif

demo: $(DEMO_NEEDS) ## See it work: a worker is killed and no job lost; ends with a report (REPORT=no for none, ARGS='--count 200')
	@PYTHONPATH=src $(DEMO_PYTHON) -m duly demo $(DEMO_FLAGS) $(ARGS)

$(DEMO_STAMP): $(DEMO_LOCK) requirements/build.lock
	$(call need_python,demo)
	@echo "$(DEMO_NEWS)"
	test -x $(DEMO_VENV)/bin/python || $(PYTHON) -m venv $(DEMO_VENV)
	$(if $(DEMO_BUILD),$(DEMO_PIP) -r requirements/build.lock)
	$(DEMO_PIP) $(DEMO_BUILD) -r $(DEMO_LOCK)
	@touch $@

bench: setup ## Measure throughput, lateness and memory (ARGS='--help' for a choice)
	$(BIN)/duly bench $(ARGS)

peers: setup ## Compare with other job queues, for hours (ARGS='--quick' for minutes; see docs/explanation/comparison.md)
	$(BIN)/python -m bench.peers $(ARGS)

mutants: setup ## Plant faults and see that the tests notice each (ARGS='--only token' for some of them)
	$(BIN)/python -m tools.mutants $(ARGS)

format: setup ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

# Universal: one lock for every platform and Python that pyproject.toml allows.  No index is written
# into it, so it installs from whichever one pip is set up for, and the hashes hold everywhere.
# Does without `setup`, which refuses a lock that does not fit: the very thing to be mended here.
# What the demo needs is a part of the same lock, at the same versions.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-package duly --custom-compile-command "make lock"
OF_DEMO := --extra server --extra client
OF_REPORT := $(OF_DEMO) --extra spark --extra java

lock: ## Compile requirements.lock and requirements/*.lock after a change of the dependencies (ARGS=--upgrade for newer ones)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(COMPILE) --all-extras --output-file requirements.lock $(ARGS) pyproject.toml
	$(COMPILE) $(OF_DEMO) --constraint requirements.lock --output-file requirements/demo.lock pyproject.toml
	$(COMPILE) $(OF_REPORT) --constraint requirements.lock --output-file requirements/report.lock pyproject.toml
	$(COMPILE) --output-file requirements/build.lock $(ARGS) requirements/build.in

clean: ## Remove .venv, .venv-demo, caches and build output
	rm -rf $(VENV) $(DEMO_VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf bench/peers/.venvs bench/peers/.node bench/peers/.quick
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
