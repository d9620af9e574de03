"""Batches are built and walked record by record; records that lie about their shape are found out."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import CRC_START, HEADER_BYTES, read_header, stamp, stamp_append_time
from penstock.records.compression import Codec
from penstock.records.records import (
    MalformedRecordError,
    Record,
    build_batch,
    headers_of,
    recompress,
    records_block,
    walk,
    walk_fields,
)

RECORDS = [
    Record(b"key", b"value", (("name", b"x"), ("empty", None)), 1000),
    Record(None, b"", (), 500),
    Record(b"", None, (), 2_000_000_000_000),
    Record(b"k" * 300, b"v" * 70_000, (("n" * 200, b"w" * 200),), 1001),
]


def contents(batch: bytes | bytearray | memoryview) -> list[Record]:
    view = memoryview(batch)
    header = read_header(view)
    block = records_block(view, header)
    return [
        Record(
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            headers_of(block, record),
            header.base_timestamp + record.timestamp_delta,
        )
        for record in walk(block, header.record_count)
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_out_as_they_went_in(codec: Codec) -> None:
    assert contents(build_batch(RECORDS, codec=codec)) == RECORDS


def test_a_built_batch_has_a_header_that_fits() -> None:
    batch = build_batch(RECORDS, base_offset=10, producer_id=7, producer_epoch=2, base_sequence=5, leader_epoch=4)
    header = read_header(batch)
    assert (header.size, header.last_offset, header.next_offset) == (len(batch), 13, 14)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 2_000_000_000_000)
    assert (header.last_sequence, header.record_count) == (8, 4)
    assert header.crc == crc32c(bytes(batch[CRC_START:]))


def test_a_stamp_does_not_touch_what_the_crc_covers() -> None:
    batch = build_batch(RECORDS)
    before = bytes(batch[17:])
    stamp(memoryview(batch), 1 << 40, 99)
    assert bytes(batch[17:]) == before
    assert (read_header(batch).base_offset, read_header(batch).leader_epoch) == (1 << 40, 99)


def test_a_stamp_of_the_append_time_makes_the_crc_anew() -> None:
    batch = build_batch(RECORDS)
    stamp_append_time(memoryview(batch), 123)
    header = read_header(batch)
    assert header.uses_append_time and header.max_timestamp == 123
    assert header.crc == crc32c(bytes(batch[CRC_START:]))


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_a_batch_can_be_put_into_another_codec(source: Codec, target: Codec) -> None:
    batch = memoryview(build_batch(RECORDS, codec=source, producer_id=3, producer_epoch=0, base_sequence=0))
    changed = recompress(batch, target)
    assert contents(changed) == RECORDS
    before, after = read_header(batch), read_header(changed)
    assert after.codec == target
    assert after.crc == crc32c(bytes(changed[CRC_START:]))
    assert before._replace(length=0, crc=0, attributes=0) == after._replace(length=0, crc=0, attributes=0)
    assert (changed is batch) == (source == target)


def malformed(block: bytes, count: int) -> bool:
    try:
        list(walk(memoryview(block), count))
    except MalformedRecordError:
        return True
    return False


def test_every_way_to_lie_about_the_shape_is_found() -> None:
    block = bytes(build_batch(RECORDS[:2])[HEADER_BYTES:])
    assert not malformed(block, 2)
    assert malformed(block, 1), "more records than claimed"
    assert malformed(block, 3), "fewer records than claimed"
    assert malformed(block[:-1], 2), "cut"
    assert malformed(b"\xff" * 11, 1), "a number without an end"
    assert malformed(b"\xff" * 9 + b"\x7f" + bytes(20), 1), "a number of more than 64 bits"
    assert malformed(b"\x0e\x00\x00\x00\x20" + bytes(3), 1), "a key longer than its record"
    assert malformed(b"\x0c\x00\x00\x00\x05" + bytes(2), 1), "a key of length -3"
    assert malformed(b"\x0c\x00\x00\x00\x01\x80\x01", 1), "no room for headers"
    assert malformed(b"", 1)
    assert not malformed(b"", 0)


def test_headers_that_do_not_fit_are_found() -> None:
    block = memoryview(b"\x0c\x00\x00\x00\x01\x01\x7e")
    (record,) = walk(block, 1)
    with pytest.raises(MalformedRecordError):
        headers_of(block, record)


ANY_RECORDS = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=9000),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=80)), max_size=3).map(tuple),
        st.integers(0, 1 << 50),
    ),
    min_size=1,
    max_size=8,
)


def taken_apart(block: bytes, count: int) -> list[tuple[object, ...]] | None:
    """What `walk` finds; None if that is refused."""
    try:
        return [
            (
                each.timestamp_delta,
                each.offset_delta,
                None if each.key is None else bytes(each.key),
                None if each.value is None else bytes(each.value),
                each.headers_at,
                each.end,
            )
            for each in walk(memoryview(block), count)
        ]
    except MalformedRecordError:
        return None


@given(ANY_RECORDS, st.data())
def test_both_ways_to_take_records_apart_find_and_refuse_the_same(records: list[Record], data: st.DataObject) -> None:
    made = build_batch(records)
    block, count = bytearray(made[HEADER_BYTES:]), len(records)
    assert list(walk_fields(bytes(block), count)) == taken_apart(bytes(block), count)
    for _ in range(3):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(block[: data.draw(st.integers(0, len(block)))])
    expected = taken_apart(damaged, count)
    if expected is None:
        with pytest.raises(MalformedRecordError):
            list(walk_fields(damaged, count))
    else:
        assert list(walk_fields(damaged, count)) == expected
