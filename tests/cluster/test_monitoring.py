"""Dashboard and alert rules against three brokers that do everything that is measured, and a real Prometheus."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from support.cluster import Cluster
from support.delayed import Arrivals, delayed, send
from support.deploy import PROMETHEUS, RULES, expressions, rules, series
from support.ports import free_ports
from support.programs import dying_with_us, environment, required_program
from support.waiting import until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    "cluster.heal_after_ms": 600_000,
    "groups.offsets_partitions": 3,
    "transactions.state_partitions": 3,
    "log.retention_check_ms": 200,
}
TOPIC = "orders"
RECORDS = 30
OF_OTHERS = ("penstock_database_", "penstock_authorization_denied", "penstock_logins")
"""Series that these brokers do not have: of databases (`sql/test_group_failover.py` looks at them), permissions
(`security/test_acl_clients.py`) and logins (`security/test_sasl_attacks.py`).
"""


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("monitoring")
    with Cluster(folder, f"{zookeeper.address}/monitoring", settings=SETTINGS) as made:
        work(made)
        yield made


def work(cluster: Cluster) -> None:
    """Something of everything: a lagging group, transactions, delayed messages, an archived topic, a view."""
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    archived = {"penstock.archive.group": "archive"}
    view = {"penstock.view.of": TOPIC, "penstock.view.tags": "checkout"}
    admin.create_topics([NewTopic(TOPIC, 3, 3, config=archived), NewTopic("single", 3, 1)])[TOPIC].result()
    admin.create_topics([NewTopic("checkouts", config=view)])["checkouts"].result()
    producer = Producer({"bootstrap.servers": cluster.kafka, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"x", partition=number % 3)
        producer.produce("single", b"x", partition=number % 3)
    assert producer.flush(30) == 0
    send(cluster.kafka, TOPIC, [delayed(b"soon", "100"), delayed(b"later", "1h")])
    with Arrivals(cluster.kafka, TOPIC) as arrivals:
        # Of the first partition, where the delayed ones are too.
        arrivals.until(RECORDS // 3 + 1)
    transactional = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": "billing", "log_level": 0})
    transactional.init_transactions(30)
    transactional.begin_transaction()
    transactional.produce(TOPIC, b"x")
    transactional.commit_transaction(30)
    for group, topics in (("billing", (TOPIC, "single")), ("archive", (TOPIC,)), ("shown", ("checkouts",))):
        consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": group, "log_level": 0})
        places = [TopicPartition(topic, number, 1) for topic in topics for number in range(3)]
        try:
            consumer.commit(offsets=places, asynchronous=False)
        finally:
            consumer.close()


def samples(cluster: Cluster) -> set[str]:
    """The names of all samples of all brokers."""
    return {
        sample.name
        for broker in cluster.brokers.values()
        for family in text_string_to_metric_families(broker.get("/metrics"))
        for sample in family.samples
    }


def test_every_series_that_dashboard_and_rules_use_is_shown_by_a_broker(cluster: Cluster) -> None:
    used = {name for name in series() if not name.startswith(OF_OTHERS)}
    assert len(used) > 50
    until(lambda: used <= samples(cluster), "all of them have values")


class PrometheusProcess:
    """Prometheus with our rules, scraping brokers every second."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"
        text = PROMETHEUS.read_text().replace("15s", "1s").replace(RULES.name, str(RULES))
        for number, target in enumerate(targets):
            text = text.replace(f"127.0.0.1:{8092 + number}", target)
        (folder / "prometheus.yml").write_text(text)
        command = [
            required_program("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._address}",
        ]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(dying_with_us(command), stdout=log, stderr=log, env=environment())

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                raise  # it is starting
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return len(self.ask("query", query="up == 1")["result"]) == 3
        except OSError:
            return False

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusProcess]:
    started = PrometheusProcess(
        tmp_path_factory.mktemp("prometheus"), [broker.http for broker in cluster.brokers.values()]
    )
    try:
        until(started.is_up, "all three brokers are scraped")
        yield started
    finally:
        started.close()


def test_prometheus_answers_every_panel_and_evaluates_every_rule(
    cluster: Cluster, prometheus: PrometheusProcess
) -> None:
    def asked_for(expression: str) -> str:
        query = expression.replace("$__rate_interval", "10s").replace("$job", "penstock").replace("$instance", ".*")
        # Panels leave out what is at rest: here the question is whether there are series at all.
        return query.removesuffix(" > 0")

    def answered(expression: str) -> bool:
        return bool(prometheus.ask("query", query=asked_for(expression))["result"])

    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    for name, expression in expressions():
        if name in alerts or any(each in expression for each in OF_OTHERS):
            prometheus.ask("query", query=asked_for(expression))
        else:
            until(lambda asked=expression: answered(asked), f"{name} shows something: {expression}")

    def evaluated() -> list[dict[str, Any]]:
        found = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        return found if all(rule["health"] == "ok" for rule in found) else []

    found = until(evaluated, "every rule was evaluated")
    assert len(found) == len(rules())
    assert [rule["name"] for rule in found if rule.get("state") == "firing"] == []


def test_the_lag_of_a_group_is_known_wherever_its_partitions_are(
    cluster: Cluster, prometheus: PrometheusProcess
) -> None:
    def lag(group: str) -> float:
        found = prometheus.ask("query", query=f'penstock:group_lag:sum{{group="{group}"}}')["result"]
        return float(found[0]["value"][1]) if found else -1

    # Two topics, of which one has a single replica of each partition, somewhere; of a view the coordinator knows it.
    ends = 2 * RECORDS - 6
    until(lambda: lag("billing") >= ends, "the lag over all brokers is known")
    until(lambda: lag("shown") > 0, "that of a view too")


def test_alerts_fire_when_a_broker_dies(cluster: Cluster, prometheus: PrometheusProcess) -> None:
    number = cluster.leader("single")
    cluster.kill(number)

    def active() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}

    wanted = {"PenstockBrokerDown", "PenstockUnderReplicatedPartitions", "PenstockOfflinePartitions"}
    until(lambda: wanted <= active(), "the alerts are pending")
    cluster.start_again(number)
    until(lambda: not wanted & active(), "they are over")
