# Two commands do everything: `make run` and `make test`. `make help` lists the rest.
PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    := .venv
BIN     := $(VENV)/bin
DATA    ?= data
SUDO    := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
STAMP   := $(VENV)/.installed
PYTEST  ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-test run cluster test check format bench bench-quick bench-cluster bench-views bench-delay bench-pipeline simulate chaos chaos-kill chaos-groups chaos-transactions chaos-archive clean

help: ## Show what can be done
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

setup: $(STAMP) ## Make .venv with the package in it

setup-test: $(STAMP)-test ## Also what tests and benchmarks need: their libraries, kcat, ZooKeeper, Redis, MariaDB, Java

run: setup ## Start a broker on loopback with its data under ./data
	@$(BIN)/penstock serve --data $(DATA)

cluster: $(STAMP)-cluster ## Start ZooKeeper and three brokers on loopback with their data under ./data/cluster
	@$(BIN)/python -m penstock.cli.cluster --data $(DATA)/cluster

test: setup-test ## Run every test, file by file on two cores
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

check: setup-test ## Lint, types, import rules: under two minutes
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-test ## Bring the code into its form
	$(BIN)/ruff check --fix src tests bench examples
	$(BIN)/ruff format src tests bench examples

bench: setup-test ## Measure Penstock beside Kafka, RabbitMQ, NATS and Redis (about 25 minutes)
	$(BIN)/python -m bench

bench-quick: setup-test ## Measure Penstock beside Kafka (about 6 minutes)
	$(BIN)/python -m bench --quick

bench-cluster: setup-test ## Measure three brokers beside three nodes of Kafka: failover, throughput, recovery (about 12 minutes)
	$(BIN)/python -m bench.clusters

bench-delay: setup-test ## Measure delayed messages beside RocketMQ: memory, lateness, a burst, a restart with ten million pending (about 15 minutes)
	$(BIN)/python -m bench.delay

bench-views: setup-test ## Measure a 1 % view beside filtering in the consumer (about 5 minutes)
	$(BIN)/python -m bench.views

bench-pipeline: setup-test ## Measure the pipeline beside Spark's own Kafka connector, and how the archive grows (about 6 minutes)
	$(BIN)/python -m bench.pipeline

simulate: setup-test ## A thousand simulated clusters with seeded failures (under a minute)
	$(BIN)/python -m tests.simulation --seeds 1000

chaos: setup-test ## Brokers are killed, stopped, cut off, restarted, their disks full and slow, under load (about 6 minutes)
	$(BIN)/python -m tests.chaos

chaos-kill: setup-test ## Kill a broker under load, again and again, and count the messages
	$(BIN)/python -m tests.durability.kill_rounds

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
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq python3-venv; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(STAMP)-cluster: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[cluster]'
	@test -e /usr/share/java/zookeeper.jar || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq zookeeper; }
	@touch $@

$(STAMP)-test: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,dev,bench]'
	@command -v kcat >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq kcat; } || echo "kcat is missing: its tests are skipped"
	@command -v redis-server >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq redis-server; } || echo "Redis is missing: its tests are skipped"
	@command -v mariadbd >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq mariadb-server; } || echo "MariaDB is missing: its tests are skipped"
	@command -v java >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq default-jre-headless; } || echo "Java is missing: tests of the pipeline are skipped"
	@test -e /usr/share/java/zookeeper.jar || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq zookeeper; } || echo "ZooKeeper is missing: its tests are skipped"
	@touch $@
