"""Fetch and ListOffsets for readers that want only what is committed, as their clients decode the answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.handlers.offsets import OffsetHandlers
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.delay.delays import Delays
from penstock.ids import BrokerId
from penstock.parts import read_parts
from penstock.protocol import apis
from penstock.protocol.fetch import FetchPartition, FetchRequest
from penstock.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.replicas import Replicas
from penstock.storage.aborted import AbortedTransaction
from penstock.views.catalogue import Catalogue
from support import callers
from support.logs import AT, NOW_MS, TOPIC_ID, batch
from support.transactions import shown, txn_batch
from unit.protocol.kio_oracle import kio_class, kio_read

BROKER = BrokerId(1)
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LONG_MS = 60_000
"""A wait that a test never sits out."""


@pytest.fixture
def image() -> MetadataImage:
    partitions = tuple(PartitionImage(index, BROKER, 0, (BROKER,), (BROKER,)) for index in range(2))
    topic = TopicImage(AT.topic, TOPIC_ID, partitions)
    brokers = {BROKER: BrokerInfo(BROKER, "127.0.0.1", 9092)}
    return MetadataImage(1, "cluster", brokers, BROKER, {AT.topic: topic}, {TOPIC_ID: AT.topic})


async def fetch(
    handler: FetchHandler,
    *,
    isolation: int = READ_COMMITTED,
    version: int = 12,
    offset: int = 0,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partitions: int = 1,
) -> list[dict[str, Any]]:
    wanted = [
        FetchPartition(AT.topic, None, index, -1, offset if index == 0 else 0, -1, -1, 1 << 20)
        for index in range(partitions)
    ]
    request = FetchRequest(-1, wait_ms, min_bytes, max_bytes, isolation, 0, -1, wanted, [], "")
    answer = await handler.fetch(version, 7, request, callers.client())
    frame = read_parts(answer.parts)
    body = kio_read(kio_class(apis.FETCH, version, "Response"), frame[9 if version >= 12 else 8 :])
    ((found),) = (topic["partitions"] for topic in body["responses"])
    return list(found)


def values(found: dict[str, Any]) -> list[bytes | None]:
    aborted = [AbortedTransaction(each["producer_id"], each["first_offset"]) for each in found["aborted_transactions"]]
    return [record.value for record in shown(found["records"], aborted)]


async def produce(partition: Partition, value: bytes, at_ms: int = NOW_MS) -> None:
    await partition.append(memoryview(batch(value, at_ms=at_ms)), ALL_IN_SYNC)


async def txn_produce(partition: Partition, value: bytes, *, sequence: int = 0, at_ms: int = NOW_MS) -> None:
    made = txn_batch(value, producer=5, sequence=sequence, at_ms=at_ms)
    await partition.append(memoryview(made), ALL_IN_SYNC, guard=partition.log.producers.guard(5))


async def end(partition: Partition, *, commit: bool) -> None:
    await partition.append_marker(5, 0, committed=commit, coordinator_epoch=0)


async def everybody_waits() -> None:
    """Nothing here waits for a disk: after a few turns of the loop nobody has anything left to do."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("version", range(apis.FETCH.min_version, 13))
async def test_every_version_tells_what_was_aborted_and_where_it_is_stable(
    handler: FetchHandler, partition: Partition, version: int
) -> None:
    await txn_produce(partition, b"aborted")
    await end(partition, commit=False)
    await produce(partition, b"plain")
    await txn_produce(partition, b"open", sequence=1)
    (found,) = await fetch(handler, version=version)
    assert (found["high_watermark"], found["last_stable_offset"]) == (4, 3)
    assert found["aborted_transactions"] == [{"producer_id": 5, "first_offset": 0}]
    assert values(found) == [b"plain"]
    (found,) = await fetch(handler, version=version, isolation=READ_UNCOMMITTED)
    assert (found["high_watermark"], found["last_stable_offset"]) == (4, 3)
    assert found["aborted_transactions"] is None
    assert b"aborted" in found["records"] and b"open" in found["records"]


async def test_where_nothing_was_aborted_the_list_is_empty(handler: FetchHandler, partition: Partition) -> None:
    await txn_produce(partition, b"committed")
    await end(partition, commit=True)
    (found, other) = await fetch(handler, partitions=2)
    assert found["aborted_transactions"] == other["aborted_transactions"] == []
    assert values(found) == [b"committed"]


