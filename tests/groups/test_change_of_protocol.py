"""A running group is moved from the classic protocol to the new one and back, member by member, under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.crew import SETTINGS, Crew

OLD = [
    ("confluent", "range"),
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("aiokafka", "roundrobin"),
]


@pytest.mark.parametrize(("client", "strategy"), OLD)
def test_a_group_is_moved_to_the_new_protocol_and_back(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, client: str, strategy: str
) -> None:
    with Crew(new_broker(SETTINGS), topic, tmp_path) as crew:
        crew.produce()
        for name in "abc":
            crew.start(name, client, strategy=strategy)
        crew.wait_for_members(*"abc")
        crew.wait_for_more()
        assert crew.kind() == "classic"
        for name in "abc":
            crew.stop(name)
            crew.start(name, protocol="consumer")
            crew.wait_for_members(*"abc")
            crew.wait_for_more()
            assert crew.kind() == "consumer"
        for name in "abc":
            crew.stop(name)
            crew.start(name, client, strategy=strategy)
            crew.wait_for_members(*"abc")
            crew.wait_for_more()
        assert crew.kind() == "classic"
        crew.finish()


def test_members_and_the_broker_crash_while_both_protocols_are_spoken(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker(SETTINGS)
    with Crew(broker, topic, tmp_path, partitions=8) as crew:
        crew.produce()
        for name in "ab":
            crew.start(name)
        crew.start("c", "kafka-python")
        crew.wait_for_members(*"abc")
        crew.start("n", protocol="consumer")
        crew.start("m", protocol="consumer")
        crew.wait_for_members(*"abcmn")
        crew.wait_for_more()
        broker.kill()
        broker.start()
        crew.wait_for_more()
        crew.kill("a")
        crew.kill("n")
        crew.wait_for_members(*"bcm")
        crew.wait_for_more()
        # The last one that speaks the new protocol crashes together with the broker.
        crew.kill("m")
        broker.kill()
        broker.start()
        crew.wait_for_members(*"bc")
        assert crew.kind() == "classic"
        crew.finish()
