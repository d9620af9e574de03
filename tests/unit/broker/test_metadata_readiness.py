"""Metadata tells of a topic when it can be used, and hangs for no other. Changes of topics, leaders, replicas and
settings are answered in time, and wait for no other topic.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from penstock.broker.config_descriptions import ConfigDescriptions
from penstock.broker.database_group_settings import DatabaseGroupSettings
from penstock.broker.handlers.cluster import ClusterHandlers, announced
from penstock.broker.handlers.configs import ConfigHandlers, ResourceType, carried_out
from penstock.broker.handlers.reassignments import ReassignmentHandlers
from penstock.broker.handlers.topics import TopicHandlers
from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.decisions.settings import effective_config, topic_defaults
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import NO_LEADER, BrokerInfo, MetadataImage, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.broker import BrokerSettings, Limits
from penstock.config.loader import load
from penstock.config.quotas import QuotaSettings
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.protocol.messages.incremental_alter_configs import (
    SET,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from penstock.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.replicas import Replicas
from penstock.storage.contract import Engine
from penstock.storage.faulty_files import FaultyFiles
from support import callers
from support.logs import NOW_MS, batch, new_engine
from support.suspending import SlowEngine
from support.tree import Tree, register
from support.waiting import PATIENCE_S

BROKER = BrokerId(1)
LONG_MS = int(PATIENCE_S * 1000)
CONTEXT = RequestContext(12, callers.client())


def named(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=tuple(map(_asked, names)), allow_auto_topic_creation=False)


def _asked(name: str) -> MetadataRequestTopic:
    return MetadataRequestTopic(name=name)


class Held:
    """A broker on which a topic waits for the disk: it is made again while the one before it is being removed."""

    def __init__(
        self,
        metadata: MetadataChanges,
        replicas: Replicas,
        handlers: ClusterHandlers,
        topics: TopicHandlers,
        reassignments: ReassignmentHandlers,
        configs: ConfigHandlers,
        disk: threading.Event,
    ) -> None:
        self.metadata = metadata
        self.replicas = replicas
        self.disk = disk
        self._handlers = handlers
        self._topics = topics
        self._reassignments = reassignments
        self._configs = configs

    async def ask(self, request: MetadataRequest, wait_ms: int = LONG_MS) -> list[tuple[str | None, int, int]]:
        async with asyncio.timeout(PATIENCE_S):
            response = await announced(self._handlers.metadata, self.metadata, self.replicas, wait_ms)(request, CONTEXT)
        return [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics]

    async def create(self, timeout_ms: int, *, validate_only: bool = False, **partitions: int) -> list[Code]:
        topics = tuple(
            CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in partitions.items()
        )
        request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)
        async with asyncio.timeout(PATIENCE_S):
            response = await self._topics.create_topics(request, CONTEXT)
        return [Code(topic.error_code) for topic in response.topics]

    async def grow(self, timeout_ms: int, **counts: int) -> list[Code]:
        topics = tuple(CreatePartitionsTopic(name=name, count=count) for name, count in counts.items())
        request = CreatePartitionsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=False)
        async with asyncio.timeout(PATIENCE_S):
            response = await self._topics.create_partitions(request, CONTEXT)
        return [Code(topic.error_code) for topic in response.results]

    async def delete(self, timeout_ms: int, *names: str) -> list[Code]:
        request = DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name=name) for name in names), timeout_ms=timeout_ms
        )
        async with asyncio.timeout(PATIENCE_S):
            response = await self._topics.delete_topics(request, CONTEXT)
        return [Code(topic.error_code) for topic in response.responses]

    async def reassign(self, timeout_ms: int, *names: str) -> list[Code]:
        """Moves the first partition of each topic to where it is."""
        partition = ReassignablePartition(partition_index=0, replicas=(BROKER,))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=timeout_ms, topics=tuple(ReassignableTopic(name=name, partitions=(partition,)) for name in names)
        )
        async with asyncio.timeout(PATIENCE_S):
            response = await self._reassignments.alter_reassignments(request, CONTEXT)
        return [Code(topic.partitions[0].error_code) for topic in response.responses]

    async def elect(self, timeout_ms: int, *names: str) -> list[Code]:
        """A leader for the first partition of each topic."""
        wanted = tuple(TopicPartitions(topic=name, partitions=(0,)) for name in names)
        request = ElectLeadersRequest(timeout_ms=timeout_ms, topic_partitions=wanted)
        async with asyncio.timeout(PATIENCE_S):
            response = await self._reassignments.elect_leaders(request, CONTEXT)
        return [Code(topic.partition_result[0].error_code) for topic in response.replica_election_results]

    async def depose(self, *names: str) -> None:
        """The first partition of each topic has no leader any more."""

        def decide(draft: MetadataDraft) -> None:
            for name in names:
                before = draft.topics[name].partitions[0]
                draft.put_partition(name, replace(before, leader=NO_LEADER, leader_epoch=before.leader_epoch + 1))

        await self.metadata.change(decide)

    async def alter(self, kind: ResourceType, name: str, setting: str, value: str, wait_ms: int = LONG_MS) -> Code:
        config = IncrementalConfig(name=setting, config_operation=SET, value=value)
        resource = IncrementalConfigsResource(resource_type=kind, resource_name=name, configs=(config,))
        async with asyncio.timeout(PATIENCE_S):
            alter = carried_out(self._configs.incremental_alter_configs, self.replicas, wait_ms)
            response = await alter(IncrementalAlterConfigsRequest(resources=(resource,)), CONTEXT)
        return Code(response.responses[0].error_code)

    def retention_ms(self, name: str) -> int:
        return self.replicas.find(name, 0).log.config.retention_ms


@asynccontextmanager
async def broker(tree: Tree, engine: Engine, disk: threading.Event) -> AsyncIterator[Held]:
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BROKER))
    await metadata.start()
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 19092))
    lease = LeaderLease(ManualClock(NOW_MS), lambda: inf, 1000)
    rules = LagRules(max_ms=1000, max_messages=0)

    def effective(topic: TopicImage, image: MetadataImage) -> TopicConfig:
        return effective_config(topic, topic_defaults({}, image.settings_of(BROKER)))

    replicas = Replicas(BROKER, {"segmented": engine}, effective, lease, rules)
    await replicas.open(metadata.image)
    await replicas.begin()
    metadata.subscribe(replicas.change)
    handlers = ClusterHandlers(metadata, BrokerSettings(), Limits())
    quotas = ClientLimits(QuotaSettings(), ManualClock().monotonic_ms)
    descriptions = ConfigDescriptions(load(None, {}, {}))
    topics = TopicHandlers(metadata, BrokerSettings(), Limits(), descriptions, quotas, replicas)
    reassignments = ReassignmentHandlers(metadata, Limits(), replicas)
    configs = ConfigHandlers(metadata, BROKER, descriptions, DatabaseGroupSettings(metadata, None, None))
    yield Held(metadata, replicas, handlers, topics, reassignments, configs, disk)
    disk.set()
    await replicas.close()
    await metadata.close()


@pytest.fixture
async def held(tmp_path: Path, tree: Tree) -> AsyncIterator[Held]:
    files, disk = FaultyFiles(tmp_path), threading.Event()
    async with broker(tree, new_engine(tmp_path / "logs", files=files), disk) as made:
        await made.metadata.create_topics([TopicCreation("small", 1), TopicCreation("slow", 3)])
        await made.replicas.applied()
        await made.replicas.find("slow", 0).append(memoryview(batch(b"value")), 1)

        def wait(what: str, path: Path) -> None:
            if what == "rename" and path.is_dir():
                disk.wait()

        files.on_operation = wait
        await made.metadata.delete_topics(["slow"])
        await made.metadata.create_topics([TopicCreation("slow", 4)])
        yield made


async def test_other_topics_are_told_of_while_one_waits_for_the_disk(held: Held) -> None:
    assert await held.ask(named("small")) == [("small", 0, 1)]
    await held.metadata.create_topics([TopicCreation("another", 2)])
    assert await held.ask(named("another", "small")) == [("another", 0, 2), ("small", 0, 1)]
    assert not held.replicas.is_settled


async def test_all_topics_are_those_that_can_be_used(held: Held) -> None:
    assert await held.ask(MetadataRequest(topics=None)) == [("small", 0, 1)]
    held.disk.set()
    await held.replicas.applied()
    assert sorted(await held.ask(MetadataRequest(topics=None))) == [("slow", 0, 4), ("small", 0, 1)]


async def test_a_topic_that_is_asked_for_by_name_is_told_of_when_it_can_be_used(held: Held) -> None:
    asking = asyncio.ensure_future(held.ask(named("slow")))
    done, _ = await asyncio.wait({asking}, timeout=0.05)
    assert not done
    held.disk.set()
    assert await asking == [("slow", 0, 4)]
    assert held.replicas.find("slow", 3).leadership is not None


async def test_a_topic_that_is_not_made_in_time_has_no_leader_yet(held: Held) -> None:
    asked = named("small", "slow", "no-such")
    assert await held.ask(asked, wait_ms=1) == [
        ("small", Code.NONE, 1),
        ("slow", Code.LEADER_NOT_AVAILABLE, 0),
        ("no-such", Code.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]
    held.disk.set()
    await held.replicas.applied()
    assert await held.ask(asked, wait_ms=1) == [
        ("small", Code.NONE, 1),
        ("slow", Code.NONE, 4),
        ("no-such", Code.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]


async def test_a_topic_that_grows_keeps_the_partitions_that_it_had_until_it_has_more(tree: Tree) -> None:
    engine = SlowEngine()
    engine.may_make.set()
    async with broker(tree, engine, threading.Event()) as growing:
        await growing.create(LONG_MS, grown=1)
        engine.may_make.clear()
        assert await growing.grow(1, grown=3) == [Code.REQUEST_TIMED_OUT]
        assert await growing.ask(named("grown"), wait_ms=1) == [("grown", Code.NONE, 1)]
        assert await growing.ask(MetadataRequest(topics=None)) == [("grown", Code.NONE, 1)]
        engine.may_make.set()
        assert await growing.ask(named("grown")) == [("grown", Code.NONE, 3)]
        assert await growing.ask(MetadataRequest(topics=None)) == [("grown", Code.NONE, 3)]


async def test_a_change_that_takes_longer_than_the_client_waits_is_answered_with_a_timeout_and_goes_on(
    held: Held,
) -> None:
    assert await held.grow(1, slow=5, small=1) == [Code.REQUEST_TIMED_OUT, Code.INVALID_PARTITIONS]
    assert await held.delete(1, "slow", "no-such") == [Code.REQUEST_TIMED_OUT, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert await held.create(1, slow=2, small=1) == [Code.REQUEST_TIMED_OUT, Code.TOPIC_ALREADY_EXISTS]
    assert not held.replicas.is_settled
    held.disk.set()
    await held.replicas.applied()
    assert await held.ask(named("slow")) == [("slow", 0, 2)]
    assert held.replicas.find("slow", 1).leadership is not None


async def test_a_change_is_answered_when_the_broker_has_carried_it_out(held: Held) -> None:
    assert await held.delete(1, "slow") == [Code.REQUEST_TIMED_OUT]
    creating = asyncio.ensure_future(held.create(int(PATIENCE_S * 1000), slow=2, another=1))
    done, _ = await asyncio.wait({creating}, timeout=0.05)
    assert not done
    held.disk.set()
    assert await creating == [Code.NONE, Code.NONE]
    assert held.replicas.find("slow", 1).leadership is not None


async def test_only_topics_that_are_not_ready_in_time_are_late(held: Held) -> None:
    await held.metadata.create_topics([TopicCreation("another", 1)])
    await held.replicas.applied(["another"])
    now = asyncio.get_running_loop().time()
    assert await held.replicas.late(["slow", "another"], now) == {"slow"}
    held.disk.set()
    assert await held.replicas.late(["slow", "another"], now + PATIENCE_S) == set()


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_client_that_does_not_wait_gets_a_timeout_although_the_change_is_made(
    held: Held, timeout_ms: int
) -> None:
    assert await held.create(timeout_ms, another=1, small=1) == [Code.REQUEST_TIMED_OUT, Code.TOPIC_ALREADY_EXISTS]
    assert await held.grow(timeout_ms, another=3) == [Code.REQUEST_TIMED_OUT]
    await held.replicas.applied(["another"])
    assert held.replicas.find("another", 2).leadership is not None
    assert await held.delete(timeout_ms, "another") == [Code.REQUEST_TIMED_OUT]
    await held.replicas.applied(["another"])
    with pytest.raises(ApiError):
        held.replicas.find("another", 0)


async def test_what_is_only_validated_is_not_waited_for(held: Held) -> None:
    assert await held.create(0, validate_only=True, another=1) == [Code.NONE]
    assert "another" not in held.metadata.image.topics


async def test_the_time_of_a_request_does_not_end_its_commit(held: Held) -> None:
    is_deciding, may_decide = threading.Event(), threading.Event()

    def decide(draft: MetadataDraft) -> None:
        is_deciding.set()
        may_decide.wait(PATIENCE_S)

    # A change of so many partitions is decided in a thread, and the next one waits for it.
    before = asyncio.ensure_future(held.metadata.change(decide, partitions=1000))
    await asyncio.to_thread(is_deciding.wait, PATIENCE_S)
    growing = asyncio.ensure_future(held.grow(1, slow=5))
    done, _ = await asyncio.wait({growing}, timeout=0.05)
    assert not done
    may_decide.set()
    await before
    assert await growing == [Code.REQUEST_TIMED_OUT]
    assert len(held.metadata.image.topics["slow"].partitions) == 5


async def test_moves_and_elections_wait_only_for_the_topics_that_they_change(held: Held) -> None:
    await held.depose("small")
    assert await held.elect(LONG_MS, "small", "no-such") == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert held.replicas.find("small", 0).leadership is not None
    assert await held.elect(LONG_MS, "slow") == [Code.ELECTION_NOT_NEEDED]
    assert await held.reassign(LONG_MS, "small", "no-such") == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert not held.replicas.is_settled


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1])
async def test_a_move_or_an_election_that_takes_longer_than_the_client_waits_is_answered_with_a_timeout(
    held: Held, timeout_ms: int
) -> None:
    await held.depose("slow")
    assert await held.elect(timeout_ms, "slow", "no-such") == [Code.REQUEST_TIMED_OUT, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert await held.reassign(timeout_ms, "slow", "no-such") == [
        Code.REQUEST_TIMED_OUT,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    held.disk.set()
    await held.replicas.applied()
    assert held.replicas.find("slow", 0).leadership is not None


async def test_a_move_and_an_election_are_answered_when_the_broker_has_carried_them_out(held: Held) -> None:
    await held.depose("slow")
    electing = asyncio.ensure_future(held.elect(LONG_MS, "slow"))
    moving = asyncio.ensure_future(held.reassign(LONG_MS, "slow"))
    done, _ = await asyncio.wait({electing, moving}, timeout=0.05)
    assert not done
    held.disk.set()
    assert (await electing, await moving) == ([Code.NONE], [Code.NONE])
    assert held.replicas.find("slow", 0).leadership is not None


@pytest.mark.parametrize(
    ("kind", "name"), [(ResourceType.TOPIC, "small"), (ResourceType.BROKER, ""), (ResourceType.BROKER, str(BROKER))]
)
async def test_changes_of_settings_wait_only_for_the_topics_that_are_used_with_them(
    held: Held, kind: ResourceType, name: str
) -> None:
    setting = "retention.ms" if kind is ResourceType.TOPIC else "log.retention.ms"
    assert await held.alter(kind, name, setting, "7000") == Code.NONE
    assert held.retention_ms("small") == 7000
    assert not held.replicas.is_settled


async def test_a_change_of_settings_is_answered_when_the_topic_has_them(held: Held) -> None:
    altering = asyncio.ensure_future(held.alter(ResourceType.TOPIC, "slow", "retention.ms", "7000"))
    done, _ = await asyncio.wait({altering}, timeout=0.05)
    assert not done
    held.disk.set()
    assert await altering == Code.NONE
    assert held.retention_ms("slow") == 7000


async def test_a_change_of_settings_that_is_not_carried_out_in_time_is_answered(held: Held) -> None:
    assert await held.alter(ResourceType.TOPIC, "slow", "retention.ms", "7000", wait_ms=1) == Code.NONE
    assert not held.replicas.is_settled
    held.disk.set()
    await held.replicas.applied()
    assert held.retention_ms("slow") == 7000


async def test_a_change_of_settings_that_is_refused_is_not_waited_for(held: Held) -> None:
    assert await held.alter(ResourceType.TOPIC, "slow", "retention.ms", "nonsense") == Code.INVALID_CONFIG
    assert not held.replicas.is_settled
