"""A follower's fetch, against an independent codec and against our own other side."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.parts import read_parts
from penstock.protocol.apis import FETCH
from penstock.protocol.fetch import FetchPartition, FetchResult, decode_request, encode_response
from penstock.protocol.replica_fetch import VERSION, ReplicaResult, decode_response, encode_request
from unit.protocol.kio_oracle import kio_class, kio_read, kio_write

_settings = settings(max_examples=60, derandomize=True, database=None, deadline=None)
_i32 = st.integers(-(2**31), 2**31 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_ids = st.sampled_from([b"a" * 16, b"b" * 16, bytes(range(16))])
_partitions = st.lists(
    st.builds(FetchPartition, st.none(), _ids, _i32, _i32, _i64, _i32, _i64, _i32), max_size=6
) | st.lists(st.builds(FetchPartition, st.none(), _ids, _i32, _i32, _i64, _i32, _i64, _i32), min_size=140, max_size=140)
_aborted = st.none() | st.lists(st.tuples(_i64, _i64), max_size=3)
_diverging = st.none() | st.tuples(_i32, _i64)


@st.composite
def _results(draw: st.DrawFn) -> list[FetchResult]:
    found = []
    for _ in range(draw(st.integers(0, 5))):
        records = draw(st.binary(max_size=9) | st.just(b"x" * 300))
        found.append(
            FetchResult(
                None,
                draw(_ids),
                draw(_i32),
                draw(st.integers(-1, 120)),
                draw(_i64),
                draw(_i64),
                draw(_i64),
                draw(_aborted),
                draw(_i32),
                [records] if records else [],
                len(records),
                draw(_diverging),
            )
        )
    return found


def _body(results: list[FetchResult], **options: int) -> memoryview:
    """What the network hands to the decoder: the frame without its size, correlation id and tags of the header."""
    return memoryview(read_parts(encode_response(VERSION, 7, results, **options)))[9:]


def _expected(result: FetchResult) -> ReplicaResult:
    return ReplicaResult(
        result.topic_id or b"",
        result.index,
        result.error_code,
        result.high_watermark,
        result.log_start_offset,
        memoryview(read_parts(result.parts)),
        result.diverging,
    )


@_settings
@given(partitions=_partitions, replica=_i32, epoch=_i64, wait_ms=_i32, min_bytes=_i32, max_bytes=_i32)
def test_kio_reads_the_requests_that_are_written(
    partitions: list[FetchPartition], replica: int, epoch: int, wait_ms: int, min_bytes: int, max_bytes: int
) -> None:
    topic_id = uuid4()
    body = encode_request(
        replica,
        epoch,
        partitions,
        forgotten=[(topic_id.bytes, 3), (topic_id.bytes, 5)],
        session_id=7,
        session_epoch=1,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
    )

    plain = kio_read(kio_class(FETCH, VERSION, "Request"), body)

    assert plain["replica_state"] == {"replica_id": replica, "replica_epoch": epoch}
    assert (plain["max_wait_ms"], plain["min_bytes"], plain["max_bytes"]) == (wait_ms, min_bytes, max_bytes)
    assert (plain["session_id"], plain["session_epoch"], plain["isolation_level"]) == (7, 1, 0)
    assert plain["forgotten_topics_data"] == [{"topic_id": topic_id, "partitions": [3, 5]}]
    assert (plain["rack_id"], plain["cluster_id"]) == ("", None)
    found = [
        FetchPartition(
            None,
            topic["topic_id"].bytes,
            each["partition"],
            each["current_leader_epoch"],
            each["fetch_offset"],
            each["last_fetched_epoch"],
            each["log_start_offset"],
            each["partition_max_bytes"],
        )
        for topic in plain["topics"]
        for each in topic["partitions"]
    ]
    assert found == partitions


@_settings
@given(partitions=_partitions, replica=_i32, epoch=_i64)
def test_a_leader_reads_what_a_follower_writes(partitions: list[FetchPartition], replica: int, epoch: int) -> None:
    forgotten = [(bytes(16), 3), (bytes(16), 5)]
    body = encode_request(
        replica,
        epoch,
        partitions,
        forgotten=forgotten,
        session_id=7,
        session_epoch=1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
    )

    request = decode_request(VERSION, memoryview(body), 0)

    assert request.partitions == partitions
    assert (request.replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes) == (replica, 500, 1, 1 << 20)
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert request.forgotten == [(None, topic_id, index) for topic_id, index in forgotten]


@_settings
@given(results=_results(), error_code=st.integers(-1, 120))
def test_a_follower_reads_what_a_leader_writes(results: list[FetchResult], error_code: int) -> None:
    code, _, found = decode_response(_body(results, throttle_ms=5, error_code=error_code))

    assert code == error_code
    assert found == [_expected(result) for result in results]


@_settings
@given(results=_results(), data=st.data())
def test_a_follower_reads_what_kio_writes(results: list[FetchResult], data: st.DataObject) -> None:
    """With all that a leader may add and a follower does not need."""
    partitions: list[dict[str, Any]] = [
        {
            "partition_index": result.index,
            "error_code": max(0, result.error_code),
            "high_watermark": result.high_watermark,
            "last_stable_offset": result.last_stable_offset,
            "log_start_offset": result.log_start_offset,
            "diverging_epoch": dict(zip(("epoch", "end_offset"), result.diverging or (-1, -1), strict=True)),
            "current_leader": {"leader_id": data.draw(_i32), "leader_epoch": data.draw(_i32)},
            "snapshot_id": {"end_offset": data.draw(_i64), "epoch": data.draw(_i32)},
            "aborted_transactions": None
            if result.aborted is None
            else [{"producer_id": producer, "first_offset": first} for producer, first in result.aborted],
            "preferred_read_replica": result.preferred_read_replica,
            "records": read_parts(result.parts) or None,
        }
        for result in results
    ]
    topics = [
        {"topic_id": UUID(bytes=result.topic_id or b""), "partitions": [partition]}
        for result, partition in zip(results, partitions, strict=True)
    ]
    endpoints = [{"node_id": 1, "host": "here", "port": 9092, "rack": None}]
    plain = {"throttle_time_ms": 3, "error_code": 0, "session_id": 0, "responses": topics, "node_endpoints": endpoints}

    code, _, found = decode_response(memoryview(kio_write(kio_class(FETCH, VERSION, "Response"), plain)))

    assert code == 0
    assert [each._replace(diverging=each.diverging or (-1, -1)) for each in found] == [
        _expected(result)._replace(error_code=max(0, result.error_code), diverging=result.diverging or (-1, -1))
        for result in results
    ]


def _answer() -> bytes:
    records = b"records"
    results = [
        FetchResult(None, b"a" * 16, 0, 0, 5, 4, 3, [(1, 2)], -1, [records], len(records)),
        FetchResult(None, b"a" * 16, 1, diverging=(4, 90)),
        FetchResult(None, b"b" * 16, 0),
    ]
    return bytes(_body(results))


def test_every_truncation_of_an_answer_is_refused() -> None:
    whole = _answer()
    assert len(decode_response(memoryview(whole))[2]) == 3

    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_response(memoryview(whole[:length]))


def test_a_diverging_epoch_that_is_too_short_is_refused() -> None:
    whole = _answer()
    tag = b"\x01\x00\x0d"
    assert whole.count(tag) == 1

    with pytest.raises(ProtocolError):
        decode_response(memoryview(whole.replace(tag, b"\x01\x00\x05")))


def test_unknown_tags_of_a_partition_and_a_topic_are_skipped() -> None:
    topic = b"b" * 16 + b"\x02"
    start = _answer().index(topic)
    # Index, code, three offsets, no list of aborted ones, preferred replica, no records; then the tags.
    end = start + len(topic) + 30 + 1 + 4 + 1
    whole = _answer()
    tagged = whole[:end] + b"\x01\x07\x02zz" + b"\x01\x00\x01z" + whole[end + 2 :]

    assert decode_response(memoryview(tagged)) == decode_response(memoryview(whole))


def test_records_stay_views_of_the_frame() -> None:
    body = memoryview(_answer())

    records = decode_response(body)[2][0].records

    assert bytes(records) == b"records"
    assert records.obj is body.obj
