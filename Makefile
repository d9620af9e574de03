# Two commands do everything: `make run` and `make test`. `make help` lists the rest.
# The first of these that is a Python that Penstock supports; any other by `make run PYTHON=...`.
PYTHON  ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo $$name && break; done)
VENV    := .venv
BIN     := $(VENV)/bin
DATA    ?= data
SUDO    := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
STAMP   := $(VENV)/.installed
PYTEST  ?=
# More than two cores can do at once: many tests wait, for a lease or for a process that starts.
WORKERS ?= 5
FAST    := tests/unit tests/contract tests/scenarios tests/simulation tests/suite
MINUTES ?= 60
BROKERS ?= 3
SEED    ?= 1
PROVE_MINUTES ?= 5

# Else each of the many processes that tests start would compile the package again, and each worker the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-test run cluster test test-fast check format generated-files docs console-pictures bench bench-quick bench-guard bench-cluster bench-views bench-sql bench-delay bench-pipeline bench-partitions bench-console simulate simulate-scale chaos soak prove-sql prove-direct chaos-kill chaos-groups chaos-transactions chaos-archive chaos-bridge clean

help: ## Show what can be done
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

setup: same-python $(STAMP) ## Make .venv with the package in it

setup-test: $(STAMP)-test ## Also what tests and benchmarks need: their libraries, kcat, ZooKeeper, Redis, MariaDB, PostgreSQL, Java, Prometheus

run: same-python $(STAMP)-console ## Start a broker and the console on loopback, with their data under ./data
	@$(BIN)/penstock serve --data $(DATA) --console

cluster: $(STAMP)-cluster ## Start ZooKeeper and three brokers on loopback with their data under ./data/cluster
	@$(BIN)/python -m penstock.cli.serve.local_cluster --data $(DATA)/cluster

test: setup-test ## Run every test, with more workers than cores: make test WORKERS=8
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST)

test-fast: setup-test ## Run the tests that need no cluster, no Spark and no waiting: under two minutes
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST) $(FAST)

check: setup-test ## Lint, types, import rules: under two minutes
	$(BIN)/ruff check src tests bench examples deploy docgen
	$(BIN)/ruff format --check src tests bench examples deploy docgen
	$(BIN)/mypy
	$(BIN)/python -m deploy --check
	$(BIN)/python -m docgen --check
	$(BIN)/lint-imports

format: setup-test ## Bring the code into its form
	$(BIN)/ruff check --fix src tests bench examples deploy docgen
	$(BIN)/ruff format src tests bench examples deploy docgen

generated-files: setup ## Write the dashboard, the alert rules and the reference pages that follow from the code
	$(BIN)/python -m deploy
	$(BIN)/python -m docgen

docs: $(STAMP)-docs ## Build the documentation into build/site; fails on a broken link or an unlisted page
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "read it with: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

console-pictures: setup-test ## Take the pictures of docs/console again (about 3 minutes)
	$(BIN)/python -m tests.browser.pictures docs/console

bench: setup-test ## Measure Penstock beside Kafka, RabbitMQ, NATS and Redis (about 25 minutes)
	$(BIN)/python -m bench

bench-quick: setup-test ## Measure Penstock beside Kafka (about 6 minutes)
	$(BIN)/python -m bench --quick

bench-guard: setup-test ## Fail if a request or a gigabyte costs the broker more CPU than before (about a minute)
	$(BIN)/python -m bench.guard

bench-cluster: setup-test ## Measure three brokers beside three nodes of Kafka: failover, throughput, recovery (about 12 minutes)
	$(BIN)/python -m bench.clusters

bench-delay: setup-test ## Measure delayed messages beside RocketMQ: memory, lateness, a burst, a restart with ten million pending (about 15 minutes)
	$(BIN)/python -m bench.delay

bench-views: setup-test ## Measure a 1 % view beside filtering in the consumer (about 5 minutes)
	$(BIN)/python -m bench.views

bench-sql: setup-test ## Measure topics in MariaDB, PostgreSQL and SQLite beside plain SQL, with and without brokers, and the pause when a broker dies (about 25 minutes)
	$(BIN)/python -m bench.sql
	$(BIN)/python -m bench.sql_direct
	$(BIN)/python -m bench.sql_failover

bench-partitions: setup-test ## Measure topics of 1,000 to 10,000 partitions beside Kafka: create, delete, start, stop, and other clients meanwhile (about 5 minutes)
	$(BIN)/python -m bench.partitions --kafka

bench-console: setup-test ## Measure the console over 10,000 partitions, 1,000 groups and 10 million messages: pages, memory, requests (about 8 minutes)
	$(BIN)/python -m bench.console

bench-pipeline: setup-test ## Measure the pipeline beside Spark's own Kafka connector, and how the archive grows (about 6 minutes)
	$(BIN)/python -m bench.pipeline

simulate: setup-test ## A thousand simulated clusters with seeded failures (under a minute)
	$(BIN)/python -m tests.simulation --seeds 1000