async def test_a_partition_for_which_there_is_no_room_has_an_empty_list_too(
    handler: FetchHandler, replicas: Replicas
) -> None:
    for index in range(2):
        await txn_produce(replicas.find(AT.topic, index), b"x" * 100)
        await end(replicas.find(AT.topic, index), commit=False)
    (first, second) = await fetch(handler, partitions=2, max_bytes=100)
    assert first["aborted_transactions"] == [{"producer_id": 5, "first_offset": 0}]
    assert (second["records"], second["aborted_transactions"]) == (b"", [])


@pytest.mark.parametrize("commit", [True, False])
async def test_a_parked_reader_is_woken_by_the_marker_and_not_before(
    handler: FetchHandler, partition: Partition, commit: bool
) -> None:
    await txn_produce(partition, b"first")
    asked = asyncio.get_running_loop().create_task(fetch(handler, wait_ms=LONG_MS))
    await everybody_waits()
    assert handler.parked == 1
    await txn_produce(partition, b"second", sequence=1)
    await produce(partition, b"plain")
    await everybody_waits()
    assert handler.parked == 1 and not asked.done()
    await end(partition, commit=commit)
    async with asyncio.timeout(10):
        (found,) = await asked
    assert values(found) == ([b"first", b"second", b"plain"] if commit else [b"plain"])


async def test_a_marker_that_makes_many_bytes_visible_is_enough_for_a_reader_that_waits_for_many(
    handler: FetchHandler, partition: Partition
) -> None:
    for number in range(20):
        await txn_produce(partition, b"x" * 1000, sequence=number)
    asked = asyncio.get_running_loop().create_task(fetch(handler, wait_ms=LONG_MS, min_bytes=15_000))
    await everybody_waits()
    assert handler.parked == 1
    await end(partition, commit=True)
    async with asyncio.timeout(10):
        (found,) = await asked
    assert len(values(found)) == 20


async def test_a_reader_waits_on_if_a_marker_does_not_make_enough_visible(
    handler: FetchHandler, partition: Partition
) -> None:
    await txn_produce(partition, b"little")
    asked = asyncio.get_running_loop().create_task(fetch(handler, wait_ms=LONG_MS, min_bytes=2000))
    await everybody_waits()
    assert handler.parked == 1
    await end(partition, commit=True)
    await everybody_waits()
    assert handler.parked == 1 and not asked.done()
    await produce(partition, b"x" * 2000)
    async with asyncio.timeout(10):
        (found,) = await asked
    assert values(found) == [b"little", b"x" * 2000]


async def test_offsets_are_looked_up_below_the_last_stable_one(
    replicas: Replicas, catalogue: Catalogue, partition: Partition, tmp_path: Path
) -> None:
    handlers = OffsetHandlers(replicas, catalogue, Delays(ManualClock()), tmp_path)
    await produce(partition, b"plain", at_ms=NOW_MS + 10)
    await txn_produce(partition, b"open", at_ms=NOW_MS + 20)

    async def look_up(timestamp: int, isolation: int) -> int:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=(ListOffsetsTopic(name=AT.topic, partitions=(wanted,)),),
        )
        answer = await handlers.list_offsets(request, RequestContext(7, callers.client()))
        return answer.topics[0].partitions[0].offset

    both = (READ_UNCOMMITTED, READ_COMMITTED)
    assert [await look_up(LATEST_TIMESTAMP, each) for each in both] == [2, 1]
    assert [await look_up(EARLIEST_TIMESTAMP, each) for each in both] == [0, 0]
    assert [await look_up(NOW_MS + 15, each) for each in both] == [1, -1]
    assert [await look_up(NOW_MS + 5, each) for each in both] == [0, 0]
    assert [await look_up(MAX_TIMESTAMP, each) for each in both] == [1, -1]
    await end(partition, commit=True)
    assert await look_up(LATEST_TIMESTAMP, READ_COMMITTED) == 3
    assert await look_up(MAX_TIMESTAMP, READ_COMMITTED) == 1, "the time of a marker does not count"
