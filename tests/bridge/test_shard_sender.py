"""The sender of a shard when it matters: after a crash between sending and settling, and without its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.bridge.bridge_metrics import BridgeMetrics
from penstock.bridge.delay_database import DelayDatabase, PartitionBatch
from penstock.bridge.forwarder import TransactionalForwarder
from penstock.bridge.intake_message import Waiting
from penstock.bridge.leases import Lease, renew
from penstock.bridge.options import StoreOptions
from penstock.bridge.shard_sender import ShardSender
from penstock.bridge.table_plan import PlanKind, TablePlan
from penstock.bridge.tables import Layout
from penstock.bridge.target_topics import TargetTopics
from penstock.clock import SystemClock
from penstock.config.database_address import DatabaseAddress
from penstock.ids import TopicPartition
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.ports import Outgoing
from penstock.sql.database import Database
from support.bridged import collect, create_topics, values_of
from support.broker_process import BrokerProcess

LEASE_MS = 60_000
LAYOUT = Layout(databases=1, index=0, tables=1, plan="single", period_ms=0, by_topic=False)
CLOCK = SystemClock()


@pytest.fixture
async def delays(tmp_path: Path) -> AsyncIterator[DelayDatabase]:
    address = DatabaseAddress.parse(f"sqlite:///{tmp_path / 'bridge.db'}")
    database = await Database.open(address)
    opened = DelayDatabase(database, "bridge", LAYOUT, TablePlan(PlanKind.SINGLE), CLOCK)
    await opened.open()
    yield opened
    await database.close()


class Bridge:
    """What a bridge has, of which a test starts one sender after the other."""

    def __init__(self, broker: BrokerProcess, topic: str, delays: DelayDatabase) -> None:
        create_topics(broker.kafka, {topic: 1, f"{topic}.progress": 1, f"{topic}.dead": 1})
        self._connection = ConnectionSettings(broker.kafka)
        self._delays = delays
        self._topic = topic
        self._options = StoreOptions(topics=("delays",), group=topic, databases=(delays.database.address,))
        self.metrics = BridgeMetrics()

    def forwarder(self) -> TransactionalForwarder:
        return TransactionalForwarder(self._connection, self._topic, f"{self._topic}.progress", 0, CLOCK)

    def sender(self, member: str, epoch: int) -> ShardSender:
        lease = Lease(0, epoch, CLOCK.monotonic_ms() + LEASE_MS, CLOCK)
        topics = TargetTopics(self._connection, CLOCK)
        return ShardSender(self._delays, lease, member, self.forwarder(), topics, self._options, self.metrics, CLOCK)

    async def take_lease(self, member: str) -> int:
        held = await self._delays.database.run(
            lambda connection: renew(connection, self._delays.names, member, [0], LEASE_MS, 0)
        )
        return held.held[0]

    async def store(self, *values: bytes) -> None:
        entries = [
            (
                0,
                Waiting(
                    offset=at, topic=self._topic, partition=None, key=None, value=value, headers=(), deliver_at_ms=1
                ),
            )
            for at, value in enumerate(values)
        ]
        tp = TopicPartition("delays", 0)
        batch = PartitionBatch(topic_partition=tp, source="id/0", start=0, end=len(entries), entries=entries)
        await self._delays.store([batch])

    async def until_nothing_waits(self) -> None:
        while (await self._delays.pending())[0]:  # noqa: ASYNC110  (another task empties the table)
            await asyncio.sleep(0.02)


async def test_what_was_sent_and_not_settled_is_not_sent_again(
    broker: BrokerProcess, topic: str, delays: DelayDatabase
) -> None:
    bridge = Bridge(broker, topic, delays)
    await bridge.store(b"sent", b"left")
    killed = bridge.forwarder()
    await asyncio.to_thread(killed.start, delays.incarnation(0))
    (row, _) = await delays.read_due(0, (0, 0), CLOCK.now_ms(), 10, 1 << 20)
    await asyncio.to_thread(killed.forward, [Outgoing(topic, row.value)], [row.key])
    # The bridge is killed here, and another one takes over.
    sender = bridge.sender("b", await bridge.take_lease("b"))
    running = asyncio.create_task(sender.run())
    async with asyncio.timeout(30):
        await bridge.until_nothing_waits()
    sender.stop()
    await running
    killed.close()
    counts = bridge.metrics.counts()
    assert (counts.forwarded, counts.repeats_avoided) == (1, 1)
    arrived = await asyncio.to_thread(collect, broker.kafka, topic, lambda found: len(found) >= 2, quiet_s=1)
    assert values_of(arrived) == [b"sent", b"left"]


async def test_a_sender_that_wakes_up_without_its_lease_sends_nothing(
    broker: BrokerProcess, topic: str, delays: DelayDatabase
) -> None:
    bridge = Bridge(broker, topic, delays)
    await bridge.store(b"once")
    epoch = await bridge.take_lease("a")
    # By its own clock it still has the lease, in the database it has lost it to itself under another epoch.
    late, right = bridge.sender("a", epoch - 1), bridge.sender("a", epoch)
    async with asyncio.timeout(30):
        await late.run()
    assert (await delays.pending())[0] == 1
    running = asyncio.create_task(right.run())
    async with asyncio.timeout(30):
        await bridge.until_nothing_waits()
    right.stop()
    await running
    arrived = await asyncio.to_thread(collect, broker.kafka, topic, bool, quiet_s=1)
    assert values_of(arrived) == [b"once"]
