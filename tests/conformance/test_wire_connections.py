"""Many connections, slow ones and dead ones: none of them may be felt by the others."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from support.broker_process import BrokerProcess
from support.transactional import last_offset
from support.waiting import until
from support.wire import PRODUCE, Wire, batch_of, body_of, fetch_request, produce_request, request_frame

BrokerFactory = Callable[..., BrokerProcess]

HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")
IDLE_CONNECTIONS = 1000


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for the descriptors of a thousand connections on our side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 4096)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def assert_answers(wire: Wire) -> None:
    assert wire.ask(apis.API_VERSIONS, 3, HELLO)["error_code"] == 0


def test_a_thousand_idle_connections_are_served(many_files: None, new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    before = broker.resident_bytes
    idle = [Wire(broker.address) for _ in range(IDLE_CONNECTIONS)]
    try:
        for wire in idle:
            assert_answers(wire)
        assert broker.metric("penstock_connections") == IDLE_CONNECTIONS
        with Wire(broker.address) as active:
            active.create_topic(topic)
            assert active.produce(topic, batch_of(b"x"))["error_code"] == 0
        # All of them can still be used, whichever is asked first.
        for wire in reversed(idle):
            assert_answers(wire)
        assert (broker.resident_bytes - before) / IDLE_CONNECTIONS < 64 * 1024
    finally:
        for wire in idle:
            wire.socket.close()
    until(lambda: broker.metric("penstock_connections") == 0, "all connections are gone")


def test_a_slow_reader_does_not_hold_up_the_others(broker: BrokerProcess, topic: str) -> None:
    batch = batch_of(os.urandom(900_000))
    with Wire(broker.address) as wire, Wire(broker.address, receive_buffer=4096) as slow:
        wire.create_topic(topic)
        for _ in range(30):
            assert wire.produce(topic, batch)["error_code"] == 0
        everything = fetch_request([(topic, 0, 0)], partition_max_bytes=50 << 20, max_bytes=50 << 20)
        asked = slow.send(apis.FETCH, 12, everything)
        assert slow.has_answer(30)
        # The answer does not fit into any buffer, so the broker still has most of it to send.
        for _ in range(20):
            assert wire.produce(topic, batch_of(b"meanwhile"))["error_code"] == 0
            assert_answers(wire)
        answer = slow.receive(apis.FETCH, 12, asked)
    assert answer["responses"][0]["partitions"][0]["records"].count(batch[61:]) == 30


def test_what_a_producer_sent_with_acks_0_before_it_left_is_appended(broker: BrokerProcess, topic: str) -> None:
    """It does not wait for an answer, and the first append of a partition waits for the disk."""
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        with Wire(broker.address) as leaving:
            for number in range(20):
                request = produce_request(topic, batch_of(b"%d" % number), acks=0)
                leaving.send(apis.PRODUCE, PRODUCE, request)
        until(lambda: last_offset(wire, (topic, 0), 0) == 20, "all of it is appended")


def test_a_fetch_of_a_peer_that_left_does_not_wait(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        with Wire(broker.address) as leaving:
            leaving.send(apis.PRODUCE, PRODUCE, produce_request(topic, batch_of(b"x"), acks=0))
            leaving.send(apis.FETCH, 12, fetch_request([(topic, 0, 1)], max_wait_ms=600_000))
            until(lambda: broker.metric("penstock_parked_fetches") == 1, "it waits")
        until(lambda: broker.metric("penstock_parked_fetches") == 0, "it does not any more")


def test_a_peer_that_stalls_inside_a_request_is_let_go(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    frame = request_frame(apis.API_VERSIONS, 3, 1, body_of(apis.API_VERSIONS, 3, HELLO))
    with Wire(broker.address) as stalled, Wire(broker.address) as other:
        stalled.socket.sendall(frame[:-3])
        assert_answers(other)
        assert stalled.is_closed_by_broker()
        assert_answers(other)


def test_a_silent_connection_is_closed_after_the_set_time(new_broker: BrokerFactory) -> None:
    broker = new_broker({"limits.idle_connection_ms": 500})
    with Wire(broker.address) as silent:
        assert_answers(silent)
        assert silent.is_closed_by_broker()


def test_connections_over_the_limit_are_refused_until_one_leaves(new_broker: BrokerFactory) -> None:
    broker = new_broker({"limits.connections": 5})
    kept = [Wire(broker.address) for _ in range(5)]
    for wire in kept:
        assert_answers(wire)
    with Wire(broker.address) as sixth:
        assert sixth.is_closed_by_broker()
    assert broker.metric("penstock_connections_refused_total") == 1
    kept.pop().socket.close()
    until(lambda: broker.metric("penstock_connections") == 4, "the fifth connection is gone")
    with Wire(broker.address) as another:
        assert_answers(another)
    for wire in kept:
        assert_answers(wire)
        wire.socket.close()


def test_connections_of_one_host_are_limited(new_broker: BrokerFactory) -> None:
    broker = new_broker({"limits.connections_per_host": 2})
    with Wire(broker.address) as one, Wire(broker.address) as two, Wire(broker.address) as three:
        assert_answers(one)
        assert_answers(two)
        assert three.is_closed_by_broker()


def test_a_reset_in_the_middle_of_an_answer_harms_nobody(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        for _ in range(10):
            wire.produce(topic, batch_of(os.urandom(900_000)))
        for _ in range(5):
            with Wire(broker.address, receive_buffer=4096) as rude:
                rude.send(apis.FETCH, 12, fetch_request([(topic, 0, 0)], partition_max_bytes=50 << 20))
                assert rude.has_answer(30)
                # Closes with a reset instead of a farewell.
                rude.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert_answers(wire)


def test_a_stop_lets_go_of_waiting_clients_at_once(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire, Wire(broker.address) as reader:
        wire.create_topic(topic)
        asked = reader.send(apis.FETCH, 12, fetch_request([(topic, 0, 0)], max_wait_ms=500_000))
        until(lambda: broker.metric("penstock_parked_fetches") == 1, "the fetch is parked")
        started = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - started < 20
        answer = reader.receive(apis.FETCH, 12, asked)
        assert answer["responses"][0]["partitions"][0]["error_code"] == 0
