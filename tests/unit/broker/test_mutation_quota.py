"""The quota of partition changes (KIP-599)."""

from __future__ import annotations

import pytest

from penstock.broker.config_descriptions import ConfigDescriptions
from penstock.broker.handlers.topics import TopicHandlers
from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import BrokerSettings, Limits
from penstock.config.loader import load
from penstock.config.quotas import QuotaSettings
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.replication.replicas import Replicas
from penstock.security.quota_entity import QuotaEntity
from penstock.security.quota_keys import QuotaKey
from support import callers
from support.tree import Tree, register

BROKER = BrokerId(1)
TOO_FAST = Code.THROTTLING_QUOTA_EXCEEDED
BURST = 11
"""Partitions that can be created at once at a rate of one in a second."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def metadata(tree: Tree) -> MetadataChanges:
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BROKER))
    await metadata.start()
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 9092))
    return metadata


@pytest.fixture
def image(metadata: MetadataChanges) -> MetadataImage:
    return metadata.image


@pytest.fixture
def handlers(metadata: MetadataChanges, replicas: Replicas, clock: ManualClock) -> TopicHandlers:
    quotas = ClientLimits(QuotaSettings(), clock.monotonic_ms)
    quotas.follow({QuotaEntity(client_id="slow"): {QuotaKey.CONTROLLER_MUTATION_RATE: 1.0}})
    descriptions = ConfigDescriptions(load(None, {}, {}))
    return TopicHandlers(metadata, BrokerSettings(), Limits(), descriptions, quotas, replicas)


def context(version: int, client_id: str = "slow") -> RequestContext:
    return RequestContext(version, callers.client(client_id))


async def create(handlers: TopicHandlers, context: RequestContext, **partitions: int) -> list[Code]:
    topics = tuple(
        CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in partitions.items()
    )
    response = await handlers.create_topics(CreateTopicsRequest(topics=topics), context)
    return [Code(topic.error_code) for topic in response.topics]


async def test_what_is_above_the_quota_is_refused_and_the_client_told_how_long_to_wait(
    handlers: TopicHandlers, clock: ManualClock
) -> None:
    asked = context(6)
    # The last one that there is room for may go beyond it.
    assert await create(handlers, asked, a=10, b=11, c=1) == [Code.NONE, Code.NONE, TOO_FAST]
    assert asked.caller.mutation_throttle_ms == 10_000
    clock.advance(9_999)
    assert await create(handlers, context(6), c=1) == [TOO_FAST]
    clock.advance(1)
    assert await create(handlers, context(6), c=1) == [Code.NONE]


async def test_an_older_client_is_throttled_and_not_refused(handlers: TopicHandlers) -> None:
    asked = context(5)
    assert await create(handlers, asked, a=BURST + 2, c=1) == [Code.NONE, Code.NONE]
    assert asked.caller.mutation_throttle_ms == 3_000


async def test_what_was_not_created_does_not_count(handlers: TopicHandlers) -> None:
    assert await create(handlers, context(6), **{"not/a/name": 1000}, a=1) == [Code.INVALID_TOPIC_EXCEPTION, TOO_FAST]
    assert await create(handlers, context(6), a=1) == [Code.NONE]
    asked = context(6)
    assert await create(handlers, asked, a=5000) == [Code.TOPIC_ALREADY_EXISTS]
    assert asked.caller.mutation_throttle_ms == 0


async def test_others_are_not_limited(handlers: TopicHandlers) -> None:
    asked = context(6, "quick")
    assert await create(handlers, asked, a=100, b=100) == [Code.NONE, Code.NONE]
    assert asked.caller.mutation_throttle_ms == 0


async def test_deleted_and_added_partitions_count(handlers: TopicHandlers) -> None:
    await create(handlers, context(6, "quick"), a=20, b=5)
    grow = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name="a", count=40), CreatePartitionsTopic(name="b", count=6)),
        timeout_ms=1000,
    )
    asked = context(3)
    grown = await handlers.create_partitions(grow, asked)
    assert [Code(each.error_code) for each in grown.results] == [Code.NONE, TOO_FAST]
    assert asked.caller.mutation_throttle_ms == 1000 * (20 - BURST)
    delete = DeleteTopicsRequest(topics=(DeleteTopicState(name="a"),), timeout_ms=1000)
    deleted = await handlers.delete_topics(delete, context(6))
    assert [Code(each.error_code) for each in deleted.responses] == [TOO_FAST]
    deleted = await handlers.delete_topics(
        DeleteTopicsRequest(topic_names=("a",), timeout_ms=1000), asked := context(4)
    )
    assert [Code(each.error_code) for each in deleted.responses] == [Code.NONE]
    assert asked.caller.mutation_throttle_ms == 1000 * (20 + 40 - BURST)
