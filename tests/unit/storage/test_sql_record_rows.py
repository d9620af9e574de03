"""Batches as rows and rows as batches: what goes in comes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import (
    CONTROL_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    read_header,
    stamp,
    stamp_append_time,
)
from penstock.records.compression import Codec
from penstock.records.control import Marker, build_marker, read_marker
from penstock.records.records import (
    Headers,
    MalformedRecordError,
    Record,
    build_batch,
    headers_of,
    rebuilt,
    records_block,
    walk,
)
from penstock.storage.sql.record_rows import (
    COLUMNS,
    EpochAt,
    PlainRows,
    Row,
    batches_of,
    empty_batch,
    plain_batches,
    rows_of,
)

NOW_MS = 1_700_000_000_000
EPOCHS = [(2, 0), (5, 100)]

BINARY = st.none() | st.binary(max_size=40)
NAMES = st.text(max_size=10) | st.sampled_from(["penstock-tags", "penstock-biz-id"])
VALUES = BINARY | st.text(max_size=20).map(str.encode) | st.just(b"x" * 1025)
HEADERS = st.lists(st.tuples(NAMES.filter(lambda name: name.isprintable()), VALUES), max_size=5).map(tuple)
RECORDS = st.lists(
    st.builds(Record, BINARY, BINARY, HEADERS, st.integers(0, 1 << 45)),
    min_size=1,
    max_size=8,
)


def stamped(records: Sequence[Record], offset: int = 0, **options: int) -> bytearray:
    made = build_batch(records, **options)  # type: ignore[arg-type]
    stamp(memoryview(made), offset, 0)
    return made


def rows(made: bytearray) -> list[Row]:
    return rows_of(memoryview(made), read_header(made), NOW_MS)


def built(found: Sequence[Row], **options: int) -> list[bytearray]:
    return list(batches_of(found, EpochAt(EPOCHS), **options))


def records(batches: Sequence[bytearray]) -> list[tuple[int, Record]]:
    found = []
    for batch in batches:
        header = read_header(batch)
        block = records_block(memoryview(batch), header)
        for each in walk(block, header.record_count):
            key = None if each.key is None else bytes(each.key)
            value = None if each.value is None else bytes(each.value)
            time = header.max_timestamp if header.uses_append_time else header.base_timestamp + each.timestamp_delta
            record = Record(key, value, headers_of(block, each), time)
            found.append((header.base_offset + each.offset_delta, record))
    return found


def row(offset: int, **values: object) -> Row:
    """A row as the database gives it, of which somebody has set only some columns."""
    defaults = {"attributes": 0, "producer_id": -1, "producer_epoch": -1}
    return tuple({**dict.fromkeys(COLUMNS), **defaults, "id": offset + 1, **values}[name] for name in COLUMNS)


@given(RECORDS, st.sampled_from(list(Codec)), st.integers(0, 1 << 40), st.integers(1, 400))
def test_records_go_in_and_come_out(sent: list[Record], codec: Codec, offset: int, max_bytes: int) -> None:
    found = built(rows(stamped(sent, offset, codec=codec)), max_bytes=max_bytes)
    assert records(found) == list(enumerate(sent, offset))


@given(st.lists(st.tuples(RECORDS, st.integers(-1, 1), st.integers(0, 1), st.booleans()), max_size=8))
def test_neighbours_of_one_producer_form_a_batch_and_others_do_not(
    sent: list[tuple[list[Record], int, int, bool]],
) -> None:
    batches, expected, offset = [], [], 95
    for each, producer, epoch, is_transactional in sent:
        attributes = TRANSACTIONAL_BIT if is_transactional and producer >= 0 else 0
        epoch = epoch if producer >= 0 else -1
        batches.append(stamped(each, offset, producer_id=producer, producer_epoch=epoch, attributes=attributes))
        for place, record in enumerate(each, offset):
            expected.append((place, record, producer, epoch, attributes, 2 if place < 100 else 5))
        offset += len(each)
    found = built([each for made in batches for each in rows(made)])
    seen = []
    for batch in found:
        header = read_header(batch)
        common = (header.producer_id, header.producer_epoch, header.attributes, header.leader_epoch)
        seen += [(place, record, *common) for place, record in records([batch])]
        assert header.last_offset == seen[-1][0]
        assert header.max_timestamp == max(record.timestamp_ms for _, record in records([batch]))
    assert seen == expected
    commons = [each[2:] for each in expected]
    changes = sum(before != after for before, after in pairwise(commons))
    assert len(found) == (changes + 1 if expected else 0)


@pytest.mark.parametrize("extreme", [-(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_record_with_an_extreme_timestamp_leaves_those_of_its_neighbours_as_they_are(
    extreme: int, comes_first: bool
) -> None:
    times = [extreme, NOW_MS, -NOW_MS] if comes_first else [NOW_MS, -NOW_MS, extreme]
    sent = [Record(None, b"value", (), time) for time in times]
    made = [stamped([record], 100 + number) for number, record in enumerate(sent)]
    found = built([row for batch in made for row in rows(batch)])
    assert records(found) == list(enumerate(sent, 100))
    few = [(record.timestamp_ms, record.value) for record in sent]
    assert list(plain_batches(PlainRows(100, 5, (0, -1, -1), has_keys=False), few)) == found


def test_the_time_of_the_append_is_that_of_every_record() -> None:
    made = []
    for number in range(2):
        made.append(stamped([Record(None, b"a", (), 5), Record(None, b"b", (), 9)], number * 2, codec=Codec.GZIP))
        stamp_append_time(memoryview(made[-1]), NOW_MS + number)
    found = built(rows(made[0]) + rows(made[1]))
    assert [read_header(each).attributes for each in found] == [TIMESTAMP_TYPE_BIT] * 2
    assert [record.timestamp_ms for _, record in records(found)] == [NOW_MS, NOW_MS, NOW_MS + 1, NOW_MS + 1]


def test_a_marker_is_a_batch_of_its_own() -> None:
    markers = [build_marker(7, 1, Marker(committed, 3), NOW_MS) for committed in (True, False)]
    for offset, marker in enumerate(markers):
        stamp(memoryview(marker), offset, 0)
    found = built(rows(markers[0]) + rows(markers[1]))
    assert [read_marker(memoryview(each), read_header(each)) for each in found] == [Marker(True, 3), Marker(False, 3)]
    assert all(read_header(each).attributes == TRANSACTIONAL_BIT | CONTROL_BIT for each in found)


def test_offsets_that_are_missing_leave_gaps() -> None:
    sent = [Record(None, b"%d" % number, (), NOW_MS) for number in range(4)]
    made = stamped(sent, 10)
    header = read_header(made)
    block = records_block(memoryview(made), header)
    kept = list(walk(block, 4))[1:3]
    half = rebuilt(header, b"".join(block[each.start : each.end] for each in kept), 2, 0)
    found = rows(half)
    assert [each[0] for each in found] == [12, 13]
    assert [offset for offset, _ in records(built([*found, row(1 << 40)]))] == [11, 12, 1 << 40]


def test_an_empty_batch_covers_offsets_without_records() -> None:
    header = read_header(empty_batch(7, 10, 3))
    assert (header.base_offset, header.next_offset, header.record_count, header.leader_epoch) == (7, 10, 0, 3)
    assert read_header(empty_batch(0, 1 << 40, 3)).last_offset_delta == (1 << 31) - 1


@pytest.mark.parametrize(
    ("headers", "columns"),
    [
        ((), (None, None, None)),
        ((("penstock-tags", b"a,b"),), (None, "a,b", None)),
        ((("penstock-biz-id", b"7"), ("penstock-tags", b"a")), ("7", "a", None)),
        ((("penstock-biz-id", b"7"), ("x", b"y")), ("7", None, '[["x","y"]]')),
        (
            (("x", "\u4f60".encode()), ("penstock-biz-id", b"7")),
            ("7", None, '[["x","\u4f60"],["penstock-biz-id","7"]]'),
        ),
        ((("penstock-tags", b"\xff"),), (None, None, '[["penstock-tags",{"base64":"/w=="}]]')),
        ((("penstock-tags", None),), (None, None, '[["penstock-tags",null]]')),
        ((("penstock-biz-id", b"\0"),), (None, None, '[["penstock-biz-id",{"base64":"AA=="}]]')),
    ],
)
def test_headers_are_in_columns_that_people_can_read(headers: Headers, columns: tuple[str | None, ...]) -> None:
    made = stamped([Record(None, b"", headers, 0)])
    (found,) = rows(made)
    assert (found[1], found[2], found[5]) == columns
    assert records(built([found]))[0][1].headers == headers


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"body": b"x"}, Record(None, b"x", (), -1)),
        ({"body": b"x", "receive_time": 9}, Record(None, b"x", (), 9)),
        ({"msg_key": "k", "body": "text", "send_time": 5}, Record(b"k", b"text", (), 5)),
        (
            {"biz_id": "b", "tags": "a", "send_time": 5},
            Record(None, None, (("penstock-biz-id", b"b"), ("penstock-tags", b"a")), 5),
        ),
        (
            {"tags": "a", "headers": '[["x", "y"]]', "send_time": 5},
            Record(None, None, (("penstock-tags", b"a"), ("x", b"y")), 5),
        ),
        ({"headers": '{"x": 7, "y": null}', "send_time": 5}, Record(None, None, (("x", b"7"), ("y", None)), 5)),
        ({"headers": "no json", "send_time": 5}, Record(None, None, (("headers", b"no json"),), 5)),
        ({"headers": "[1]", "send_time": 5}, Record(None, None, (("headers", b"[1]"),), 5)),
        ({"headers": "[" * 100_000, "send_time": 5}, Record(None, None, (("headers", b"[" * 100_000),), 5)),
    ],
)
def test_a_row_written_by_hand_is_a_record(values: dict[str, object], expected: Record) -> None:
    ((offset, record),) = records(built([row(3, **values)]))
    assert (offset, record) == (3, expected)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_whose_records_are_not_what_it_says_is_refused(count: int) -> None:
    made = stamped([Record(None, b"a", (), 0), Record(None, b"b", (), 0)])
    header = read_header(made)._replace(record_count=count)
    with pytest.raises(MalformedRecordError):
        rows_of(memoryview(made), header, NOW_MS)


def test_a_batch_whose_records_share_an_offset_is_refused() -> None:
    made = stamped([Record(None, b"a", (), 0), Record(None, b"a", (), 0)])
    header = read_header(made)
    (first, _) = walk(records_block(memoryview(made), header), 2)
    again = bytes(made[61:])[first.start : first.end] * 2
    twice = rebuilt(header, again, 2, 0)
    with pytest.raises(MalformedRecordError, match="offset 0"):
        rows_of(memoryview(twice), header, NOW_MS)


def test_the_headers_column_is_json() -> None:
    made = stamped([Record(None, b"", (("a", b"1"), ("a", b"2"), ("b", None), ("c", b"\xff\0")), 0)])
    ((*_, text, _, _, _, _, _),) = rows(made)
    assert json.loads(text) == [["a", "1"], ["a", "2"], ["b", None], ["c", {"base64": "/wA="}]]


PLAIN = st.lists(st.tuples(st.integers(0, 1 << 41), BINARY | st.just("text"), BINARY), min_size=1, max_size=12)


@given(PLAIN, st.sampled_from([(0, -1, -1), (TRANSACTIONAL_BIT, 7, 3)]), st.booleans(), st.integers(1, 100))
def test_few_columns_give_the_same_batches_as_all(
    sent: list[tuple[int, bytes | str | None, bytes | None]],
    shared: tuple[int, int, int],
    has_keys: bool,
    max_bytes: int,
) -> None:
    whole, few = [], []
    for offset, (time, value, key) in enumerate(sent, 100):
        key = key if has_keys else None
        common = dict(zip(("attributes", "producer_id", "producer_epoch"), shared, strict=True))
        whole.append(row(offset, body=value, msg_key=key, send_time=time, receive_time=NOW_MS, **common))
        few.append((time, value, key) if has_keys else (time, value))
    plain = PlainRows(100, 5, shared, has_keys=has_keys)
    assert list(plain_batches(plain, few, max_bytes)) == built(whole, max_bytes=max_bytes)
