"""Alerts on delayed messages that are late, and on replicas of databases that are behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from penstock.admin import Cluster
from penstock.clock import SystemClock
from penstock.console.alerts.alert_rule import AlertKind, AlertRule, breaches
from penstock.console.console import Console
from penstock.sql.passwords import new_key
from support.broker_process import BrokerProcess
from support.replicated import MariaDbPair
from support.waiting import until

from .conftest import BASE, CLUSTER, app_of, console_settings, csrf_of, sign_in_once

HOUR_MS = 3_600_000


class FastClock(SystemClock):
    """Of a console whose host is two hours ahead: to it, what brokers deliver in an hour is an hour late."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * HOUR_MS


@pytest.fixture
def opened(broker: BrokerProcess, tmp_path: Path) -> Iterator[tuple[Console, TestClient]]:
    console = Console(console_settings(broker.kafka, tmp_path), FastClock())
    with TestClient(app_of(console), base_url=BASE) as client:
        sign_in_once(console, client)
        yield console, client


def test_a_delayed_message_that_is_late_fires_until_it_is_gone(
    broker: BrokerProcess, opened: tuple[Console, TestClient]
) -> None:
    console, client = opened
    csrf = {"x-csrf-token": csrf_of(client)}
    home = f"/api/clusters/{CLUSTER}/topics"
    for name in ("late.orders", "late.other", "unwatched"):
        assert client.post(home, json={"name": name, "partitions": 2}, headers=csrf).status_code == 201
    producer = Producer({"bootstrap.servers": broker.kafka})
    for name in ("late.orders", "unwatched"):
        producer.produce(name, "x", headers={"penstock-delay": "1h", "penstock-timer-id": "t"})
    producer.produce("late.other", "x", headers={"penstock-delay": "3h"})
    assert producer.flush(30) == 0
    until(lambda: console.clusters[CLUSTER].snapshot.round > 1, "two rounds have ended")
    assert console.clusters[CLUSTER].snapshot.late_timers == {}, "nothing is looked at unless a rule wants to know"
    rule = {"name": "late", "kind": "late_timers", "threshold": 60, "prefix": "late."}
    assert client.post("/api/alerts/rules", json=rule, headers=csrf).status_code == 201
    until(lambda: client.get("/api/alerts").json(), "the alert fires")
    (firing,) = client.get("/api/alerts").json()
    assert firing["resource"] == "late.orders" and 3500 < firing["value"] < 3700
    assert "was due" in firing["text"]
    cancelled = client.post(f"{home}/late.orders/timers/cancellation", json={"timer_ids": ["t"]}, headers=csrf)
    assert cancelled.status_code == 200, cancelled.text
    until(lambda: client.get("/api/alerts").json() == [], "the alert is over")


@pytest.fixture
def sql_broker(replicated: MariaDbPair, tmp_path: Path) -> Iterator[BrokerProcess]:
    """With the database group `lagging`: a primary and its replica."""
    primary, replica = replicated.create_database("lagging")
    key = tmp_path / "key"
    key.write_text(new_key())
    key.chmod(0o600)
    settings = {"broker.id": 1, "sql.key_file": str(key)}
    default = {"PENSTOCK_SQL_URL": f"sqlite:///{tmp_path / 'default.db'}"}
    broker = BrokerProcess(tmp_path / "broker", settings, env=default)
    try:
        broker.start()
        Cluster(broker.kafka).databases.add("lagging", (primary, replica))
        yield broker
    finally:
        broker.kill()


def test_a_replica_of_a_database_that_is_behind_fires(
    sql_broker: BrokerProcess, replicated: MariaDbPair, tmp_path: Path
) -> None:
    console = Console(console_settings(sql_broker.kafka, tmp_path))
    rule = AlertRule("behind", AlertKind.DATABASE_LAG, threshold=2, prefix="lag")
    with TestClient(app_of(console), base_url=BASE):

        def is_beating() -> bool:
            return any(each.lag_ms is not None for each in console.clusters[CLUSTER].snapshot.databases)

        until(is_beating, "the replica has heard of its primary")
        replicated.stop_applying()

        def told() -> list[str]:
            return [each.text for each in breaches(rule, console.clusters[CLUSTER].snapshot)]

        until(told, "the replica is seen behind")
        assert "of group lagging" in told()[0] and str(replicated.replica.port) in told()[0]
        replicated.go_on_applying()
        until(lambda: told() == [], "it has caught up")
