"""What the tests of the handlers share. Those of fetches say by the fixture `image` which topics there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.handlers.fetch.partition_reads import NO_REPLICA
from penstock.broker.known_brokers import KnownBrokers
from penstock.clock import ManualClock
from penstock.cluster.metadata import MetadataImage
from penstock.config.broker import Limits, LogSettings
from penstock.delay.delays import Delays
from penstock.ids import BrokerId
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.storage.memory import MemoryEngine
from penstock.views.catalogue import Catalogue
from support.followed import Leader
from support.leading import LAG_RULES, for_ever
from support.logs import AT, NOW_MS, settings
from support.tree import Tree

BROKER = BrokerId(1)
LONG_MS = 60_000
"""A wait that a test never sits out."""


@pytest.fixture
async def tree(tmp_path: Path) -> AsyncIterator[Tree]:
    tree = await Tree.open(tmp_path / "coordination.db")
    assert isinstance(tree, Tree)
    yield tree
    await tree.close()


@pytest.fixture
async def catalogue(image: MetadataImage) -> AsyncIterator[Catalogue]:
    catalogue = Catalogue(image)
    yield catalogue
    await catalogue.close()


@pytest.fixture
async def replicas(image: MetadataImage) -> AsyncIterator[Replicas]:
    engine = MemoryEngine(LogSettings(), Limits(), ManualClock(NOW_MS))
    replicas = Replicas(BROKER, {"segmented": engine}, lambda topic, image: settings(), for_ever(), LAG_RULES)
    await replicas.open(image)
    await replicas.begin()
    yield replicas
    await replicas.close()


@pytest.fixture
def partition(replicas: Replicas) -> Partition:
    return replicas.find(AT.topic, 0)


@pytest.fixture
def handler(image: MetadataImage, replicas: Replicas, catalogue: Catalogue) -> FetchHandler:
    limits = Limits(fetch_bytes=1 << 26, parked_fetches=10, idle_connection_ms=LONG_MS)
    return FetchHandler(
        replicas,
        catalogue,
        Delays(ManualClock()),
        limits,
        ManualClock(),
        lambda partition, rack, listener: NO_REPLICA,
        lambda: None,
        KnownBrokers(BROKER, lambda: image),
    )


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    made = Leader()
    await made.open()
    yield made
    await made.close()
