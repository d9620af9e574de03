"""What librdkafka's own test suite, kcat and Kafka's tools have found in this broker: docs/conformance.md."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.records.batch import read_header
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch
from support.broker_process import BrokerProcess
from support.programs import required_program, run
from support.wire import Wire, request_frame

PATIENCE_S = 30.0


# It compresses with lz4 only for a broker that advertises FindCoordinator 0, with the others for one with old Produces.
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_an_old_librdkafka_compresses_as_it_was_told(broker: BrokerProcess, topic: str, codec: Codec) -> None:
    kcat = required_program("kcat")
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        done = run([kcat, "-b", broker.kafka, "-P", "-t", topic, "-p", "0", "-z", codec.name.lower()], b"a" * 2000)
        assert done.returncode == 0, done.stderr.decode()
        assert read_header(memoryview(wire.fetch(topic, 0)["records"])).codec == codec


@pytest.mark.parametrize(("version", "tail_bytes"), [(0, 0), (1, 4), (2, 12)])
def test_a_produce_from_before_record_batches_is_told_so(
    broker: BrokerProcess, topic: str, version: int, tail_bytes: int
) -> None:
    name = topic.encode()
    body = struct.pack(">hii", 1, 1000, 1) + struct.pack(f">h{len(name)}si", len(name), name, 1)
    body += struct.pack(">ii4s", 0, 4, b"\0" * 4)
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.socket.sendall(request_frame(apis.PRODUCE, version, 7, body))
        answer = wire.frame()
        assert struct.unpack_from(">i", answer) == (7,)
        partition_at = len(answer) - tail_bytes - 14
        assert struct.unpack_from(">ihq", answer, partition_at) == (0, Code.UNSUPPORTED_VERSION, -1)
        assert wire.metadata(topic)["error_code"] == 0, "the connection lives on"


@pytest.mark.parametrize("codec", Codec)
def test_a_time_is_looked_up_inside_a_large_compressed_batch(broker: BrokerProcess, topic: str, codec: Codec) -> None:
    """Blocks of more than a few kilobytes of lz4 or zstd were once taken for damaged."""
    first_ms = int(time.time() * 1000) - 60_000
    records = [Record(None, os.urandom(5_000) * 2, timestamp_ms=first_ms + number) for number in range(20)]
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        assert wire.produce(topic, bytes(build_batch(records, codec=codec)))["error_code"] == 0
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": topic})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, first_ms + 13)], PATIENCE_S)
    finally:
        consumer.close()
    assert found.error is None
    assert found.offset == 13


def test_a_group_can_be_deleted_as_soon_as_the_session_of_its_last_member_is_over(
    new_broker: Callable[..., BrokerProcess],
) -> None:
    """It once stood until the broker had next looked for sessions that are over."""
    session_ms = 100
    broker = new_broker({"groups.min_session_timeout_ms": session_ms, "groups.initial_rebalance_delay_ms": 0})
    with Wire(broker.address) as wire:
        for group in (f"group-{number}" for number in range(20)):
            joined = wire.ask(
                apis.JOIN_GROUP,
                5,
                JoinGroupRequest(
                    group_id=group,
                    session_timeout_ms=session_ms,
                    rebalance_timeout_ms=60_000,
                    member_id="",
                    group_instance_id="static",
                    protocol_type="consumer",
                    protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
                ),
            )
            assert joined["error_code"] == Code.NONE
            member_id = joined["member_id"]
            plan = (SyncGroupRequestAssignment(member_id=member_id, assignment=b"all"),)
            synced = wire.ask(
                apis.SYNC_GROUP,
                3,
                SyncGroupRequest(
                    group_id=group,
                    generation_id=joined["generation_id"],
                    member_id=member_id,
                    group_instance_id="static",
                    assignments=plan,
                ),
            )
            assert synced["error_code"] == Code.NONE
            time.sleep(session_ms / 1000)  # What is waited for is the time itself.
            deleted = wire.ask(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=(group,)))
            assert [result["error_code"] for result in deleted["results"]] == [Code.NONE]