simulate-scale: setup-test ## Metadata of 1,000 brokers and 1,000,000 partitions in one process: what losing a broker costs (about 2 minutes)
	$(BIN)/python -m bench.scale

chaos: setup-test ## Brokers are killed, stopped, cut off, restarted, their disks full and slow, under load (about 6 minutes)
	$(BIN)/python -m tests.chaos

soak: setup-test ## The same for as long as it is told: make soak MINUTES=60 BROKERS=5 SEED=7
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --brokers $(BROKERS) --seed $(SEED) --lease 3

prove-sql: setup-test ## 32 writers on one partition in MariaDB, then in PostgreSQL, while brokers and the database are killed; a primary is lost (about 14 minutes)
	$(BIN)/python -m tests.sql_proof --database mysql --seed $(SEED)
	$(BIN)/python -m tests.sql_proof --database postgresql --seed $(SEED)
	$(BIN)/python -m tests.sql_proof.primary_loss

prove-direct: setup-test ## Clients without a broker killed at random while MariaDB restarts; then brokers and clients on one partition (about 12 minutes): make prove-direct PROVE_MINUTES=5 SEED=7
	$(BIN)/python -m tests.direct_proof --minutes $(PROVE_MINUTES) --seed $(SEED)
	$(BIN)/python -m tests.direct_proof --minutes $(PROVE_MINUTES) --seed $(SEED) --brokers 2

chaos-kill: setup-test ## Kill a broker under load, again and again, and count the messages
	$(BIN)/python -m tests.durability.kill_rounds

chaos-bridge: setup-test ## Kill two delay bridges on Apache Kafka at random under 100,000 messages; then their throughput beside one row at a time (about 12 minutes)
	$(BIN)/python -m tests.bridge --seed $(SEED)
	$(BIN)/python -m tests.bridge --compare

chaos-groups: setup-test ## Fifty members of one group come, go and crash under load (about 4 minutes)
	$(BIN)/python -m tests.groups.many_members

chaos-transactions: setup-test ## Kill workers and a broker in the middle of transactions, and compare output with input (about 4 minutes)
	$(BIN)/python -m tests.transactions.exactly_once

chaos-archive: setup-test ## Kill archivers and replays, at every step and at random, and compare with what was sent (about 7 minutes)
	$(BIN)/python -m tests.spark.archive_kills --rounds 60
	$(BIN)/python -m tests.spark.archive_kills --rounds 10 --on-spark
	$(BIN)/python -m tests.spark.replay_kills --rounds 8

clean: ## Remove .venv and caches; data stays
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; name one by PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq python3-venv; }
	$(PYTHON) -m venv $(VENV)

.PHONY: same-python
same-python: $(BIN)/python
ifeq ($(origin PYTHON),command line)
	@test "$$($(PYTHON) -V)" = "$$($(BIN)/python -V)" || { \
		echo "$(VENV) has $$($(BIN)/python -V), not the Python that was asked for: run 'make clean' first"; exit 1; }
endif

$(STAMP): $(BIN)/python pyproject.toml constraints.txt | same-python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(STAMP)-console: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[console]'
	@touch $@

$(STAMP)-cluster: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[cluster]'
	@test -e /usr/share/java/zookeeper.jar || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq zookeeper; }
	@touch $@

$(STAMP)-docs: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(STAMP)-test: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,dev,bench]'
	@command -v kcat >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq kcat; } || echo "kcat is missing: its tests are skipped"
	@command -v chromium >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq chromium fonts-inter fonts-jetbrains-mono fonts-noto-cjk; } || echo "Chromium is missing: the console's browser tests are skipped"
	@command -v redis-server >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq redis-server; } || echo "Redis is missing: its tests are skipped"
	@command -v mariadbd >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq mariadb-server; } || echo "MariaDB is missing: its tests are skipped"
	@# Without the cluster that the package makes and starts: tests have their own. The file is left as it was.
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq postgresql-common \
		&& $(SUDO) sed -i.penstock 's/^#*create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf \
		&& ( $(SUDO) apt-get install -yq postgresql; done=$$?; $(SUDO) mv /etc/postgresql-common/createcluster.conf.penstock /etc/postgresql-common/createcluster.conf; exit $$done ); } || echo "PostgreSQL is missing: its tests are skipped"
	@command -v java >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq default-jre-headless; } || echo "Java is missing: tests of the pipeline are skipped"
	@test -e /usr/share/java/zookeeper.jar || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq zookeeper; } || echo "ZooKeeper is missing: its tests are skipped"
	@command -v systemd-analyze >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq systemd; } || echo "systemd is missing: tests of its unit are skipped"
	@# Unpacked, not installed: the package would start a server.
	@command -v promtool >/dev/null || test -x $(VENV)/tools/usr/bin/promtool || { $(SUDO) apt-get update -q && mkdir -p $(VENV)/tools && cd $(VENV)/tools && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb; } || echo "Prometheus is missing: its tests are skipped"
	@touch $@
