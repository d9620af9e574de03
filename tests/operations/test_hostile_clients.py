"""Memory and service under clients that mean harm or are broken in a way that looks like it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.protocol.messages.metadata import MetadataRequest
from penstock.records.compression import Codec
from support.broker_process import BrokerProcess
from support.ports import free_ports
from support.waiting import until
from support.wire import Wire, batch_of, body_of, fetch_request, produce_request, request_frame

BrokerFactory = Callable[..., BrokerProcess]

MIB = 1 << 20
HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")
IN_FLIGHT = 64 * MIB


@contextlib.contextmanager
def crowd(broker: BrokerProcess, count: int, receive_buffer: int = 0) -> Iterator[list[Wire]]:
    wires = [Wire(broker.address, receive_buffer=receive_buffer) for _ in range(count)]
    try:
        yield wires
    finally:
        for wire in wires:
            wire.socket.close()


def most_memory_while(broker: BrokerProcess, work: Callable[[], None]) -> int:
    """The most that the broker held in memory while `work` ran, over what it held before."""
    before, most, done = broker.resident_bytes, 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, broker.resident_bytes)
            time.sleep(0.01)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        work()
    finally:
        done.set()
        looker.join()
    return max(most, broker.resident_bytes) - before


def assert_answers(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert wire.ask(apis.API_VERSIONS, 3, HELLO)["error_code"] == 0


def send_what_is_taken(wire: Wire, data: bytes) -> int:
    """Sends as much as the broker and the network take without anything being read."""
    wire.socket.settimeout(1.0)
    sent = 0
    try:
        while sent < len(data):
            sent += wire.socket.send(data[sent : sent + 65536])
    except OSError:
        pass
    return sent


def test_huge_requests_that_are_only_announced_take_little_memory(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"limits.in_flight_bytes": IN_FLIGHT})
    with Wire(broker.address) as wire:
        wire.create_topic(topic, max_message_bytes=8 * MIB)
    with crowd(broker, 200) as wires:

        def announce() -> None:
            for wire in wires:
                # The header of a produce, so that nothing is wrong with it yet.
                wire.socket.sendall(struct.pack(">ihhih", 90 * MIB, 0, 9, 1, -1) + b"\0" * 50_000)
            assert_answers(broker)

        assert most_memory_while(broker, announce) < IN_FLIGHT + 30 * MIB
        assert_answers(broker)
        # Whoever sends a large request in earnest gets his turn, at the latest when the others are let go.
        with Wire(broker.address, patience_s=60) as honest:
            assert honest.produce(topic, batch_of(os.urandom(5 * MIB)))["error_code"] == 0


def test_a_client_that_sends_and_never_reads_is_left_waiting(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    request = request_frame(apis.API_VERSIONS, 3, 1, body_of(apis.API_VERSIONS, 3, HELLO))
    flood = request * (16 * MIB // len(request))
    with crowd(broker, 10, receive_buffer=4096) as wires:
        taken: list[int] = []

        def flood_all() -> None:
            senders = [
                threading.Thread(target=lambda wire=wire: taken.append(send_what_is_taken(wire, flood)))
                for wire in wires
            ]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()

        assert most_memory_while(broker, flood_all) < 60 * MIB
        # The broker stopped taking requests because nobody took its answers.
        assert all(sent < len(flood) for sent in taken)
        assert_answers(broker)
    until(lambda: broker.metric("penstock_connections") == 0, "all connections are gone")


def test_large_answers_that_nobody_reads_take_little_memory(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        for _ in range(40):
            wire.produce(topic, batch_of(os.urandom(900_000)))
    request = fetch_request([(topic, 0, 0)], max_bytes=50 * MIB, partition_max_bytes=50 * MIB)
    with crowd(broker, 50, receive_buffer=4096) as wires:

        def fetch_all() -> None:
            for wire in wires:
                for _ in range(3):
                    wire.send(apis.FETCH, 12, request)
            for wire in wires:
                assert wire.has_answer(30)
            assert_answers(broker)

        assert most_memory_while(broker, fetch_all) < 60 * MIB


def test_metadata_of_many_topics_that_nobody_reads_takes_little_memory(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic, partitions=2000, penstock_storage="memory")
    asked = MetadataRequest(topics=None)
    with crowd(broker, 100, receive_buffer=4096) as wires:

        def ask_all() -> None:
            for wire in wires:
                for _ in range(20):
                    wire.send(apis.METADATA, 12, asked)
            for wire in wires:
                assert wire.has_answer(30)
            assert_answers(broker)

        assert most_memory_while(broker, ask_all) < 60 * MIB


@pytest.mark.parametrize("pause", [False, True], ids=["at once", "after a request"])
def test_connections_that_come_and_go_leave_nothing_behind(new_broker: BrokerFactory, pause: bool) -> None:
    broker = new_broker()
    descriptors = len(os.listdir(f"/proc/{broker.pid}/fd"))
    for _ in range(500):
        with contextlib.closing(socket.create_connection(broker.address)) as connection:
            if pause:
                connection.sendall(request_frame(apis.API_VERSIONS, 3, 1, body_of(apis.API_VERSIONS, 3, HELLO)))
    until(lambda: broker.metric("penstock_connections") == 0, "all connections are gone")
    until(lambda: len(os.listdir(f"/proc/{broker.pid}/fd")) <= descriptors + 2, "all descriptors are closed")
    assert_answers(broker)


def test_large_requests_that_exceed_the_allowance_together_all_get_through(
    new_broker: BrokerFactory, topic: str
) -> None:
    broker = new_broker({"limits.in_flight_bytes": 16 * MIB})
    with Wire(broker.address) as wire:
        wire.create_topic(topic, max_message_bytes=8 * MIB)
    errors: list[object] = []
    settings = {"bootstrap.servers": broker.kafka, "message.max.bytes": 8 * MIB, "log_level": 0}
    producers = [Producer(settings) for _ in range(16)]
    for producer in producers:
        producer.produce(topic, os.urandom(6 * MIB), on_delivery=lambda error, message: errors.append(error))
    for producer in producers:
        assert producer.flush(60) == 0
    assert errors == [None] * len(producers)
    assert broker.metric("penstock_log_end_offset", topic=topic, partition="0") >= len(producers)


def test_fetches_in_the_name_of_brokers_are_refused_and_leave_nothing_behind(
    new_broker: BrokerFactory, topic: str
) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        topic_id = wire.create_topic(topic)
        for replica in (1, 2, 7, 12_349):  # the broker's own id too
            request = fetch_request([(topic_id, 0, 0)], 16, session_epoch=0)
            request["replica_state"] = {"replica_id": replica, "replica_epoch": 1}
            answer = wire.ask(apis.FETCH, 16, request)
            assert (answer["error_code"], answer["session_id"]) == (Code.NONE, 0)
            ((found,),) = (response["partitions"] for response in answer["responses"])
            assert found["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
    assert broker.metric("penstock_follower_sessions") == 0
    assert_answers(broker)


def test_a_fetch_through_the_inter_broker_listener_in_the_name_of_no_broker_loses_its_connection(
    tmp_path: Path, topic: str
) -> None:
    broker = BrokerProcess(tmp_path / "broker")
    broker.inter_broker = f"127.0.0.1:{free_ports(1)[0]}"
    try:
        broker.start()
        with Wire(broker.address) as wire:
            topic_id = wire.create_topic(topic)
        for replica in (1, 2, 7, 12_349):  # the broker's own id too
            with Wire(broker.inter_broker_address) as wire:
                request = fetch_request([(topic_id, 0, 0)], 16, session_epoch=0)
                request["replica_state"] = {"replica_id": replica, "replica_epoch": 1}
                wire.send(apis.FETCH, 16, request)
                assert wire.is_closed_by_broker()
        assert broker.metric("penstock_follower_sessions") == 0
        assert "which is not one of this cluster" in broker.log
        assert_answers(broker)
    finally:
        broker.kill()


def test_a_batch_that_is_decompressed_in_a_thread_is_not_overtaken(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    large = batch_of(bytes(900_000), codec=Codec.GZIP)
    small = batch_of(b"small", codec=Codec.GZIP)
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        partitions = [{"index": 0, "records": records} for records in (large, small) * 5]
        request = produce_request(topic, None)
        request["topic_data"] = [{"name": topic, "partition_data": partitions}]
        (answer,) = wire.ask(apis.PRODUCE, 11, request)["responses"]
        assert [found["base_offset"] for found in answer["partition_responses"]] == list(range(10))
        # One request after the other, without waiting for the answers in between.
        sent = [wire.send(apis.PRODUCE, 11, produce_request(topic, records)) for records in (large, small) * 5]
        offsets = []
        for number in sent:
            answer = wire.receive(apis.PRODUCE, 11, number)
            offsets.append(answer["responses"][0]["partition_responses"][0]["base_offset"])
        assert offsets == list(range(10, 20))
