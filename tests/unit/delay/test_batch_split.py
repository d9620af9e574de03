"""A batch in two halves: nothing of it is lost, and each half is a batch that a log takes."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.delay.batch_split import SplitPlan, plan_split, split_batch
from penstock.delay.contents import Cancels, Waits, changes, name_in, occurrence, recurrence_in
from penstock.delay.control_batches import (
    MOVED_BIT,
    NOTE_BIT,
    RESET_BIT,
    Delivered,
    MarkReset,
    delivery,
    mark_reset,
    read_delivered,
    read_reset,
    transaction_end,
)
from penstock.delay.delay_headers import DelayRules
from penstock.delay.entries import cancelled, due_of, is_named, pack, recurs, unpack
from penstock.records.batch import ASIDE_BIT, HEADER_BYTES, PAIRED_BIT, TRANSACTIONAL_BIT, crc_of, read_header
from penstock.records.compression import Codec
from penstock.records.control import Marker, build_marker, read_marker
from penstock.records.records import Headers, Record, build_batch, headers_of, records_block, walk
from penstock.storage.admission import RefusedRecordsError

NOW = 1_700_000_000_000
RULES = DelayRules(levels_ms=(1000,))

headers = st.lists(
    st.sampled_from(
        [
            ("penstock-delay", b"5s"),
            ("penstock-deliver-at", b"%d" % (NOW + 77)),
            ("penstock-deliver-at", b"5"),
            ("penstock-timer-id", b"name"),
            ("other", b"\xff"),
            ("other", None),
        ]
    ),
    max_size=2,
    unique_by=lambda header: header[0].replace("deliver-at", "delay"),
).map(tuple)
records = st.builds(Record, st.none() | st.binary(max_size=5), st.none() | st.binary(max_size=9), headers, st.just(NOW))


def in_batch(batch: memoryview) -> list[tuple[int, int, Record]]:
    """(offset delta, timestamp, record) of each."""
    header = read_header(batch)
    block = records_block(batch, header)
    return [
        (
            record.offset_delta,
            header.base_timestamp + record.timestamp_delta,
            Record(
                None if record.key is None else bytes(record.key),
                None if record.value is None else bytes(record.value),
                headers_of(block, record),
            ),
        )
        for record in walk(block, header.record_count)
    ]


def parted(batch: memoryview, found: SplitPlan, not_before_ms: int = 0) -> tuple[memoryview, memoryview]:
    halves = split_batch(read_header(batch), found, 1000, 3, not_before_ms)
    return memoryview(halves.aside), memoryview(halves.kept)


def delivered(record: Record, due_ms: int) -> Headers:
    """The headers with which a record is delivered."""
    return tuple(
        ("penstock-deliver-at", b"%d" % due_ms) if name == "penstock-delay" else (name, value)
        for name, value in record.headers
    )


@given(st.lists(records, min_size=1, max_size=8), st.sampled_from(list(Codec)), st.integers(-1, 5))
def test_both_halves_together_are_the_batch(sent: list[Record], codec: Codec, producer: int) -> None:
    batch = memoryview(
        build_batch(sent, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=8 if producer >= 0 else -1)
    )
    found = plan_split(batch, NOW, RULES)
    is_for_later = [
        any(
            (name, value) in (("penstock-delay", b"5s"), ("penstock-deliver-at", b"%d" % (NOW + 77)))
            or name == "penstock-timer-id"
            for name, value in record.headers
        )
        for record in sent
    ]
    if found is None:
        assert not any(is_for_later)
        return
    aside, kept = parted(batch, found)
    for half, bit in ((aside, ASIDE_BIT), (kept, PAIRED_BIT)):
        header = read_header(half)
        assert header.size == len(half) and header.crc == crc_of(half) and header.attributes & bit
        assert (header.base_offset, header.leader_epoch, header.last_offset_delta) == (1000, 3, len(sent) - 1)
        assert header.producer_id == producer and header.base_sequence == (8 if producer >= 0 else -1)
    waiting = {delta: (due, record) for delta, due, record in in_batch(aside)}
    staying = {delta: record for delta, _, record in in_batch(kept)}
    assert waiting.keys() == {delta for delta, later in enumerate(is_for_later) if later}
    assert staying.keys() == set(range(len(sent))) - waiting.keys()
    for delta, record in enumerate(sent):
        if delta in staying:
            assert staying[delta][:3] == record[:3]
        else:
            due, found_record = waiting[delta]
            assert found_record[:3] == (record.key, record.value, delivered(record, due))
            assert due >= NOW or dict(record.headers).get("penstock-deliver-at") == b"5"


def test_nothing_is_due_before_what_was_delivered() -> None:
    batch = memoryview(build_batch([Record(None, b"", (("penstock-delay", b"1s"),)), Record(None, b"")]))
    found = plan_split(batch, NOW, RULES)
    assert found is not None
    aside, _ = parted(batch, found, NOW + 5000)
    assert in_batch(aside)[0][1] == NOW + 5000


@pytest.mark.parametrize("bit", [MOVED_BIT, NOTE_BIT, RESET_BIT, 0x40, 0x80])
def test_a_producer_cannot_forge_what_brokers_note(bit: int) -> None:
    sent = Record(None, b"v", (("penstock-delay", b"5s"),), NOW)
    batch = memoryview(build_batch([sent], attributes=bit | TRANSACTIONAL_BIT, producer_id=1, producer_epoch=0))
    found = plan_split(batch, NOW, RULES)
    assert found is not None
    aside, _ = parted(batch, found)
    assert read_header(aside).attributes == ASIDE_BIT | TRANSACTIONAL_BIT


def test_every_refused_record_is_named() -> None:
    bad, good = (("penstock-delay", b"soon"),), (("penstock-delay", b"1s"),)
    batch = memoryview(build_batch([Record(None, b"", good), Record(None, b"", bad), Record(None, b"", bad)]))
    found = plan_split(batch, NOW, RULES)
    assert found is not None
    with pytest.raises(RefusedRecordsError) as caught:
        parted(batch, found)
    assert [index for index, _ in caught.value.record_errors] == [1, 2]


def test_the_word_in_a_value_is_no_header() -> None:
    assert plan_split(memoryview(build_batch([Record(b"penstock-delay", b"penstock-cancel")])), NOW, RULES) is None


def test_a_companions_batch_says_what_changes_and_where_it_lies() -> None:
    sent = [
        Record(b"k", b"v", (("penstock-delay", b"1s"),)),
        Record(None, None, (("penstock-cancel", b"old"),)),
        Record(None, b"t", (("penstock-schedule", b"every 5s"), ("penstock-timer-id", b"new"))),
    ]
    batch = memoryview(build_batch(sent))
    found = plan_split(batch, NOW, RULES)
    assert found is not None
    aside, _ = parted(batch, found)
    in_file = memoryview(bytes(333) + bytes(aside))
    first, second, third = changes(aside, read_header(aside), 333)
    assert isinstance(first, Waits) and first.name is None and second == Cancels(b"old")
    assert isinstance(third, Waits) and third.name == b"new" and recurs(third.entry) and is_named(third.entry)
    assert (due_of(first.entry), due_of(third.entry)) == (NOW + 1000, NOW + 5000)
    for change in (first, third):
        entry = unpack(change.entry)
        content = bytes(in_file[entry.position : entry.position + entry.size])
        assert crc32c(content) == entry.crc and entry.base_offset == 1000
    assert name_in(content) == b"new"
    recurrence = recurrence_in(content)
    assert recurrence is not None and recurrence.next_after(NOW, NOW) == NOW + 5000
    assert b"every 5s" not in occurrence(content, NOW) and name_in(occurrence(content, NOW)) == b"new"


@given(st.lists(st.binary(max_size=10), max_size=5), st.integers(0, 2**40))
def test_a_delivery_is_a_batch_and_a_note_of_the_mark(values: list[bytes], due_ms: int) -> None:
    source = memoryview(build_batch([Record(None, value) for value in values] or [Record(None, b"")]))
    block = source[HEADER_BYTES:]
    contents = [bytes(block[record.content_at : record.end]) for record in walk(block, len(values) or 1)][: len(values)]
    mark = pack(due_ms, 7, 8, 9, 10)
    done = Delivered(mark, NOW, {b"p" * 16: NOW + 5, b"q" * 16: NOW + 6})
    aside, kept = delivery(contents, done, 500, 4)
    assert read_delivered(aside, read_header(aside)) == done
    assert [(delta, at, record.value) for delta, at, record in in_batch(kept)] == [
        (delta, NOW, value) for delta, value in enumerate(values)
    ]
    assert read_header(aside).next_offset == read_header(kept).next_offset == 500 + max(1, len(values))
    assert cancelled(mark) < mark


def test_the_end_of_a_transaction_is_noted_with_the_earliest_due_time() -> None:
    batch = memoryview(build_marker(5, 2, Marker(True, 9), NOW))
    aside, kept = transaction_end(batch, 55, 4, 777)
    for half in (aside, kept):
        assert (read_header(half).base_offset, read_header(half).leader_epoch) == (55, 4)
    assert read_marker(aside, read_header(aside)) == read_marker(kept, read_header(kept)) == Marker(True, 9)
    assert read_header(aside).base_timestamp == 777 and read_header(kept).base_timestamp == NOW
    assert read_header(kept).crc == crc_of(kept)


def test_a_reset_says_from_when_on_and_which_schedules_go_on_earlier() -> None:
    reset = MarkReset(NOW, {pack(NOW + 5, 1, 2, 3, 4): NOW + 1, pack(NOW + 9, 1, 2, 3, 4): NOW + 2})
    pair = mark_reset(reset, 77, 5)
    header, other = read_header(pair.aside), read_header(pair.kept)
    assert header.attributes == ASIDE_BIT | RESET_BIT and other.attributes == PAIRED_BIT
    assert (header.base_offset, other.base_offset, other.record_count) == (77, 77, 0)
    assert read_reset(pair.aside, header) == reset
