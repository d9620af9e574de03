"""The protocol where no client can be made to misbehave: framing, versions, order, and what closes a connection."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.protocol.messages.metadata import MetadataRequest
from support.broker_process import BrokerProcess
from support.wire import Wire, batch_of, body_of, fetch_request, produce_request, request_frame

API_VERSIONS_BODY = ApiVersionsRequest(client_software_name="test", client_software_version="1")
ALL_TOPICS = MetadataRequest(topics=None)
# Produce, Fetch, ListOffsets, Metadata, ApiVersions; topics, records, producer ids, epochs, settings, disks, cluster.
SERVED = {0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 75}


def assert_serves(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert wire.ask(apis.API_VERSIONS, 3, API_VERSIONS_BODY)["error_code"] == 0


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_api_versions_lists_every_api_that_is_served(broker: BrokerProcess, version: int) -> None:
    with Wire(broker.address) as wire:
        answer = wire.ask(apis.API_VERSIONS, version, API_VERSIONS_BODY)

    assert answer["error_code"] == 0
    listed = {entry["api_key"]: (entry["min_version"], entry["max_version"]) for entry in answer["api_keys"]}
    assert set(listed) >= SERVED
    assert listed == {key: (apis.APIS[key].min_version, apis.APIS[key].max_version) for key in listed}


def test_api_versions_of_a_version_too_new_is_answered_in_version_0_with_the_error(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.socket.sendall(request_frame(apis.API_VERSIONS, 99, 7, b"whatever that version holds"))
        answer = wire.receive(apis.API_VERSIONS, 0, 7)
        assert answer["error_code"] == Code.UNSUPPORTED_VERSION
        assert answer["api_keys"]

        # The same connection goes on with a version that both know.
        assert wire.ask(apis.API_VERSIONS, 3, API_VERSIONS_BODY)["error_code"] == 0


def test_another_api_in_a_version_too_new_closes_the_connection(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.socket.sendall(request_frame(apis.METADATA, 99, 1, b"\0" * 20))
        assert wire.is_closed_by_broker()
    assert_serves(broker)


@pytest.mark.parametrize("key", [-1, 4, 999, 32767])
def test_an_api_that_is_not_served_closes_the_connection(broker: BrokerProcess, key: int) -> None:
    with Wire(broker.address) as wire:
        wire.socket.sendall(struct.pack(">ihhih", 14, key, 0, 1, -1) + b"\0\0\0\0")
        assert wire.is_closed_by_broker()
    assert_serves(broker)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">i", 104_857_601), id="larger than allowed"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="as large as can be said"),
        pytest.param(struct.pack(">i", -1), id="negative"),
        pytest.param(struct.pack(">i", 0), id="empty"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="shorter than a header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
        pytest.param(b"\xff" * 4096, id="ones"),
        pytest.param(struct.pack(">i", 64) + os.urandom(64), id="noise in a frame"),
    ],
)
def test_bytes_that_are_no_request_close_the_connection_and_nothing_else(broker: BrokerProcess, sent: bytes) -> None:
    with Wire(broker.address) as bystander, Wire(broker.address) as wire:
        wire.socket.sendall(sent)
        assert wire.is_closed_by_broker()
        assert bystander.ask(apis.API_VERSIONS, 3, API_VERSIONS_BODY)["error_code"] == 0
    assert_serves(broker)


def test_a_request_that_ends_inside_its_body_closes_the_connection(broker: BrokerProcess) -> None:
    body = body_of(apis.PRODUCE, 11, produce_request("some-topic", batch_of(b"value")))
    for cut in range(0, len(body), 7):
        with Wire(broker.address) as wire:
            wire.socket.sendall(request_frame(apis.PRODUCE, 11, 1, body[:cut]))
            assert wire.is_closed_by_broker(), f"cut at {cut}"
    assert_serves(broker)


def test_a_request_may_arrive_byte_by_byte(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = request_frame(apis.API_VERSIONS, 3, 5, body_of(apis.API_VERSIONS, 3, API_VERSIONS_BODY))
        for byte in frame:
            wire.socket.send(bytes([byte]))
        assert wire.receive(apis.API_VERSIONS, 3, 5)["error_code"] == 0


def test_pipelined_requests_are_answered_in_order(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        # The second waits for the disk's and the third for its own time; the rest could be answered at once.
        waits = fetch_request([(topic, 0, 1)], max_wait_ms=200)
        sent = [
            (apis.METADATA, 12, ALL_TOPICS),
            (apis.PRODUCE, 11, produce_request(topic, batch_of(b"first"))),
            (apis.FETCH, 12, waits),
            *[(apis.API_VERSIONS, 3, API_VERSIONS_BODY)] * 50,
            (apis.PRODUCE, 11, produce_request(topic, batch_of(b"second"))),
            (apis.FETCH, 12, fetch_request([(topic, 0, 1)])),
        ]
        frames = b"".join(
            request_frame(api, version, number, body_of(api, version, message))
            for number, (api, version, message) in enumerate(sent)
        )
        wire.socket.sendall(frames)
        answers = [wire.receive(api, version, number) for number, (api, version, _) in enumerate(sent)]

    assert answers[1]["responses"][0]["partition_responses"][0]["base_offset"] == 0
    assert not answers[2]["responses"][0]["partitions"][0]["records"]
    assert answers[-2]["responses"][0]["partition_responses"][0]["base_offset"] == 1
    assert b"second" in answers[-1]["responses"][0]["partitions"][0]["records"]


def test_a_large_request_is_taken_whole(broker: BrokerProcess, topic: str) -> None:
    value = os.urandom(20 << 20)
    with Wire(broker.address) as wire:
        wire.create_topic(topic, max_message_bytes=30 << 20)
        assert wire.produce(topic, batch_of(value))["error_code"] == 0
        found = wire.fetch(topic, 0, partition_max_bytes=30 << 20, max_bytes=50 << 20)
        assert value in found["records"]


def test_requests_of_many_sizes_can_follow_each_other_on_one_connection(broker: BrokerProcess, topic: str) -> None:
    sizes = [1, 20_000, 5, 300_000, 900_000, 10, 16_384, 70_000, 1]
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        frames = b"".join(
            request_frame(
                apis.PRODUCE, 11, number, body_of(apis.PRODUCE, 11, produce_request(topic, batch_of(b"x" * size)))
            )
            for number, size in enumerate(sizes)
        )
        wire.socket.sendall(frames)
        for number in range(len(sizes)):
            answer = wire.receive(apis.PRODUCE, 11, number)
            assert answer["responses"][0]["partition_responses"][0]["base_offset"] == number
