"""`penstock topic retire-partitions` as it is run, against a real broker."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from confluent_kafka import TopicPartition

from support.broker_process import BrokerProcess
from support.commands import complaint, said, told
from support.confluent import consumer_of
from support.programs import PENSTOCK, run

Penstock = Callable[..., CompletedProcess[bytes]]


@pytest.fixture
def penstock(broker: BrokerProcess) -> Penstock:
    def call(*arguments: str) -> CompletedProcess[bytes]:
        return run([PENSTOCK, *arguments, "-b", broker.kafka])

    return call


def test_partitions_are_retired_and_shown_as_such(broker: BrokerProcess, penstock: Penstock, topic: str) -> None:
    penstock("topic", "create", topic, "--partitions", "5")
    penstock("send", topic, "one", "two", "--partition", "4")
    consumer = consumer_of(broker, **{"group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 4, 1)], asynchronous=False)
    consumer.close()
    assert said(penstock("topic", "retire-partitions", topic, "--partitions", "3,4")) == (
        f"{topic}: new messages for partition 3 go to partition 0\n"
        f"{topic}: new messages for partition 4 go to partition 1\n"
        f"consumers still read their records; see: penstock topic describe {topic}\n"
    )
    penstock("send", topic, "three", "--partition", "4")
    described = said(penstock("topic", "describe", topic))
    assert "partition 3 is retired: new messages go to 0\n" in described
    assert f"partition 4 is retired: new messages go to 1; unread by {topic}\n" in described
    (as_json,) = told(penstock("topic", "describe", topic, "--json"))
    shown = [(each["latest"], each["successor"], each["behind"]) for each in as_json["partitions"]]
    assert shown == [(0, None, []), (1, None, []), (0, None, []), (0, 0, []), (2, 1, [topic])]


def test_a_dry_run_changes_nothing(penstock: Penstock, topic: str) -> None:
    penstock("topic", "create", topic, "--partitions", "3")
    told_of = told(penstock("topic", "retire-partitions", topic, "--partitions", "2", "--dry-run", "--json"))
    assert told_of == {"topic": topic, "retired": {"2": 0}, "dry_run": True}
    assert "would go to partition 0" in said(
        penstock("topic", "retire-partitions", topic, "--partitions", "2", "--dry-run")
    )
    (described,) = told(penstock("topic", "describe", topic, "--json"))
    assert [each["successor"] for each in described["partitions"]] == [None, None, None]


def test_more_can_be_retired_later_and_the_same_again(penstock: Penstock, topic: str) -> None:
    penstock("topic", "create", topic, "--partitions", "5")
    assert told(penstock("topic", "retire-partitions", topic, "--partitions", "4", "--json"))["retired"] == {"4": 0}
    assert told(penstock("topic", "retire-partitions", topic, "--partitions", "3,4", "--json"))["retired"] == {
        "3": 1,
        "4": 0,
    }


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("1", "only the last partitions can be retired"),
        ("7", "there is no partition 7"),
        ("0,1,2", "one partition has to remain"),
    ],
)
def test_what_cannot_be_retired_is_refused_with_the_reason(
    penstock: Penstock, topic: str, wanted: str, reason: str
) -> None:
    penstock("topic", "create", topic, "--partitions", "3")
    assert reason in complaint(penstock("topic", "retire-partitions", topic, "--partitions", wanted))


def test_what_is_no_list_of_partitions_is_refused(penstock: Penstock, topic: str) -> None:
    done = penstock("topic", "retire-partitions", topic, "--partitions", "last")
    assert done.returncode == 2
    assert b"is not a list of partitions" in done.stderr
