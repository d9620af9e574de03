"""Entries of a request are counted, over all its lists, before they are made; large messages are coded in steps."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from penstock.errors import ProtocolError
from penstock.protocol import apis, decoding, fetch, produce
from penstock.protocol.decoding import decode, decode_in_steps
from penstock.protocol.encoding import encode, encode_in_steps
from penstock.protocol.messages.find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.protocol.steps import ENTRIES_A_STEP, Steps, run
from support.worst_requests import Known, worst_requests

KNOWN = Known("t", UUID(int=7), "g")
DESCRIBED = [key for key, api in apis.APIS.items() if api.by_hand is None]


def offsets(topics: int, partitions: int) -> ListOffsetsRequest:
    asked = tuple(ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions))
    return ListOffsetsRequest(
        replica_id=-1, topics=tuple(ListOffsetsTopic(name=str(number), partitions=asked) for number in range(topics))
    )


@pytest.mark.parametrize("version", [5, 10], ids=["plain", "flexible"])
def test_entries_of_nested_lists_count_together(version: int) -> None:
    data = encode(offsets(3, 4), version)
    assert decode(ListOffsetsRequest, version, data, 0, 15)[0].topics
    with pytest.raises(ProtocolError, match=r"limits\.request_entries"):
        decode(ListOffsetsRequest, version, data, 0, 14)


def test_a_list_that_is_too_long_is_refused_before_its_first_entry_is_made() -> None:
    # Its entries are no strings at all.
    data = b"\0" + b"\xff\xff\xff\x01" + b"\xff" * (4 << 20)
    with pytest.raises(ProtocolError, match=r"limits\.request_entries"):
        decode(FindCoordinatorRequest, 4, data, 0, 1000)


def test_tagged_fields_count_as_entries() -> None:
    tags = bytes([5]) + b"\x63\0" * 5
    data = encode(FindCoordinatorRequest(key_type=0, coordinator_keys=()), 4)[:-1] + tags
    decode(FindCoordinatorRequest, 4, data, 0, 5)
    with pytest.raises(ProtocolError, match="tagged fields"):
        decode(FindCoordinatorRequest, 4, data, 0, 4)


def test_very_many_tagged_fields_are_refused() -> None:
    data = encode(FindCoordinatorRequest(key_type=0, coordinator_keys=()), 4)[:-1] + bytes([101]) + b"\x63\0" * 101
    with pytest.raises(ProtocolError, match="tagged fields"):
        decode(FindCoordinatorRequest, 4, data)


@pytest.mark.parametrize("key", DESCRIBED)
def test_steps_decode_to_the_same_as_one_go(key: int) -> None:
    api = apis.APIS[key]
    for request in worst_requests(key, KNOWN, 1000):
        whole: object = decode(api.request, request.version, request.body)[0]
        assert encode(whole, request.version) == request.body
        steps: Steps[tuple[object, int]] = decode_in_steps(api.request, request.version, request.body, 0, 1000)
        found, entries = run(steps)
        assert found == whole
        assert entries <= 1000
        if entries:
            with pytest.raises(ProtocolError):
                run(decode_in_steps(api.request, request.version, request.body, 0, entries - 1))


@pytest.mark.parametrize("version", [5, 10])
def test_steps_encode_to_the_same_as_one_go(version: int) -> None:
    message = offsets(10, 300)
    parts: list[bytes] = []
    pauses = sum(1 for _ in encode_in_steps(parts, message, version))
    assert b"".join(parts) == encode(message, version)
    assert pauses == 3010 // ENTRIES_A_STEP


def test_a_short_message_ends_in_a_protocol_error_in_steps_too() -> None:
    data = encode(offsets(3, 400), 10)
    for size in (0, 1, 10, 5000, len(data) - 1):
        with pytest.raises(ProtocolError):
            run(decode_in_steps(ListOffsetsRequest, 10, data[:size], 0, decoding.NO_LIMIT))


@pytest.mark.parametrize("api", [apis.PRODUCE, apis.FETCH], ids=["Produce", "Fetch"])
def test_produce_and_fetch_count_their_partitions(api: apis.Api) -> None:
    for request in worst_requests(api.key, KNOWN, 1000):
        body = memoryview(bytearray(request.body))
        apis.decode_request(api, request.version, body, 0, 1000)
        with pytest.raises(ProtocolError, match=r"limits\.request_entries"):
            apis.decode_request(api, request.version, body, 0, 999)


def test_an_old_fetch_and_an_old_produce_count_their_partitions() -> None:
    head = struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0)
    body = head + struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", 100) + struct.pack(">iqi", 0, 0, 1) * 100
    assert len(fetch.decode_request(4, memoryview(bytearray(body)), 0, 100).partitions) == 100
    with pytest.raises(ProtocolError):
        fetch.decode_request(4, memoryview(bytearray(body)), 0, 99)
    body = struct.pack(">hhiih", -1, 1, 1000, 1, 1) + b"t" + struct.pack(">i", 100) + struct.pack(">ii", 0, -1) * 100
    assert len(produce.decode_request(8, memoryview(bytearray(body)), 0, 100).partitions) == 100
    with pytest.raises(ProtocolError):
        produce.decode_request(8, memoryview(bytearray(body)), 0, 99)
