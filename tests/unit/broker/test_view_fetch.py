"""Fetch and ListOffsets of views, as the handlers answer them."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.handlers.offsets import OffsetHandlers
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.delay.delays import Delays
from penstock.errors import Code
from penstock.ids import BrokerId, TopicId
from penstock.parts import read_parts
from penstock.protocol import apis
from penstock.protocol.fetch import FetchPartition, FetchRequest
from penstock.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.replicas import Replicas
from penstock.views.catalogue import Catalogue
from support import callers
from support.logs import AT, TOPIC_ID, seen, split
from support.views import tagged, tagged_batch
from unit.protocol.kio_oracle import kio_class, kio_read

BROKER = BrokerId(1)
VIEW_ID: TopicId = uuid.UUID("9d1c6d0e-7f0a-4b55-9a3b-6a4a1f5a0b11")
LONG_MS = 60_000
"""A wait that a test never sits out."""


def _image(tags: str = "a") -> MetadataImage:
    partitions = tuple(PartitionImage(index, BROKER, 0, (BROKER,), (BROKER,)) for index in range(2))
    base = TopicImage(AT.topic, TOPIC_ID, partitions)
    view = TopicImage("view", VIEW_ID, (), {"penstock.view.of": AT.topic, "penstock.view.tags": tags})
    brokers = {BROKER: BrokerInfo(BROKER, "127.0.0.1", 9092)}
    topics = {AT.topic: base, "view": view}
    return MetadataImage(1, "cluster", brokers, BROKER, topics, {TOPIC_ID: AT.topic, VIEW_ID: "view"})


@pytest.fixture
def image() -> MetadataImage:
    return _image()


async def append(partition: Partition, *tags: str) -> None:
    await partition.append(memoryview(tagged_batch([tagged(b"x" * 50, tag) for tag in tags])), ALL_IN_SYNC)


async def everybody_waits() -> None:
    """Nothing here waits for a disk: after a few turns of the loop nobody has anything left to do."""
    for _ in range(20):
        await asyncio.sleep(0)


def wanted(offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, topic: str = "view", by_id: bool = False) -> Any:
    name, topic_id = (None, VIEW_ID.bytes) if by_id else (topic, None)
    part = FetchPartition(name, topic_id, 0, -1, offset, -1, -1, 1 << 20)
    return FetchRequest(-1, max_wait_ms, min_bytes, 1 << 20, 0, 0, -1, [part], [], "")


async def fetched(handler: FetchHandler, request: FetchRequest, version: int = 12) -> Any:
    """The one partition of the answer, as a client decodes it."""
    answer = await handler.fetch(version, 1, request, callers.client())
    frame = read_parts(answer.parts)
    body = kio_read(kio_class(apis.FETCH, version, "Response"), frame[9:])
    ((found,),) = (topic["partitions"] for topic in body["responses"])
    return found


def shown(found: Any) -> tuple[list[int], int | None]:
    """The offsets of the records, and the offset of the waymark."""
    offsets, mark = [], None
    for batch in split(found["records"] or b""):
        if batch[22] & 0x20:
            mark = seen(batch)[0].offset
        else:
            offsets += [record.offset for record in seen(batch)]
    return offsets, mark


async def test_a_fetch_gives_what_matches_and_takes_the_consumer_to_the_end(
    handler: FetchHandler, partition: Partition
) -> None:
    for tags in (("a", "b"), ("b", "b"), ("b", "a"), ("b", "c")):
        await append(partition, *tags)
    found = await fetched(handler, wanted(0))
    assert shown(found) == ([0, 5], 7)
    assert found["high_watermark"] == 8
    assert shown(await fetched(handler, wanted(1))) == ([5], 7)
    assert shown(await fetched(handler, wanted(6))) == ([], 7)
    assert shown(await fetched(handler, wanted(8))) == ([], None)


async def test_where_the_last_record_matches_there_is_no_waymark(handler: FetchHandler, partition: Partition) -> None:
    await append(partition, "b", "a")
    assert shown(await fetched(handler, wanted(0))) == ([1], None)


async def test_a_view_can_be_asked_for_by_its_id(handler: FetchHandler, partition: Partition) -> None:
    await append(partition, "b", "a", "b")
    assert shown(await fetched(handler, wanted(0, by_id=True), version=13)) == ([1], 2)


async def test_what_does_not_match_leaves_a_fetch_waiting_and_what_matches_ends_it(
    handler: FetchHandler, partition: Partition
) -> None:
    waiting = asyncio.create_task(fetched(handler, wanted(0, max_wait_ms=LONG_MS)))
    for _ in range(5):
        await append(partition, "b", "c")
        await everybody_waits()
        assert handler.parked == 1
        assert not waiting.done()
    await append(partition, "a")
    assert shown(await waiting) == ([10], None)


async def test_when_its_time_is_over_a_fetch_says_how_far_it_has_come(
    handler: FetchHandler, partition: Partition
) -> None:
    waiting = asyncio.create_task(fetched(handler, wanted(0, max_wait_ms=LONG_MS)))
    await everybody_waits()
    assert handler.parked == 1
    await append(partition, "b", "c")
    await everybody_waits()
    assert handler.parked == 1
    handler.close()
    assert shown(await waiting) == ([], 1)


async def test_a_fetch_that_wants_more_bytes_keeps_what_it_has_found(
    handler: FetchHandler, partition: Partition, catalogue: Catalogue
) -> None:
    await append(partition, "a", "b")
    waiting = asyncio.create_task(fetched(handler, wanted(0, max_wait_ms=LONG_MS, min_bytes=250)))
    await everybody_waits()
    assert handler.parked == 1
    await append(partition, "b", "a")
    assert shown(await waiting) == ([0, 3], None)
    assert catalogue.effort.looked_at_bytes == partition.log.size_bytes


async def test_what_a_view_has_found_leaves_less_room_for_others(
    handler: FetchHandler, partition: Partition, replicas: Replicas
) -> None:
    await append(partition, "a", "b")
    request = wanted(0, max_wait_ms=LONG_MS, min_bytes=500)
    request.partitions.insert(0, request.partitions[0]._replace(topic=AT.topic, index=1))
    request.max_bytes = 500
    waiting = asyncio.create_task(handler.fetch(12, 1, request, callers.client()))
    await everybody_waits()
    assert handler.parked == 1
    other = replicas.find(AT.topic, 1)
    for _ in range(4):
        await append(other, "b")
    await everybody_waits()
    handler.close()
    body = kio_read(kio_class(apis.FETCH, 12, "Response"), read_parts((await waiting).parts)[9:])
    sizes = [len(found["records"] or b"") for topic in body["responses"] for found in topic["partitions"]]
    assert shown(body["responses"][1]["partitions"][0]) == ([0], 1)
    assert 0 < sizes[0] <= 500 - (sizes[1] - 78)


async def test_a_view_whose_expression_changes_shows_something_else(
    handler: FetchHandler, partition: Partition, catalogue: Catalogue
) -> None:
    await append(partition, "a", "b")
    assert shown(await fetched(handler, wanted(0)))[0] == [0]
    catalogue.change(_image(), _image("b"))
    assert shown(await fetched(handler, wanted(0)))[0] == [1]


async def test_errors_are_those_of_the_base(handler: FetchHandler, partition: Partition) -> None:
    await append(partition, "b")
    assert (await fetched(handler, wanted(5)))["error_code"] == Code.OFFSET_OUT_OF_RANGE
    stale = wanted(0)
    stale.partitions[0] = stale.partitions[0]._replace(current_leader_epoch=4)
    assert (await fetched(handler, stale))["error_code"] == Code.UNKNOWN_LEADER_EPOCH
    beyond = wanted(0)
    beyond.partitions[0] = beyond.partitions[0]._replace(index=7)
    assert (await fetched(handler, beyond))["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    partition.follow(BrokerId(2), 1)
    assert (await fetched(handler, wanted(0)))["error_code"] == Code.NOT_LEADER_OR_FOLLOWER


async def test_offsets_are_those_of_the_base_and_records_cannot_be_deleted(
    replicas: Replicas, catalogue: Catalogue, partition: Partition, tmp_path: Path
) -> None:
    await append(partition, "a", "b", "b")
    handlers = OffsetHandlers(replicas, catalogue, Delays(ManualClock()), tmp_path)
    asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="view", partitions=(asked,)),))
    answer = await handlers.list_offsets(request, RequestContext(7, callers.client()))
    assert answer.topics[0].partitions[0].offset == 3
    everything = DeleteRecordsPartition(partition_index=0, offset=-1)
    deletion = DeleteRecordsRequest(topics=(DeleteRecordsTopic(name="view", partitions=(everything,)),), timeout_ms=0)
    refusal = await handlers.delete_records(deletion, RequestContext(2, callers.client()))
    assert refusal.topics[0].partitions[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert partition.log.start_offset == 0


def test_the_image_shows_a_view_with_the_partitions_of_its_base() -> None:
    image = _image()
    view = image.seen("view")
    assert view is not None and view.id == VIEW_ID
    assert view.partitions == image.topics[AT.topic].partitions
    assert image.topics["view"].partitions == ()
    assert image.partition_count == 2
    lonely = replace(image, topics={"view": image.topics["view"]})
    assert lonely.seen("view") == image.topics["view"]
    assert image.seen("nothing") is None
