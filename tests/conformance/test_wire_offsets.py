"""ListOffsets and OffsetForLeaderEpoch in every version, for every time that means something special."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import DescribeLogDirsResponse as KafkaPythonResponse

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.decoding import decode
from penstock.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from support.broker_process import BrokerProcess
from support.epochs import end_of_epoch, raise_epoch
from support.wire import Wire, batch_of

BrokerFactory = Callable[..., BrokerProcess]

VERSIONS = range(apis.LIST_OFFSETS.min_version, apis.LIST_OFFSETS.max_version + 1)
FIRST_VERSION = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


def ask(wire: Wire, topic: str, *timestamps: int, version: int = 11) -> list[dict[str, Any]]:
    """The answers to one request that asks for partition 0 at these times."""
    partitions = tuple(ListOffsetsPartition(partition_index=0, timestamp=each) for each in timestamps)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=partitions),))
    answers: list[dict[str, Any]] = wire.ask(apis.LIST_OFFSETS, version, request)["topics"][0]["partitions"]
    return answers


def offset_and_epoch(wire: Wire, topic: str, timestamp: int) -> tuple[int, int]:
    (found,) = ask(wire, topic, timestamp)
    assert found["error_code"] == 0, found
    return found["offset"], found["leader_epoch"]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_special_time_is_answered_from_the_version_on_that_brought_it(
    broker: BrokerProcess, topic: str, version: int
) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b"))
        for timestamp, first in FIRST_VERSION.items():
            (found,) = ask(wire, topic, timestamp, version=version)
            expected = Code.NONE if version >= first else Code.UNSUPPORTED_VERSION
            assert found["error_code"] == expected, (timestamp, found)
        (found,) = ask(wire, topic, -7, version=version)
        assert found["error_code"] == Code.UNSUPPORTED_VERSION and found["offset"] == -1


def test_special_times_of_a_log_with_records(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b"))
        assert offset_and_epoch(wire, topic, EARLIEST_TIMESTAMP) == (0, 0)
        assert offset_and_epoch(wire, topic, EARLIEST_LOCAL_TIMESTAMP) == (0, 0)
        assert offset_and_epoch(wire, topic, LATEST_TIMESTAMP) == (2, 0)
        assert offset_and_epoch(wire, topic, MAX_TIMESTAMP)[1] == 0
        # Nothing is in another tier, and nothing waits to be brought there.
        assert offset_and_epoch(wire, topic, LATEST_TIERED_TIMESTAMP) == (-1, -1)
        assert offset_and_epoch(wire, topic, EARLIEST_PENDING_UPLOAD_TIMESTAMP) == (-1, -1)


def test_a_partition_that_is_asked_for_twice_is_refused(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        answers = ask(wire, topic, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        assert [found["error_code"] for found in answers] == [Code.INVALID_REQUEST] * 2


def test_an_empty_log_begins_and_ends_in_the_epoch_of_its_leader(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        for timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIMESTAMP):
            assert offset_and_epoch(wire, topic, timestamp) == (0, 0)
        assert offset_and_epoch(wire, topic, MAX_TIMESTAMP) == (-1, -1)
        assert offset_and_epoch(wire, topic, 0) == (-1, -1)
        wire.produce(topic, batch_of(b"a", b"b", b"c"))
    assert broker.stop() == 0
    asyncio.run(raise_epoch(broker, topic, 4))
    broker.start()
    with Wire(broker.address) as wire:
        assert offset_and_epoch(wire, topic, EARLIEST_TIMESTAMP) == (0, 0)
        assert offset_and_epoch(wire, topic, LATEST_TIMESTAMP) == (3, 4)
        asked = DeleteRecordsTopic(name=topic, partitions=(DeleteRecordsPartition(partition_index=0, offset=3),))
        wire.ask(apis.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=(asked,), timeout_ms=1000))
        assert offset_and_epoch(wire, topic, EARLIEST_TIMESTAMP) == (3, 4)


def test_the_end_of_an_epoch_without_records_is_known_to_those_who_were_told_the_epoch(
    new_broker: BrokerFactory, topic: str
) -> None:
    def ends(wire: Wire) -> dict[int, tuple[int, int]]:
        found = {epoch: end_of_epoch(wire, topic, epoch) for epoch in (0, 2, 4, 5)}
        return {epoch: (end["leader_epoch"], end["end_offset"]) for epoch, end in found.items()}

    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        assert ends(wire)[0] == (0, 0)
    assert broker.stop() == 0
    asyncio.run(raise_epoch(broker, topic, 4))
    broker.start()
    with Wire(broker.address) as wire:
        assert ends(wire) == {0: (0, 0), 2: (2, 0), 4: (4, 0), 5: (-1, -1)}
        wire.produce(topic, batch_of(b"a"))
        assert ends(wire) == {0: (0, 0), 2: (2, 0), 4: (4, 1), 5: (-1, -1)}


def test_segments_are_told_to_whoever_asks_and_skipped_by_others(broker: BrokerProcess, topic: str) -> None:
    api = apis.DESCRIBE_LOG_DIRS
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"x" * 100, b"y"))
        wanted = (DescribableLogDirTopic(topic=topic, partitions=(0,)),)
        for version in range(api.min_version, api.max_version + 1):
            # Who does not ask is sent nothing but Kafka's fields: kio refuses all others.
            told = wire.ask(api, version, DescribeLogDirsRequest(topics=wanted))
            (plain,) = told["results"][0]["topics"][0]["partitions"]
            wire.send(api, version, DescribeLogDirsRequest(topics=wanted, include_segments=True))
            frame, is_flexible = wire.frame(), version >= api.flexible_from
            # kafka-python knows no such field, and skips it.
            others = KafkaPythonResponse.decode(frame, version=version, header=True)
            (other,) = others.results[0].topics[0].partitions
            assert (other.partition_index, other.partition_size) == (0, plain["partition_size"])
            ours, _ = decode(DescribeLogDirsResponse, version, frame, 4 + is_flexible)
            (partition,) = ours.results[0].topics[0].partitions
            if not is_flexible:
                assert partition.segments == ()
                continue
            (segment,) = partition.segments
            assert (segment.base_offset, segment.end_offset, segment.size) == (0, 2, plain["partition_size"])
            assert 0 < segment.first_timestamp <= segment.max_timestamp
