"""Offsets are set while a group's members run: all of them go on from there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conftest import BrokerFactory
from penstock.config.group import RESET_MARK
from support.broker_process import BrokerProcess
from support.crew import SETTINGS, Crew
from support.history import Assigned, Consumed, History
from support.waiting import until

PARTITIONS = 6
TARGETS = {partition: 3 + partition for partition in range(PARTITIONS)}
AT_LEAST = 30
"""Of each partition has been read before the reset, so that what comes again cannot be mistaken."""


def seen(history: History, partition: int, since_ns: int = 0) -> list[int]:
    """The offsets that members dealt with, in the order of time, each after it was given partitions since then.

    Before, a member may not have noticed yet that it is out.
    """
    offsets = []
    begun: set[str] = set()
    for event in sorted(history.events, key=lambda event: event.at_ns):
        if event.at_ns < since_ns:
            continue
        if isinstance(event, Assigned):
            begun.add(event.member)
        elif isinstance(event, Consumed) and event.partition == partition and event.member in begun:
            offsets.append(event.offset)
    return offsets


def went_on_from(target: int, offsets: list[int]) -> bool:
    """Whether the first one began at the target, and from there on nothing was left out."""
    end = target
    for offset in offsets:
        if not target <= offset <= end:
            return False
        end = max(end, offset + 1)
    return bool(offsets)


def wait_until_all_went_back(crew: Crew, targets: Mapping[int, int], since_ns: int) -> None:
    def is_so() -> bool:
        history = crew.history()
        return all(target in seen(history, partition, since_ns) for partition, target in targets.items())

    until(is_so, "every partition is read again from where it was set to")


def reset_under_load(crew: Crew, names: str) -> None:
    """Lets the members work, sets their offsets, lets them work on, and looks at what each partition was read like."""
    crew.produce()
    until(
        lambda: all(len(seen(crew.history(), partition)) > AT_LEAST for partition in TARGETS),
        "something of every partition is read",
    )
    began_ns = time.monotonic_ns()
    crew.reset(TARGETS)
    wait_until_all_went_back(crew, TARGETS, began_ns)
    crew.wait_for_members(*names)
    crew.wait_for_more()
    crew.finish()
    history = crew.history()
    for partition, target in TARGETS.items():
        assert went_on_from(target, seen(history, partition, began_ns)), (partition, target)
    assert isinstance(crew.broker, BrokerProcess)
    assert crew.broker.metric("penstock_group_members_fenced_total") == len(names)


@pytest.mark.parametrize(
    ("client", "strategy"),
    [
        ("confluent", "range"),
        ("confluent", "cooperative-sticky"),
        ("kafka-python", "range"),
        ("kafka-python", "cooperative-sticky"),
        ("aiokafka", "roundrobin"),
    ],
)
def test_all_members_go_on_from_where_they_were_set_to(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, client: str, strategy: str
) -> None:
    with Crew(new_broker(SETTINGS), topic, tmp_path, PARTITIONS) as crew:
        for name in "abc":
            crew.start(name, client, strategy=strategy)
        crew.wait_for_members(*"abc")
        reset_under_load(crew, "abc")


@pytest.mark.parametrize("protocols", [("consumer", "consumer"), ("classic", "consumer")], ids="-".join)
def test_members_of_the_new_protocol_go_on_from_where_they_were_set_to(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, protocols: tuple[str, str]
) -> None:
    with Crew(new_broker(SETTINGS), topic, tmp_path, PARTITIONS) as crew:
        for name, protocol in zip("ab", protocols, strict=True):
            crew.start(name, protocol=protocol)
            crew.wait_for_members(*"ab"[: "ab".index(name) + 1])
        reset_under_load(crew, "ab")


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_a_member_that_commits_by_itself_does_not_undo_it(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, client: str
) -> None:
    """A single one, so that the group is empty when it has been put out: some then commit once more, as nobody."""
    with Crew(new_broker(SETTINGS), topic, tmp_path, PARTITIONS) as crew:
        crew.start("a", client, auto_commit_ms=100)
        crew.wait_for_members("a")
        reset_under_load(crew, "a")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_static_members_go_on_from_where_they_were_set_to(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, strategy: str
) -> None:
    with Crew(new_broker(SETTINGS), topic, tmp_path, PARTITIONS) as crew:
        for name in "ab":
            crew.start(name, "confluent", strategy=strategy, instance=f"instance-{name}")
        crew.wait_for_members(*"ab")
        reset_under_load(crew, "ab")


def test_a_reset_survives_a_crash_of_the_broker(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    broker = new_broker(SETTINGS)
    with Crew(broker, topic, tmp_path, PARTITIONS) as crew:
        crew.produce()
        crew.start("a", "aiokafka", auto_commit_ms=100)
        crew.start("b", "confluent")
        crew.wait_for_members(*"ab")
        until(
            lambda: all(len(seen(crew.history(), partition)) > AT_LEAST for partition in TARGETS),
            "something of every partition is read",
        )
        began_ns = time.monotonic_ns()
        crew.reset(TARGETS)
        broker.kill()
        broker.start()
        wait_until_all_went_back(crew, TARGETS, began_ns)
        crew.wait_for_members(*"ab")
        crew.finish()
        for partition, target in TARGETS.items():
            assert went_on_from(target, seen(crew.history(), partition, began_ns)), (partition, target)


def test_the_judge_notices_what_was_left_out() -> None:
    assert went_on_from(3, [3, 4, 5, 4, 5, 6])
    assert not went_on_from(3, [])
    assert not went_on_from(3, [50, 51, 52])
    assert not went_on_from(3, [3, 4, 6])
    assert not went_on_from(3, [3, 2, 3])
    assigned, again = Assigned(1, "a", (0,)), Assigned(5, "a", (0,))
    consumed = [Consumed(at_ns, "a", 0, offset, "") for at_ns, offset in ((2, 50), (4, 51), (6, 3))]
    assert seen(History({}, [assigned, again, *consumed]), 0, since_ns=3) == [3]


class TestCodes:
    """What a commit of nobody is answered with and without the mark."""

    @pytest.fixture
    def admin(self, broker: BrokerProcess) -> AdminClient:
        return AdminClient({"bootstrap.servers": broker.kafka})

    def alter(self, admin: AdminClient, group: str, *places: TopicPartition) -> list[int]:
        asked = [ConsumerGroupTopicPartitions(group, list(places))]
        answer = admin.alter_consumer_group_offsets(asked)[group].result()
        return [
            KafkaError.NO_ERROR if found.error is None else found.error.code()
            for found in sorted(answer.topic_partitions, key=lambda found: found.partition)
        ]

    def committed(self, admin: AdminClient, group: str) -> list[tuple[int, int, str]]:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
        return sorted((found.partition, found.offset, found.metadata or "") for found in answer.topic_partitions)

    def test_some_with_the_mark_and_some_without_are_refused(self, admin: AdminClient, topic: str) -> None:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
        mixed = (TopicPartition(topic, 0, 1, metadata=RESET_MARK), TopicPartition(topic, 1, 1))
        assert self.alter(admin, topic, *mixed) == [KafkaError.INVALID_REQUEST] * 2
        assert self.committed(admin, topic) == []

    def test_the_mark_is_not_kept(self, admin: AdminClient, topic: str) -> None:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        assert self.alter(admin, topic, TopicPartition(topic, 0, 4, metadata=RESET_MARK)) == [KafkaError.NO_ERROR]
        assert self.committed(admin, topic) == [(0, 4, "")]

    def test_a_partition_that_is_not_there_keeps_all_from_being_set(self, admin: AdminClient, topic: str) -> None:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        places = [TopicPartition(topic, partition, 4, metadata=RESET_MARK) for partition in (0, 1)]
        not_attempted = 55
        assert self.alter(admin, topic, *places) == [not_attempted, KafkaError.UNKNOWN_TOPIC_OR_PART]
        assert self.committed(admin, topic) == []
