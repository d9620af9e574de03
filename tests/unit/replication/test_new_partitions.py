"""What clients are told of partitions whose logs are being made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicId
from penstock.replication.replicas import Replicas
from support.leading import LAG_RULES, ME, for_ever
from support.logs import settings
from support.suspending import SlowEngine

OTHER = BrokerId(2)


def image_of(*topics: TopicImage, version: int) -> MetadataImage:
    brokers = {id: BrokerInfo(id, "127.0.0.1", 9092) for id in (ME, OTHER)}
    ids = {topic.id: topic.name for topic in topics}
    return MetadataImage(version, "cluster", brokers, ME, {topic.name: topic for topic in topics}, ids)


def topic_of(name: str, *leaders: BrokerId, replicas: tuple[BrokerId, ...] = (ME, OTHER)) -> TopicImage:
    partitions = tuple(PartitionImage(index, leader, 0, replicas, replicas) for index, leader in enumerate(leaders))
    return TopicImage(name, TopicId(int=hash(name) % (1 << 100)), partitions)


@pytest.fixture
def engine() -> SlowEngine:
    return SlowEngine()


@pytest.fixture
async def replicas(engine: SlowEngine) -> AsyncIterator[Replicas]:
    made = Replicas(ME, {"segmented": engine}, lambda topic, image: settings(), for_ever(), LAG_RULES)
    await made.open(image_of(version=1))
    await made.begin()
    yield made
    engine.may_make.set()
    await made.close()


async def apply(replicas: Replicas, engine: SlowEngine, before: MetadataImage, after: MetadataImage) -> None:
    """Returns while the first log is being made."""
    engine.is_asked.clear()
    replicas.change(before, after)
    await engine.is_asked.wait()


def refusal(replicas: Replicas, topic: str, index: int = 0) -> Code:
    with pytest.raises(ApiError) as caught:
        replicas.find(topic, index)
    return caught.value.code


async def test_a_new_topic_is_unknown_where_it_is_led_until_its_log_is_there(
    replicas: Replicas, engine: SlowEngine
) -> None:
    before = image_of(version=1)
    assert refusal(replicas, "new") is Code.UNKNOWN_TOPIC_OR_PARTITION
    await apply(replicas, engine, before, image_of(topic_of("first", ME), topic_of("new", ME, OTHER), version=2))
    for name in ("first", "new"):
        assert refusal(replicas, name) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(replicas, "new", 1) is Code.NOT_LEADER_OR_FOLLOWER, "another leads it"
    engine.may_make.set()
    await replicas.applied()
    assert replicas.find("new", 0).leadership is not None


async def test_so_is_a_new_partition_of_a_topic_and_a_topic_that_was_deleted_and_made_again(
    replicas: Replicas, engine: SlowEngine
) -> None:
    engine.may_make.set()
    old = topic_of("again", ME)
    first = image_of(topic_of("grows", ME), old, version=2)
    replicas.change(image_of(version=1), first)
    await replicas.applied()
    engine.may_make.clear()
    again = replace(old, id=TopicId(int=7))
    await apply(replicas, engine, first, image_of(topic_of("grows", ME, ME), again, version=3))
    assert replicas.find("grows", 0).leadership is not None
    assert refusal(replicas, "grows", 1) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(replicas, "again") is Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_replica_that_is_being_added_is_no_new_partition(replicas: Replicas, engine: SlowEngine) -> None:
    first = image_of(topic_of("moves", OTHER, replicas=(OTHER,)), version=2)
    replicas.change(image_of(version=1), first)
    await replicas.applied()
    assert refusal(replicas, "moves") is Code.NOT_LEADER_OR_FOLLOWER
    await apply(replicas, engine, first, image_of(topic_of("moves", OTHER), version=3))
    assert refusal(replicas, "moves") is Code.NOT_LEADER_OR_FOLLOWER


async def test_a_log_that_cannot_be_made_is_a_storage_error_whatever_else_is_going_on(
    replicas: Replicas, engine: SlowEngine
) -> None:
    first = image_of(topic_of("broken", ME), version=2)
    replicas.change(image_of(version=1), first)
    await replicas.applied()
    assert refusal(replicas, "broken") is Code.KAFKA_STORAGE_ERROR
    await apply(replicas, engine, first, image_of(topic_of("broken", ME), topic_of("new", ME), version=3))
    # Never "unknown": whoever has to end a transaction in it would take it for deleted.
    assert refusal(replicas, "broken") is not Code.UNKNOWN_TOPIC_OR_PARTITION
