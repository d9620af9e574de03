from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.ids import NO_TOPIC_ID
from penstock.parts import read_parts
from penstock.protocol.apis import FETCH
from penstock.protocol.fetch import FetchResult, decode_request, encode_response
from unit.protocol.kio_oracle import kio_class, kio_read, kio_write, plain_values

_VERSIONS = range(FETCH.min_version, FETCH.max_version + 1)
_settings = settings(max_examples=40, derandomize=True, database=None, deadline=None)

_i32 = st.integers(-(2**31), 2**31 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)


class FileSlice:
    """Stands for bytes that stay in a file: the codec must not look inside a part."""

    position = 0

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.size = len(content)

    def fileno(self) -> int:
        raise AssertionError("the codec does not open files")

    def read(self, at: int = 0, size: int | None = None) -> bytes:
        return self.content[at:] if size is None else self.content[at : at + size]


@st.composite
def _result(draw: st.DrawFn) -> FetchResult:
    pieces = draw(st.lists(st.binary(min_size=1, max_size=9) | st.just(b"x" * 300), max_size=3))
    return FetchResult(
        topic=draw(st.sampled_from(["orders", "bills", "t" * 200])),
        topic_id=draw(st.binary(min_size=16, max_size=16)),
        index=draw(_i32),
        error_code=draw(st.integers(-1, 120)),
        high_watermark=draw(_i64),
        last_stable_offset=draw(_i64),
        log_start_offset=draw(_i64),
        aborted=draw(st.none() | st.lists(st.tuples(_i64, _i64), max_size=3)),
        preferred_read_replica=draw(_i32),
        parts=[FileSlice(piece) for piece in pieces],
        size=sum(map(len, pieces)),
        diverging=draw(st.none() | st.tuples(_i32, _i64)),
    )


def _joined(frame: list[Any]) -> bytes:
    return read_parts(frame)


def _read_response(version: int, frame: list[Any]) -> dict[str, Any]:
    whole = _joined(frame)
    size, correlation_id = struct.unpack_from(">ii", whole)
    assert (size, correlation_id) == (len(whole) - 4, 77)
    body = whole[8:]
    if version >= 12:
        assert body[:1] == b"\0"
        body = body[1:]
    return kio_read(kio_class(FETCH, version, "Response"), body)


@pytest.mark.parametrize("version", _VERSIONS)
@_settings
@given(data=st.data())
def test_requests_that_kio_writes_are_read(version: int, data: st.DataObject) -> None:
    theirs = kio_class(FETCH, version, "Request")
    plain = data.draw(plain_values(theirs))
    prefix = data.draw(st.binary(max_size=5))

    request = decode_request(version, memoryview(prefix + kio_write(theirs, plain)), len(prefix))

    assert request.replica_id == (plain["replica_state"] if version >= 15 else plain)["replica_id"]
    for name in ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level"):
        assert getattr(request, name) == plain[name]
    assert request.session_id == plain.get("session_id", 0)
    assert request.session_epoch == plain.get("session_epoch", -1)
    assert request.rack_id == plain.get("rack_id", "")
    assert request.partitions == [
        (
            *_topic(topic),
            partition["partition"],
            partition.get("current_leader_epoch", -1),
            partition["fetch_offset"],
            partition.get("last_fetched_epoch", -1),
            partition.get("log_start_offset", -1),
            partition["partition_max_bytes"],
        )
        for topic in plain["topics"]
        for partition in topic["partitions"]
    ]
    assert request.forgotten == [
        (*_topic(topic), index) for topic in plain.get("forgotten_topics_data", ()) for index in topic["partitions"]
    ]


def _topic(plain: dict[str, Any]) -> tuple[str | None, bytes | None]:
    return plain.get("topic"), plain["topic_id"].bytes if "topic_id" in plain else None


@pytest.mark.parametrize("version", _VERSIONS)
@_settings
@given(results=st.lists(_result(), max_size=6), throttle_ms=_i32, session_id=_i32)
def test_kio_reads_the_responses_that_are_written(
    version: int, results: list[FetchResult], throttle_ms: int, session_id: int
) -> None:
    frame = encode_response(version, 77, results, throttle_ms=throttle_ms, error_code=70, session_id=session_id)

    plain = _read_response(version, frame)
    assert plain["throttle_time_ms"] == throttle_ms
    if version >= 7:
        assert (plain["error_code"], plain["session_id"]) == (70, session_id)
    assert [_comparable(topic, partition) for topic in plain["responses"] for partition in topic["partitions"]] == [
        _expected(version, result) for result in results
    ]


def _comparable(topic: dict[str, Any], partition: dict[str, Any]) -> dict[str, Any]:
    unused = ("current_leader", "snapshot_id")
    return {
        "topic": topic["topic_id"].bytes if "topic_id" in topic else topic["topic"],
        **{name: value for name, value in partition.items() if name not in unused},
    }


