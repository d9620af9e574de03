"""Metadata tells of a topic when it can be used, and hangs for no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path

import pytest

from penstock.broker.handlers.cluster import ClusterHandlers, MetadataHandler, announced
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import BrokerInfo
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import BrokerSettings, Limits
from penstock.ids import BrokerId
from penstock.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.replicas import Replicas
from penstock.storage.faulty_files import FaultyFiles
from support import callers
from support.logs import NOW_MS, batch, new_engine, settings
from support.tree import Tree, register

BROKER = BrokerId(1)
CONTEXT = RequestContext(12, callers.client())


def named(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=tuple(map(_asked, names)), allow_auto_topic_creation=False)


def _asked(name: str) -> MetadataRequestTopic:
    return MetadataRequestTopic(name=name)


class Held:
    """A broker on which a topic waits for the disk: it is made again while the one before it is being removed."""

    def __init__(
        self, metadata: MetadataChanges, replicas: Replicas, ask: MetadataHandler, disk: threading.Event
    ) -> None:
        self.metadata = metadata
        self.replicas = replicas
        self.disk = disk
        self._ask = ask

    async def ask(self, request: MetadataRequest) -> list[tuple[str | None, int, int]]:
        response = await self._ask(request, CONTEXT)
        return [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics]


@pytest.fixture
async def held(tmp_path: Path, tree: Tree) -> AsyncIterator[Held]:
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BROKER))
    await metadata.start()
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 19092))
    files, disk = FaultyFiles(tmp_path), threading.Event()
    engine = new_engine(tmp_path / "logs", files=files)
    lease = LeaderLease(ManualClock(NOW_MS), lambda: inf, 1000)
    rules = LagRules(max_ms=1000, max_messages=0)
    replicas = Replicas(BROKER, {"segmented": engine}, lambda topic, image: settings(), lease, rules)
    await replicas.open(metadata.image)
    await replicas.begin()
    metadata.subscribe(replicas.change)
    handlers = ClusterHandlers(metadata, BrokerSettings(), Limits())
    await metadata.create_topics([TopicCreation("small", 1), TopicCreation("slow", 3)])
    await replicas.applied()
    await replicas.find("slow", 0).append(memoryview(batch(b"value")), 1)

    def wait(what: str, path: Path) -> None:
        if what == "rename" and path.is_dir():
            disk.wait()

    files.on_operation = wait
    await metadata.delete_topics(["slow"])
    await metadata.create_topics([TopicCreation("slow", 4)])
    yield Held(metadata, replicas, announced(handlers.metadata, metadata, replicas), disk)
    disk.set()
    await replicas.close()
    await metadata.close()


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
