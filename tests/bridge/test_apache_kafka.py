"""The bridge with Apache Kafka, for which it is made: headers as on our own broker, which Kafka leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from bridge.kills import KillPlan, run_kills
from penstock.sdk.hooks.delay_bridge import DelayBridge
from support.apache_kafka import apache_kafka
from support.bridge_process import bridging
from support.bridged import Sender, collect, create_topics, values_of
from support.stores import NewDatabase
from support.waiting import until


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apache_kafka(tmp_path_factory.mktemp("apache") / "kafka") as address:
        yield address


def test_an_application_of_the_sdk_delays_replaces_cancels_and_retries_on_apache_kafka(
    kafka: str, topic: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    orders = f"{topic}-orders"
    create_topics(kafka, {topic: 2, orders: 2})
    seen: list[bytes | None] = []
    arguments = [topic, "-b", kafka, "--group", f"{topic}-bridge", "--lease", "2s"]
    with (
        bridging(tmp_path, *arguments, database=new_database("mariadb")),
        penstock.Client(kafka, hooks=[DelayBridge(topic)]) as client,
    ):

        @client.subscribe(orders, group=f"{topic}-app", retries=penstock.Retries(first="1s", attempts=3))
        def handle(message: penstock.Message) -> None:
            seen.append(message.value)
            if message.value == b"fails once" and message.attempt == 1:
                raise ValueError("once")

        client.start()
        client.send(orders, b"now", key="k")
        client.send(orders, b"fails once", key="k")
        client.send(orders, b"later", key="k", delay="2s")
        client.send(orders, b"cancelled", key="k", delay="2s", timer_id="a")
        client.cancel(orders, "a", key="k")
        client.send(orders, b"replaced", key="k", delay="2s", timer_id="b")
        client.reschedule(orders, "b", b"replacement", key="k", delay="2s")
        client.send(orders, b"last", key="k", delay="8s")
        expected = [b"now", b"fails once", b"fails once", b"later", b"replacement", b"last"]
        # The last one is due after what was cancelled and replaced.
        until(lambda: len(seen) >= len(expected) and b"last" in seen, "all have arrived", 90)
    assert sorted(value or b"" for value in seen) == sorted(expected)


def test_levels_work_on_apache_kafka(kafka: str, topic: str, tmp_path: Path) -> None:
    orders = f"{topic}-orders"
    create_topics(kafka, {topic: 2, orders: 1})
    arguments = [topic, "-b", kafka, "--group", f"{topic}-bridge", "--levels", "1s,3s", "--target", orders]
    with bridging(tmp_path, *arguments):
        sender = Sender(kafka)
        sender.send(topic, b"three", partition=1)
        sender.send(topic, b"one", partition=0)
        sender.flush()
        arrived = collect(kafka, orders, lambda found: len(found) >= 2, quiet_s=1)
        assert values_of(arrived) == [b"one", b"three"]
        assert all(each.timestamp_ms >= int(each.headers["penstock-deliver-at"] or b"") for each in arrived)


@pytest.mark.parametrize("kind", ["sqlite", "mariadb"])
def test_killed_bridges_lose_and_repeat_nothing_on_apache_kafka(
    kafka: str, topic: str, new_database: NewDatabase, tmp_path: Path, kind: str
) -> None:
    plan = KillPlan(messages=300, seconds=10, seed=3, arguments=["--tables", "2", "--plan", "days"])
    report = run_kills(kafka, topic, tmp_path, new_database(kind), plan)
    assert report.kills >= 2
    assert (report.lost, report.repeated, report.early) == (0, 0, 0), str(report)
