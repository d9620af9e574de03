from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.apis import PRODUCE
from penstock.protocol.produce import (
    FLEXIBLE_FROM,
    NodeEndpoint,
    ProducePartition,
    ProduceResult,
    decode_request,
    encode_in_steps,
    encode_response,
)
from penstock.protocol.steps import run
from unit.protocol.kio_oracle import kio_class, kio_read, kio_write, plain_values

_OLDEST_IN_KIO = 3
_VERSIONS = range(_OLDEST_IN_KIO, PRODUCE.max_version + 1)
_settings = settings(max_examples=40, derandomize=True, database=None, deadline=None)

_names = st.text(max_size=8) | st.just("t" * 200)
_messages = st.none() | st.text(max_size=8) | st.just("m" * 200)
_i32 = st.integers(-(2**31), 2**31 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_results = st.builds(
    ProduceResult,
    topic=_names,
    index=_i32,
    error_code=st.integers(-1, 120),
    base_offset=_i64,
    log_append_time_ms=st.just(-1) | st.integers(0, 2_000_000_000).map(lambda seconds: seconds * 1000),
    log_start_offset=_i64,
    error_message=_messages,
    record_errors=st.lists(st.tuples(_i32, _messages), max_size=3).map(tuple),
    current_leader=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
)


def _request(version: int, *partitions: tuple[str, int, bytes | None]) -> bytes:
    return kio_write(
        kio_class(PRODUCE, version, "Request"),
        {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1500,
            "topic_data": [
                {"name": topic, "partition_data": [{"index": index, "records": records}]}
                for topic, index, records in partitions
            ],
        },
    )


@pytest.mark.parametrize("version", _VERSIONS)
@_settings
@given(data=st.data())
def test_requests_that_kio_writes_are_read(version: int, data: st.DataObject) -> None:
    theirs = kio_class(PRODUCE, version, "Request")
    plain = data.draw(plain_values(theirs))
    prefix = data.draw(st.binary(max_size=5))

    request = decode_request(version, memoryview(prefix + kio_write(theirs, plain)), len(prefix))

    assert (request.transactional_id, request.acks, request.timeout_ms) == (
        plain["transactional_id"],
        plain["acks"],
        plain["timeout_ms"],
    )
    assert request.partitions == [
        (topic["name"], partition["index"], partition["records"])
        for topic in plain["topic_data"]
        for partition in topic["partition_data"]
    ]


@pytest.mark.parametrize("version", range(PRODUCE.min_version, _OLDEST_IN_KIO))
def test_requests_before_transactions_are_read(version: int) -> None:
    body = struct.pack(">hii", -1, 1500, 1) + struct.pack(">h6si", 6, b"orders", 1) + struct.pack(">ii2s", 4, 2, b"ab")

    request = decode_request(version, memoryview(body), 0)

    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 1500)
    assert request.partitions == [ProducePartition("orders", 4, memoryview(b"ab"))]


@pytest.mark.parametrize(
    ("version", "tail"),
    [(0, b""), (1, struct.pack(">i", 9)), (2, struct.pack(">qi", -1, 9))],
)
def test_responses_before_transactions_hold_what_their_version_has(version: int, tail: bytes) -> None:
    frame = encode_response(version, 77, [ProduceResult("orders", 4, 35)], throttle_ms=9)

    body = struct.pack(">ii", 77, 1) + struct.pack(">h6si", 6, b"orders", 1) + struct.pack(">ihq", 4, 35, -1) + tail
    assert frame == struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("version", _VERSIONS)
@_settings
@given(results=st.lists(_results, max_size=6), throttle_ms=_i32)
def test_kio_reads_the_responses_that_are_written(version: int, results: list[ProduceResult], throttle_ms: int) -> None:
    frame = encode_response(version, 77, results, throttle_ms)

    size, correlation_id = struct.unpack_from(">ii", frame)
    assert (size, correlation_id) == (len(frame) - 4, 77)
    body = frame[8:]
    if version >= 9:
        assert body[:1] == b"\0"
        body = body[1:]
    plain = kio_read(kio_class(PRODUCE, version, "Response"), body)
    assert plain["throttle_time_ms"] == throttle_ms
    assert [
        {**partition, "topic": topic["name"]}
        for topic in plain["responses"]
        for partition in topic["partition_responses"]
    ] == [_expected(version, result) for result in results]


