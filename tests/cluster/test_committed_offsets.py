"""Committed offsets, asked of a broker that does not coordinate the group, as members do when a coordinator moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from support.cluster import Cluster
from support.waiting import PATIENCE_S, until
from support.wire import Wire
from support.zookeeper import ZooKeeperProcess


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings={"cluster.lease_ms": 2_000}) as running:
        yield running


def commit(cluster: Cluster, topic: str) -> None:
    """A topic, and a group of its name that has committed offsets in it."""
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic(topic, 2, 3)])[topic].result()
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": topic, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 9)], asynchronous=False)
    consumer.close()


def asked(cluster: Cluster, number: int, version: int, group: str, topic: str) -> list[tuple[int, int, int]]:
    """What a broker tells of each partition: its number, offset and error."""
    with Wire(cluster.brokers[number].address) as wire:
        if version < 8:
            topics = (OffsetFetchRequestTopic(name=topic, partition_indexes=(0, 1)),)
            answer = wire.ask(apis.OFFSET_FETCH, version, OffsetFetchRequest(group_id=group, topics=topics))
        else:
            named = (OffsetFetchRequestTopics(name=topic, partition_indexes=(0, 1)),)
            wanted = OffsetFetchRequestGroup(group_id=group, topics=named)
            (answer,) = wire.ask(apis.OFFSET_FETCH, version, OffsetFetchRequest(groups=(wanted,)))["groups"]
    return [
        (each["partition_index"], each["committed_offset"], each["error_code"])
        for found in answer["topics"]
        for each in found["partitions"]
    ]


def test_every_broker_tells_the_committed_offsets_of_every_group(cluster: Cluster, topic: str) -> None:
    commit(cluster, topic)
    for version in (1, 3, 7, 8, 9):
        for number in cluster.numbers:
            assert asked(cluster, number, version, topic, topic) == [(0, 7, Code.NONE), (1, 9, Code.NONE)]


def test_who_asks_for_many_groups_makes_no_broker_ask_others(cluster: Cluster, topic: str) -> None:
    commit(cluster, topic)
    coordinator = cluster.coordinator_of_group(topic)
    other = next(number for number in cluster.numbers if number != coordinator)
    wanted = tuple(OffsetFetchRequestGroup(group_id=topic, topics=None) for _ in range(2))
    with Wire(cluster.brokers[other].address) as wire:
        answers = wire.ask(apis.OFFSET_FETCH, 9, OffsetFetchRequest(groups=wanted))["groups"]
    assert [answer["error_code"] for answer in answers] == [Code.NOT_COORDINATOR] * 2


def test_a_coordinator_that_is_gone_is_not_asked_for_ever(cluster: Cluster, topic: str) -> None:
    """Until another broker coordinates the group, the others say that they do not."""
    commit(cluster, topic)
    coordinator = cluster.coordinator_of_group(topic)
    others = [number for number in cluster.numbers if number != coordinator]
    cluster.kill(coordinator)
    for number in others:
        until(
            lambda number=number: asked(cluster, number, 9, topic, topic) == [(0, 7, Code.NONE), (1, 9, Code.NONE)],
            f"broker {number} tells the offsets again",
            2 * PATIENCE_S,
        )
