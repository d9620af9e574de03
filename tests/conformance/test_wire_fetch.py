"""Fetch, and the questions about offsets and epochs, at the level of bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest
from penstock.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.records.records import Record, build_batch
from support.broker_process import BrokerProcess
from support.waiting import until
from support.wire import Wire, batch_of, fetch_request

BrokerFactory = Callable[..., BrokerProcess]

LONG_MS = 20_000
"""A wait that a test never sits out: whoever does has not been woken."""
SOON_S = 10.0


def parked(broker: BrokerProcess) -> float:
    return broker.metric("penstock_parked_fetches")


def partitions_of(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The parts of a fetch of one topic by partition."""
    return {part["partition_index"]: part for topic in answer["responses"] for part in topic["partitions"]}


def list_offset(wire: Wire, topic: str, timestamp: int, leader_epoch: int = -1) -> dict[str, Any]:
    partition = ListOffsetsPartition(partition_index=0, current_leader_epoch=leader_epoch, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(partition,)),))
    answer = wire.ask(apis.LIST_OFFSETS, 7, request)
    result: dict[str, Any] = answer["topics"][0]["partitions"][0]
    return result


def end_of_epoch(wire: Wire, topic: str, epoch: int, current: int = -1) -> dict[str, Any]:
    partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic=topic, partitions=(partition,)),))
    answer = wire.ask(apis.OFFSET_FOR_LEADER_EPOCH, 4, request)
    result: dict[str, Any] = answer["topics"][0]["partitions"][0]
    return result


@pytest.mark.parametrize("version", range(apis.FETCH.min_version, apis.FETCH.max_version + 1))
def test_every_version_of_fetch_is_answered(broker: BrokerProcess, topic: str, version: int) -> None:
    with Wire(broker.address) as wire:
        topic_id = wire.create_topic(topic)
        wire.produce(topic, batch_of(b"stored", b"twice"))
        found = wire.fetch(topic if version <= 12 else topic_id, 0, version=version)
        assert b"stored" in found["records"]
        assert (found["error_code"], found["high_watermark"], found["last_stable_offset"]) == (0, 2, 2)
        past = wire.fetch(topic if version <= 12 else topic_id, 3, version=version)
        assert past["error_code"] == Code.OFFSET_OUT_OF_RANGE


def test_a_fetch_waits_until_data_arrives_and_returns_then(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as reader, Wire(broker.address) as writer:
        writer.create_topic(topic)
        started = time.monotonic()
        asked = reader.send(apis.FETCH, 12, fetch_request([(topic, 0, 0)], max_wait_ms=LONG_MS))
        assert not reader.has_answer(0.2)
        writer.produce(topic, batch_of(b"news"))
        answer = reader.receive(apis.FETCH, 12, asked)
    assert b"news" in answer["responses"][0]["partitions"][0]["records"]
    assert time.monotonic() - started < SOON_S


def test_a_fetch_of_several_partitions_is_woken_by_any(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as reader, Wire(broker.address) as writer:
        writer.create_topic(topic, partitions=3)
        wanted = [(topic, partition, 0) for partition in range(3)]
        started = time.monotonic()
        asked = reader.send(apis.FETCH, 12, fetch_request(wanted, max_wait_ms=LONG_MS))
        writer.produce(topic, batch_of(b"news"), partition=2)
        answer = reader.receive(apis.FETCH, 12, asked)
    assert [index for index, part in partitions_of(answer).items() if part["records"]] == [2]
    assert time.monotonic() - started < SOON_S


def test_a_fetch_with_nothing_to_read_waits_its_time_and_is_answered_empty(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        started = time.monotonic()
        found = wire.fetch(topic, 0, max_wait_ms=300)
        assert time.monotonic() - started > 0.29
        assert (found["error_code"], found["records"] or b"") == (0, b"")
        # Without a wait it is answered at once.
        assert not wire.fetch(topic, 0)["records"]


def test_a_fetch_waits_for_as_many_bytes_as_it_asked_for(broker: BrokerProcess, topic: str) -> None:
    batch = batch_of(b"x" * 400)
    with Wire(broker.address) as reader, Wire(broker.address) as writer:
        writer.create_topic(topic)
        writer.produce(topic, batch)
        request = fetch_request([(topic, 0, 0)], max_wait_ms=LONG_MS, min_bytes=3 * len(batch))
        asked = reader.send(apis.FETCH, 12, request)
        writer.produce(topic, batch)
        assert not reader.has_answer(0.2)
        writer.produce(topic, batch)
        answer = reader.receive(apis.FETCH, 12, asked)
    assert len(answer["responses"][0]["partitions"][0]["records"]) == 3 * len(batch)


def test_too_few_bytes_are_returned_when_the_time_is_over(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"little"))
        found = wire.fetch(topic, 0, max_wait_ms=200, min_bytes=1 << 20)
        assert b"little" in found["records"]


def test_a_fetch_returns_at_least_one_batch_however_small_its_limits(broker: BrokerProcess, topic: str) -> None:
    first, second = batch_of(b"x" * 5000), batch_of(b"y" * 5000)
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, first)
        wire.produce(topic, second)
        for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0, "partition_max_bytes": 0}):
            assert len(wire.fetch(topic, 0, **limits)["records"]) == len(first)
        # A limit that holds for both lets both through, and one in between only the first.
        assert len(wire.fetch(topic, 0, max_bytes=len(first) + len(second))["records"]) == len(first) + len(second)
        assert len(wire.fetch(topic, 0, partition_max_bytes=len(first) + 100)["records"]) == len(first)


