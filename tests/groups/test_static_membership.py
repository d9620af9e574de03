"""Static members (KIP-345): a restart of one is not noticed by the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from conftest import BrokerFactory
from support.crew import SETTINGS, Crew
from support.waiting import until


@pytest.mark.parametrize(("strategy", "returning"), [("range", "b"), ("cooperative-sticky", "a")])
def test_a_static_member_that_comes_back_keeps_its_partitions_and_disturbs_nobody(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, strategy: str, returning: str
) -> None:
    other = "b" if returning == "a" else "a"
    with Crew(new_broker(SETTINGS), topic, tmp_path) as crew:
        crew.produce()
        for name in "ab":
            crew.start(name, strategy=strategy, instance=f"static-{name}", session_ms=15_000)
            crew.wait_for_members(*"ab"[: "ab".index(name) + 1])
        crew.wait_for_more()
        known = crew.assignments_of(other)
        had = crew.assignments_of(returning)[-1]
        rejoins = len(crew.assignments_of(returning))
        crew.kill(returning)
        crew.start(returning, strategy=strategy, instance=f"static-{returning}", session_ms=15_000)
        until(lambda: len(crew.assignments_of(returning)) > rejoins, "the member is back")
        crew.wait_for_more()
        crew.finish()
        assert crew.assignments_of(other) == known
        if strategy == "range":
            assert crew.assignments_of(returning)[rejoins] == had


def test_of_two_members_with_one_instance_id_the_former_is_fenced(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker(SETTINGS)
    errors: list[KafkaError] = []
    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": "fenced",
        "group.instance.id": "the-one",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
        "log_level": 0,
    }
    with Crew(broker, topic, tmp_path):
        first, second = Consumer(settings | {"error_cb": errors.append}), Consumer(settings)
        try:
            first.subscribe([topic])
            until(lambda: first.poll(0.05) or first.assignment(), "the first one is in")
            second.subscribe([topic])
            until(lambda: second.poll(0.05) or second.assignment(), "the second one is in")
            until(lambda: first.poll(0.1) or any(error.fatal() for error in errors), "the first one is told")
        finally:
            first.close()
            second.close()