def _expected(version: int, result: ProduceResult) -> dict[str, Any]:
    expected: dict[str, Any] = {
        "topic": result.topic,
        "index": result.index,
        "error_code": result.error_code,
        "base_offset": result.base_offset,
        "log_append_time_ms": result.log_append_time_ms,
    }
    if version >= 5:
        expected["log_start_offset"] = result.log_start_offset
    if version >= 8:
        expected["error_message"] = result.error_message
        expected["record_errors"] = [
            {"batch_index": index, "batch_index_error_message": message} for index, message in result.record_errors
        ]
    if version >= 10:
        leader_id, leader_epoch = result.current_leader or (-1, -1)
        expected["current_leader"] = {"leader_id": leader_id, "leader_epoch": leader_epoch}
    return expected


@pytest.mark.parametrize("name", ["t", "x" * 126, "x" * 127, "é" * 63, "é" * 64, "x" * 249])
@pytest.mark.parametrize("version", range(FLEXIBLE_FROM, PRODUCE.max_version + 1))
def test_the_response_for_one_partition_is_encoded_as_that_for_many(version: int, name: str) -> None:
    results = [ProduceResult(name, 3, 0, 2**40, 1_700_000_000_000, 12)]
    in_steps = run(encode_in_steps(version, 9, results, 77))
    assert encode_response(version, 9, results, 77) == in_steps


@pytest.mark.parametrize("version", [9, 10, 12])
def test_responses_say_where_leaders_are_from_the_version_on_that_has_it(version: int) -> None:
    result = ProduceResult("a", 0, 6, current_leader=(2, 7))
    endpoints = [NodeEndpoint(2, "host", 9092, None), NodeEndpoint(3, "other", 9093, "rack")]

    body = encode_response(version, 1, [result], endpoints=endpoints)[9:]

    found = kio_read(kio_class(PRODUCE, version, "Response"), body).get("node_endpoints")
    assert found == (
        None
        if version < 10
        else [
            {"node_id": 2, "host": "host", "port": 9092, "rack": None},
            {"node_id": 3, "host": "other", "port": 9093, "rack": "rack"},
        ]
    )


@pytest.mark.parametrize("version", [8, 9])
def test_consecutive_results_of_one_topic_share_its_entry(version: int) -> None:
    results = [ProduceResult("a", 0), ProduceResult("a", 1), ProduceResult("b", 0), ProduceResult("a", 2)]

    body = encode_response(version, 1, results)[9 if version >= 9 else 8 :]

    topics = kio_read(kio_class(PRODUCE, version, "Response"), body)["responses"]
    assert [(topic["name"], len(topic["partition_responses"])) for topic in topics] == [
        ("a", 2),
        ("b", 1),
        ("a", 1),
    ]


@pytest.mark.parametrize("version", [3, 12])
def test_records_are_a_writable_view_into_the_frame(version: int) -> None:
    frame = bytearray(_request(version, ("a", 0, b"records")))

    records = decode_request(version, memoryview(frame), 0).partitions[0].records

    assert records is not None
    records[:3] = b"REC"
    assert b"RECords" in frame


@pytest.mark.parametrize("version", _VERSIONS)
def test_every_truncation_of_a_request_is_refused(version: int) -> None:
    whole = _request(version, ("orders", 0, b"x" * 200), ("orders", 1, None), ("bills", 0, b""))

    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_request(version, memoryview(whole[:length]), 0)


@pytest.mark.parametrize("version", [3, 12])
def test_bytes_after_a_request_are_ignored(version: int) -> None:
    whole = _request(version, ("orders", 0, b"x"))

    request = decode_request(version, memoryview(whole + b"more"), 0)

    assert request.partitions == [ProducePartition("orders", 0, memoryview(b"x"))]


@pytest.mark.parametrize("size", [-2, -(2**31)])
def test_records_of_a_negative_size_other_than_null_are_refused(size: int) -> None:
    whole = _request(3, ("orders", 0, b""))

    with pytest.raises(ProtocolError):
        decode_request(3, memoryview(whole[:-4] + struct.pack(">i", size)), 0)


def test_unknown_tags_of_partition_topic_and_request_are_skipped() -> None:
    whole = _request(11, ("orders", 5, b"x"))
    assert whole.endswith(b"x\0\0\0")
    two_tags = b"\x02\x09\x01z\xff\x01\x02zz"

    request = decode_request(11, memoryview(whole[:-3] + two_tags * 3), 0)

    assert request.partitions == [ProducePartition("orders", 5, memoryview(b"x"))]