def test_only_the_first_partition_may_exceed_the_limit_of_the_fetch(broker: BrokerProcess, topic: str) -> None:
    batch = batch_of(b"x" * 5000)
    with Wire(broker.address) as wire:
        wire.create_topic(topic, partitions=3)
        for partition in range(3):
            wire.produce(topic, batch, partition=partition)
        wanted = [(topic, partition, 0) for partition in range(3)]
        answer = wire.ask(apis.FETCH, 12, fetch_request(wanted, max_bytes=100))
    sizes = {index: len(part["records"] or b"") for index, part in partitions_of(answer).items()}
    assert sizes == {0: len(batch), 1: 0, 2: 0}


def test_a_fetch_from_inside_a_batch_returns_the_whole_batch(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b", b"c"))
        wire.produce(topic, batch_of(b"d"))
        records = wire.fetch(topic, 2)["records"]
        assert int.from_bytes(records[:8], "big") == 0
        assert int.from_bytes(wire.fetch(topic, 3)["records"][:8], "big") == 3


def test_offsets_outside_the_log_are_refused_at_once(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a"))
        for offset in (-1, 2, 2**62):
            assert wire.fetch(topic, offset, max_wait_ms=LONG_MS)["error_code"] == Code.OFFSET_OUT_OF_RANGE


def test_fetch_sessions_are_declined_and_unknown_ones_refused(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wanted = [(topic, 0, 0)]
        for epoch in (0, -1):
            answer = wire.ask(apis.FETCH, 12, fetch_request(wanted, session_epoch=epoch))
            assert (answer["error_code"], answer["session_id"]) == (0, 0)
            assert answer["responses"]
        answer = wire.ask(apis.FETCH, 12, fetch_request(wanted, session_id=77, session_epoch=1))
        assert answer["error_code"] == Code.FETCH_SESSION_ID_NOT_FOUND
        assert answer["responses"] == []


def test_a_topic_is_fetched_by_its_id(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        topic_id = wire.create_topic(topic)
        wire.produce(topic, batch_of(b"by id"))
        assert b"by id" in wire.fetch(topic_id, 0)["records"]


def test_an_unknown_topic_id_or_name_is_refused_beside_known_ones(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        topic_id, stranger = wire.create_topic(topic), uuid4()
        wire.produce(topic, batch_of(b"known"))
        request = fetch_request([(stranger, 0, 0), (topic_id, 0, 0)], 16, max_wait_ms=LONG_MS)
        by_id = {part["topic_id"]: part["partitions"][0] for part in wire.ask(apis.FETCH, 16, request)["responses"]}
        assert by_id[stranger]["error_code"] == Code.UNKNOWN_TOPIC_ID
        assert b"known" in by_id[topic_id]["records"]
        assert wire.fetch("no-such-topic", 0)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
        request = fetch_request([(topic, 5, 0)], max_wait_ms=LONG_MS)
        answer = wire.ask(apis.FETCH, 12, request)
        assert answer["responses"][0]["partitions"][0]["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_leader_epoch_from_the_future_is_refused(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"x"))
        epoch = wire.metadata(topic)["partitions"][0]["leader_epoch"]
        assert wire.fetch(topic, 0, leader_epoch=epoch)["error_code"] == 0
        assert wire.fetch(topic, 0, leader_epoch=epoch + 1)["error_code"] == Code.UNKNOWN_LEADER_EPOCH
        assert list_offset(wire, topic, LATEST_TIMESTAMP, epoch + 1)["error_code"] == Code.UNKNOWN_LEADER_EPOCH
        assert end_of_epoch(wire, topic, epoch, epoch + 1)["error_code"] == Code.UNKNOWN_LEADER_EPOCH


def test_the_end_of_an_epoch_can_be_looked_up(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b"))
        epoch = wire.metadata(topic)["partitions"][0]["leader_epoch"]
        found = end_of_epoch(wire, topic, epoch)
        assert (found["error_code"], found["leader_epoch"], found["end_offset"]) == (0, epoch, 2)
        beyond = end_of_epoch(wire, topic, epoch + 5)
        assert (beyond["error_code"], beyond["leader_epoch"], beyond["end_offset"]) == (0, -1, -1)
        assert end_of_epoch(wire, "no-such-topic", 0)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(apis.LIST_OFFSETS.min_version, apis.LIST_OFFSETS.max_version + 1))
def test_every_version_of_list_offsets_is_answered(broker: BrokerProcess, topic: str, version: int) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b"))
        partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(partition,)),))
        answer = wire.ask(apis.LIST_OFFSETS, version, request)
    assert answer["topics"][0]["partitions"][0]["offset"] == 2


def test_offsets_are_looked_up_by_time(broker: BrokerProcess, topic: str) -> None:
    now = int(time.time()) * 1000 - 100_000
    # Times within a batch and over batches; the largest is not the last.
    batches = [[0, 2000, 1000], [9000, 3000], [4000]]
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        assert list_offset(wire, topic, now)["offset"] == -1
        for times in batches:
            wire.produce(topic, bytes(build_batch([Record(None, b"x", timestamp_ms=now + time_) for time_ in times])))
        found = {delta: list_offset(wire, topic, now + delta)["offset"] for delta in (-1, 0, 1, 2000, 2001, 9000, 9001)}
        assert found == {-1: 0, 0: 0, 1: 1, 2000: 1, 2001: 3, 9000: 3, 9001: -1}
        latest = list_offset(wire, topic, MAX_TIMESTAMP)
        assert (latest["offset"], latest["timestamp"]) == (3, now + 9000)
        assert list_offset(wire, topic, EARLIEST_TIMESTAMP)["offset"] == 0
        assert list_offset(wire, topic, LATEST_TIMESTAMP)["offset"] == 6
        assert list_offset(wire, topic, -77)["error_code"] != 0


def test_the_fetch_of_a_client_that_went_away_is_dropped(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        gone = [Wire(broker.address) for _ in range(10)]
        for reader in gone:
            reader.send(apis.FETCH, 12, fetch_request([(topic, 0, 0)], max_wait_ms=500_000))
        until(lambda: parked(broker) == 10, "ten fetches are parked")
        for reader in gone:
            reader.socket.close()
        until(lambda: parked(broker) == 0, "no fetch is parked any more")
        until(lambda: broker.metric("penstock_connections") == 1, "only our own connection is left")
        assert wire.produce(topic, batch_of(b"x"))["error_code"] == 0


def test_a_parked_fetch_of_a_topic_that_is_deleted_is_told_so(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as reader, Wire(broker.address) as wire:
        wire.create_topic(topic)
        asked = reader.send(apis.FETCH, 12, fetch_request([(topic, 0, 0)], max_wait_ms=LONG_MS))
        until(lambda: parked(broker) == 1, "the fetch is parked")
        wire.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=(topic,), timeout_ms=1000))
        answer = reader.receive(apis.FETCH, 12, asked)
    assert answer["responses"][0]["partitions"][0]["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_readers_parked_on_one_partition_all_get_the_news(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as writer:
        writer.create_topic(topic)
        readers = [Wire(broker.address) for _ in range(50)]
        request = fetch_request([(topic, 0, 0)], max_wait_ms=LONG_MS)
        asked = [reader.send(apis.FETCH, 12, request) for reader in readers]
        writer.produce(topic, batch_of(b"for all"))
        for reader, number in zip(readers, asked, strict=True):
            with reader:
                answer = reader.receive(apis.FETCH, 12, number)
                assert b"for all" in answer["responses"][0]["partitions"][0]["records"]


def test_a_reader_sees_every_record_once_while_others_write(broker: BrokerProcess, topic: str) -> None:
    writers, batches = 4, 100
    with Wire(broker.address) as wire:
        wire.create_topic(topic)

    def write(name: int) -> None:
        with Wire(broker.address) as wire:
            for number in range(batches):
                assert wire.produce(topic, batch_of(b"<%d.%d>" % (name, number)))["error_code"] == 0

    threads = [threading.Thread(target=write, args=(name,)) for name in range(writers)]
    for thread in threads:
        thread.start()
    seen, offset = b"", 0
    with Wire(broker.address) as reader:
        while offset < writers * batches:
            records = reader.fetch(topic, offset, max_wait_ms=500, partition_max_bytes=2000)["records"] or b""
            position = 0
            while position < len(records):
                assert int.from_bytes(records[position : position + 8], "big") == offset
                offset += 1
                position += 12 + int.from_bytes(records[position + 8 : position + 12], "big")
            seen += records
    for thread in threads:
        thread.join()
    assert all(seen.count(b"<%d.%d>" % (name, number)) == 1 for name in range(writers) for number in range(batches))