def _expected(version: int, result: FetchResult) -> dict[str, Any]:
    expected: dict[str, Any] = {
        "topic": result.topic_id if version >= 13 else result.topic,
        "partition_index": result.index,
        "error_code": result.error_code,
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.last_stable_offset,
        "aborted_transactions": None
        if result.aborted is None
        else [{"producer_id": producer, "first_offset": first} for producer, first in result.aborted],
        "records": read_parts(result.parts),
    }
    if version >= 5:
        expected["log_start_offset"] = result.log_start_offset
    if version >= 11:
        expected["preferred_read_replica"] = result.preferred_read_replica
    if version >= 12:
        epoch, end_offset = result.diverging or (-1, -1)
        expected["diverging_epoch"] = {"epoch": epoch, "end_offset": end_offset}
    return expected


@pytest.mark.parametrize("version", _VERSIONS)
def test_parts_are_passed_through_in_wire_order_between_single_pieces_of_bytes(version: int) -> None:
    first, second, third = FileSlice(b"one"), FileSlice(b"two"), FileSlice(b"three")
    results = [
        FetchResult("a", b"a" * 16, 0, parts=[first, second], size=6),
        FetchResult("a", b"a" * 16, 1),
        FetchResult("b", b"b" * 16, 0, parts=[third], size=5),
    ]

    frame = encode_response(version, 77, results)

    assert [part for part in frame if isinstance(part, FileSlice)] == [first, second, third]
    assert [isinstance(part, bytes) for part in frame[:5]] == [True, False, False, True, False]
    assert all(isinstance(part, bytes) for part in frame[5:])
    assert len(frame) == (6 if version >= 12 else 5)


@pytest.mark.parametrize("version", [11, 12])
def test_a_result_without_parts_has_empty_records_and_not_null_ones(version: int) -> None:
    plain = _read_response(version, encode_response(version, 77, [FetchResult("a", None, 0)]))

    assert plain["responses"][0]["partitions"][0]["records"] == b""


@pytest.mark.parametrize("version", [11, 12, 13])
def test_consecutive_results_of_one_topic_share_its_entry(version: int) -> None:
    results = [
        FetchResult(topic, topic.encode() * 16, index) for topic, index in [("a", 0), ("a", 1), ("b", 0), ("a", 2)]
    ]

    topics = _read_response(version, encode_response(version, 77, results))["responses"]

    assert [len(topic["partitions"]) for topic in topics] == [2, 1, 1]


def test_a_result_without_the_name_or_id_that_its_version_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="by id"):
        encode_response(13, 1, [FetchResult("orders", None, 0)])
    with pytest.raises(ValueError, match="by name"):
        encode_response(12, 1, [FetchResult(None, b"i" * 16, 0)])


def _request(version: int) -> bytes:
    theirs = kio_class(FETCH, version, "Request")
    partition = {
        "partition": 1,
        "current_leader_epoch": 2,
        "fetch_offset": 3,
        "last_fetched_epoch": 4,
        "log_start_offset": 5,
        "partition_max_bytes": 6,
    }
    named = {"topic": "orders", "topic_id": NO_TOPIC_ID}
    return kio_write(
        theirs,
        {
            "cluster_id": None,
            "replica_id": -1,
            "replica_state": {"replica_id": 3, "replica_epoch": 1},
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1000,
            "isolation_level": 1,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{**named, "partitions": [partition, partition]}],
            "forgotten_topics_data": [{**named, "partitions": [7, 8]}],
            "rack_id": "r1",
        },
    )


@pytest.mark.parametrize("version", _VERSIONS)
def test_every_truncation_of_a_request_is_refused(version: int) -> None:
    whole = _request(version)
    decode_request(version, memoryview(whole), 0)

    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_request(version, memoryview(whole[:length]), 0)


@pytest.mark.parametrize("version", [4, 16])
def test_bytes_after_a_request_are_ignored(version: int) -> None:
    assert len(decode_request(version, memoryview(_request(version) + b"more"), 0).partitions) == 2


def test_unknown_tags_of_a_partition_are_skipped() -> None:
    whole = _request(12)
    partition = struct.pack(">iiqiqi", 1, 2, 3, 4, 5, 6)
    tagged = whole.replace(partition + b"\0", partition + b"\x02\x09\x01z\xff\x01\x02zz")

    assert decode_request(12, memoryview(tagged), 0) == decode_request(12, memoryview(whole), 0)
    assert len(tagged) == len(whole) + 2 * 8


def test_a_replica_state_tag_shorter_than_a_replica_id_is_refused() -> None:
    whole = _request(15)
    start = whole.rindex(b"\x01\x01\x0d")

    with pytest.raises(ProtocolError):
        decode_request(15, memoryview(whole[:start] + b"\x01\x01\x02\0\0"), 0)
