"""Members of real clients join, leave, crash and come back while messages are sent; nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.crew import SETTINGS, Crew

CLIENTS = [
    ("confluent", "range"),
    ("confluent", "roundrobin"),
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("aiokafka", "roundrobin"),
]


@pytest.mark.parametrize(("client", "strategy"), CLIENTS)
def test_members_join_leave_crash_and_return(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, client: str, strategy: str
) -> None:
    with Crew(new_broker(SETTINGS), topic, tmp_path) as crew:
        crew.produce()
        crew.start("a", client, strategy=strategy)
        crew.start("b", client, strategy=strategy)
        crew.wait_for_members("a", "b")
        crew.wait_for_more()
        crew.start("c", client, strategy=strategy)
        crew.wait_for_members("a", "b", "c")
        crew.wait_for_more()
        crew.stop("a")
        crew.kill("b")
        crew.start("d", client, strategy=strategy)
        crew.wait_for_members("c", "d")
        crew.start("a", client, strategy=strategy)
        crew.wait_for_members("a", "c", "d")
        crew.wait_for_more()
        crew.finish()


def test_clients_of_three_kinds_are_in_one_group(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    kinds = {"a": "confluent", "b": "kafka-python", "c": "aiokafka", "d": "confluent"}
    kinds |= {"e": "kafka-python", "f": "aiokafka", "g": "confluent", "h": "confluent"}
    with Crew(new_broker(SETTINGS), topic, tmp_path, partitions=8) as crew:
        crew.produce()
        for name, client in kinds.items():
            crew.start(name, client)
        crew.wait_for_members(*kinds)
        crew.wait_for_more()
        for name in "abc":
            crew.kill(name)
        crew.wait_for_members(*"defgh")
        crew.wait_for_more()
        for name in "def":
            crew.stop(name)
        crew.wait_for_members(*"gh")
        crew.start("a", "aiokafka")
        crew.wait_for_members(*"agh")
        crew.finish()
