"""What every engine promises of transactions in a log: one suite, all engines."""

from __future__ import annotations

import pytest

from penstock.clock import ManualClock
from penstock.errors import ApiError, Code
from penstock.records.batch import MAX_SEQUENCE, TRANSACTIONAL_BIT, read_header
from penstock.records.control import Marker, read_marker
from penstock.records.records import Record, build_batch
from penstock.storage.contract import Log
from support.logs import (
    ALL,
    DAY_MS,
    EPOCH,
    NOW_MS,
    NewLog,
    append,
    append_batch,
    batch,
    content,
    keeps_batches,
    read_all,
    read_batches,
    settings,
    split,
)
from support.transactions import end, read_committed, txn_append, txn_batch

PADDING = b"." * 700
"""With segments of 1024 bytes, one batch with this in it fills a segment."""
COMPACTED = {"cleanup_policy": "compact", "segment_bytes": 1024, "min_cleanable_dirty_ratio": "0.01"}


async def refusal(log: Log, made: bytearray, **options: int) -> Code:
    before = log.end_offset
    with pytest.raises(ApiError) as caught:
        await append_batch(log, memoryview(made), EPOCH, **options)  # type: ignore[arg-type]
    assert log.end_offset == before
    return caught.value.code


async def marker_refusal(log: Log, producer: int, **options: int) -> Code:
    before = log.end_offset
    with pytest.raises(ApiError) as caught:
        await end(log, producer, commit=True, **options)
    assert log.end_offset == before
    return caught.value.code


def coordinated(*keys: bytes, producer: int, epoch: int = 0) -> bytearray:
    """A batch as a coordinator writes it in the name of a producer."""
    return build_batch(
        [Record(key, b"", (), NOW_MS) for key in keys],
        producer_id=producer,
        producer_epoch=epoch,
        attributes=TRANSACTIONAL_BIT,
    )


# Visibility


async def test_a_marker_ends_nothing_for_readers_while_it_may_still_be_cut(new_log: NewLog) -> None:
    """The last stable offset must not pass a transaction whose marker a new leader may not have."""
    log = await new_log()
    await txn_append(log, b"a", b"b", producer=1)
    log.saved_high_watermark = 1
    await end(log, 1, commit=True)
    assert log.first_unstable_offset == 0
    log.saved_high_watermark = log.end_offset
    assert log.first_unstable_offset is None


# Opening


async def test_a_transactional_batch_needs_a_guard_or_an_open_transaction(new_log: NewLog) -> None:
    log = await new_log()
    assert await refusal(log, txn_batch(b"a", producer=1)) == Code.INVALID_TXN_STATE
    assert not log.producers.has_open(1, 0)
    await append_batch(log, memoryview(txn_batch(b"a", producer=1)), EPOCH, guard=log.producers.guard(1))
    assert log.producers.has_open(1, 0)
    await append_batch(log, memoryview(txn_batch(b"b", producer=1, sequence=1)), EPOCH)
    assert await refusal(log, txn_batch(b"a", producer=2)) == Code.INVALID_TXN_STATE


async def test_a_batch_cannot_slip_in_behind_the_marker_that_ended_its_transaction(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    guard = log.producers.guard(1)
    await end(log, 1, commit=True)
    assert log.producers.guard(1) != guard
    late = txn_batch(b"b", producer=1, sequence=1)
    assert await refusal(log, late, guard=guard) == Code.INVALID_TXN_STATE
    await append_batch(log, memoryview(late), EPOCH, guard=log.producers.guard(1))


async def test_the_guard_of_an_unknown_producer_changes_with_a_marker_even_if_the_producer_is_forgotten_again(
    new_log: NewLog, clock: ManualClock
) -> None:
    log = await new_log(retention_ms=-1)
    guard = log.producers.guard(1)
    await end(log, 1, commit=False)
    clock.advance(2 * DAY_MS)
    await log.apply_retention()
    assert len(log.producers) == 0
    assert await refusal(log, txn_batch(b"a", producer=1), guard=guard) == Code.INVALID_TXN_STATE


async def test_a_producer_with_an_open_transaction_sends_nothing_beside_it(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    assert await refusal(log, batch(b"b", producer=1, sequence=1)) == Code.INVALID_TXN_STATE
    await end(log, 1, commit=True)
    assert await append(log, b"b", producer=1, sequence=1) == 2


async def test_a_new_epoch_does_not_continue_the_transaction_of_the_old_one(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1, epoch=3)
    assert not log.producers.has_open(1, 4)
    later = txn_batch(b"b", producer=1, epoch=4)
    assert await refusal(log, later, guard=log.producers.guard(1)) == Code.INVALID_TXN_STATE
    await end(log, 1, commit=False, epoch=4)
    await append_batch(log, memoryview(later), EPOCH, guard=log.producers.guard(1))


async def test_a_repeat_is_answered_while_its_transaction_goes_on(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    again = await append_batch(log, memoryview(txn_batch(b"a", producer=1)), EPOCH)
    assert (again.base_offset, again.is_repeat) == (0, True)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_repeat_from_before_the_marker_is_refused(new_log: NewLog, commit: bool) -> None:
    """Nobody can tell a late copy from a new transaction that uses the same sequences: success would lose records."""
    log = await new_log()
    await txn_append(log, b"a", b"b", producer=1)
    await end(log, 1, commit=commit)
    again = txn_batch(b"c", b"d", producer=1)
    guard = log.producers.guard(1)
    assert await refusal(log, again) == Code.INVALID_TXN_STATE, "no transaction is going on"
    assert await refusal(log, again, guard=guard) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    await txn_append(log, b"c", b"d", producer=1, sequence=2)
    assert await refusal(log, txn_batch(b"a", b"b", producer=1)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await refusal(log, txn_batch(b"a", b"b", b"c", b"d", producer=1)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    again = txn_batch(b"c", b"d", producer=1, sequence=2)
    assert await append_batch(log, memoryview(again), EPOCH) == (3, 4, -1, True)


async def test_only_sequences_since_the_marker_are_duplicates(new_log: NewLog) -> None:
    """Clients take a duplicate for success."""
    log = await new_log()
    for sequence in range(7):
        await txn_append(log, b"a", producer=1, sequence=sequence)
    await end(log, 1, commit=False)
    guard = log.producers.guard(1)
    for sequence in range(7):
        again = txn_batch(b"b", producer=1, sequence=sequence)
        assert await refusal(log, again, guard=guard) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(7, 14):
        await txn_append(log, b"c", producer=1, sequence=sequence)
    for sequence in range(14):
        again = txn_batch(b"d", producer=1, sequence=sequence)
        if sequence < 7:
            assert await refusal(log, again) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif sequence < 9:
            assert await refusal(log, again) == Code.DUPLICATE_SEQUENCE_NUMBER
        else:
            assert (await append_batch(log, memoryview(again), EPOCH)).base_offset == sequence + 1


async def test_sequences_wrap_around_behind_a_marker(new_log: NewLog) -> None:
    log = await new_log()
    # Outside of a transaction any sequence may begin.
    await append(log, b"a", producer=1, sequence=MAX_SEQUENCE)
    await end(log, 1, commit=True)
    guard = log.producers.guard(1)
    again = txn_batch(b"a", producer=1, sequence=MAX_SEQUENCE)
    assert await refusal(log, again, guard=guard) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(7):
        await txn_append(log, b"b", producer=1, sequence=sequence)
    assert await refusal(log, txn_batch(b"b", producer=1, sequence=0)) == Code.DUPLICATE_SEQUENCE_NUMBER
    assert await refusal(log, again) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_cut_log_knows_which_sequences_came_before_the_marker(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    await end(log, 1, commit=False)
    await txn_append(log, b"b", producer=1, sequence=1)
    await txn_append(log, b"c", producer=1, sequence=2)
    await log.cut(3)
    assert await refusal(log, txn_batch(b"a", producer=1)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await append_batch(log, memoryview(txn_batch(b"b", producer=1, sequence=1)), EPOCH)).is_repeat
    await log.cut(2)
    guard = log.producers.guard(1)
    assert await refusal(log, txn_batch(b"a", producer=1), guard=guard) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    await log.cut(1)
    assert (await append_batch(log, memoryview(txn_batch(b"a", producer=1)), EPOCH)).is_repeat, "the marker is gone"


async def test_sequences_are_checked_in_transactions_too(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    assert await refusal(log, txn_batch(b"c", producer=1, sequence=2)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_transactional_batch_without_a_producer_is_refused(new_log: NewLog) -> None:
    log = await new_log()
    assert await refusal(log, txn_batch(b"a", producer=-1, epoch=-1, sequence=-1)) == Code.INVALID_RECORD


async def test_a_producer_may_not_send_control_batches(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    await end(log, 1, commit=True)
    (_, marker) = await read_batches(log)
    assert await refusal(log, bytearray(marker)) == Code.INVALID_RECORD


async def test_a_coordinator_writes_for_a_producer_without_sequence_numbers(new_log: NewLog) -> None:
    log = await new_log()
    made = coordinated(b"k", producer=1)
    assert await refusal(log, made, guard=log.producers.guard(1)) == Code.INVALID_RECORD
    assert await refusal(log, made, is_own=True) == Code.INVALID_TXN_STATE
    for offset in range(7):
        again = coordinated(b"k", producer=1)
        appended = await append_batch(log, memoryview(again), EPOCH, guard=log.producers.guard(1), is_own=True)
        assert appended == (offset, offset, -1, False), "the same bytes are no repeat"
    assert log.producers.has_open(1, 0)
    await end(log, 1, commit=True, epoch=5)
    old = coordinated(b"k", producer=1, epoch=4)
    assert await refusal(log, old, guard=log.producers.guard(1), is_own=True) == Code.INVALID_PRODUCER_EPOCH


# Markers


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_is_a_control_batch_of_kafkas_format(new_log: NewLog, commit: bool) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1, epoch=2)
    appended = await end(log, 1, commit=commit, epoch=2, coordinator_epoch=9)
    assert appended == (1, 1, -1, False)
    (_, found) = await read_batches(log)
    header = read_header(found)
    assert header.is_control and header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (1, 2, -1, 1)
    assert (header.base_offset, header.leader_epoch, header.max_timestamp) == (1, EPOCH, NOW_MS)
    assert read_marker(memoryview(found), header) == Marker(commit, 9)
    kind = b"\0\1" if commit else b"\0\0"
    assert found.endswith(b"\x08\0\0" + kind + b"\x0c\0\0\0\0\0\x09\0"), "key, value and no headers"


async def test_a_marker_fences_earlier_epochs(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1, epoch=3)
    await end(log, 1, commit=False, epoch=4)
    late = txn_batch(b"b", producer=1, epoch=3, sequence=1)
    assert await refusal(log, late, guard=log.producers.guard(1)) == Code.INVALID_PRODUCER_EPOCH
    assert await refusal(log, batch(b"b", producer=1, epoch=3, sequence=1)) == Code.INVALID_PRODUCER_EPOCH
    assert await marker_refusal(log, 1, epoch=3) == Code.INVALID_PRODUCER_EPOCH


async def test_a_marker_fences_even_where_the_producer_was_not_known(new_log: NewLog) -> None:
    log = await new_log()
    await end(log, 1, commit=False, epoch=4)
    late = txn_batch(b"b", producer=1, epoch=3)
    assert await refusal(log, late, guard=log.producers.guard(1)) == Code.INVALID_PRODUCER_EPOCH


async def test_sequences_begin_again_behind_a_marker_of_a_higher_epoch(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", b"b", producer=1, epoch=3)
    await end(log, 1, commit=True, epoch=4)
    guard = log.producers.guard(1)
    going_on = txn_batch(b"c", producer=1, epoch=4, sequence=2)
    assert await refusal(log, going_on, guard=guard) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await txn_append(log, b"c", producer=1, epoch=4, sequence=0) == 3


async def test_sequences_go_on_behind_a_marker_of_the_same_epoch(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", b"b", producer=1)
    await end(log, 1, commit=True)
    guard = log.producers.guard(1)
    beginning = txn_batch(b"c", b"d", b"e", producer=1, sequence=0)
    assert await refusal(log, beginning, guard=guard) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await txn_append(log, b"c", producer=1, sequence=2) == 3


async def test_the_first_batch_of_a_producer_that_is_not_known_begins_at_zero_in_a_transaction(
    new_log: NewLog,
) -> None:
    """Of two batches on their way the first may be refused for the moment: the second must not take its place."""
    log = await new_log()
    await end(log, 2, commit=True)
    for producer in (1, 2):
        second = txn_batch(b"b", producer=producer, sequence=1)
        guard = log.producers.guard(producer)
        assert await refusal(log, second, guard=guard) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        await txn_append(log, b"a", producer=producer, sequence=0)
        await append_batch(log, memoryview(second), EPOCH)


async def test_any_sequence_may_follow_a_marker_outside_of_transactions(new_log: NewLog) -> None:
    log = await new_log()
    await end(log, 1, commit=True, epoch=2)
    assert await append(log, b"a", producer=1, epoch=2, sequence=41) == 1


async def test_a_marker_of_an_earlier_coordinator_is_refused(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    await end(log, 1, commit=True, coordinator_epoch=5)
    assert await marker_refusal(log, 1, coordinator_epoch=4) == Code.TRANSACTION_COORDINATOR_FENCED
    await end(log, 1, commit=True, coordinator_epoch=5)
    await end(log, 2, commit=True, coordinator_epoch=4)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_that_is_written_twice_changes_nothing(new_log: NewLog, commit: bool) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    await end(log, 1, commit=commit)
    before = (await read_committed(log), log.aborted_transactions(0, 99))
    await end(log, 1, commit=commit)
    assert (await read_committed(log), log.aborted_transactions(0, 99)) == before
    assert await txn_append(log, b"b", producer=1, sequence=1) == 3
    await end(log, 1, commit=True)
    assert (await read_committed(log))[-1].value == b"b"


async def test_markers_do_not_count_in_look_ups_by_time(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(segment_bytes=1024)
    await txn_append(log, PADDING, producer=1, at_ms=NOW_MS + 5)
    clock.advance(1000)
    await end(log, 1, commit=True)
    for number in range(3):
        await append(log, PADDING, at_ms=NOW_MS + number)
        await end(log, 1, commit=True)
    found = await log.find_max_timestamp()
    assert found is not None and (found.offset, found.timestamp_ms) == (0, NOW_MS + 5)
    assert await log.find_time(NOW_MS + 6) is None
    await log.trim(2)
    found = await log.find_max_timestamp()
    assert found is not None and (found.offset, found.timestamp_ms) == (6, NOW_MS + 2)


# The last stable offset and what was aborted


async def test_the_oldest_open_transaction_is_the_first_that_is_unstable(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"0")
    assert log.first_unstable_offset is None
    await txn_append(log, b"1", producer=1)
    await txn_append(log, b"2", producer=2)
    assert log.first_unstable_offset == 1
    await end(log, 1, commit=True)
    assert log.first_unstable_offset == 2
    await end(log, 2, commit=False)
    assert log.first_unstable_offset is None


async def test_aborted_transactions_that_overlap_a_range_are_listed_by_their_first_offset(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"0", producer=1)
    await txn_append(log, b"1", producer=2)
    await txn_append(log, b"2", producer=3)
    await end(log, 2, commit=False)  # 3
    await end(log, 3, commit=True)  # 4
    await end(log, 1, commit=False)  # 5
    await txn_append(log, b"6", producer=2, sequence=1)
    await end(log, 2, commit=False)  # 7
    assert log.aborted_transactions(0, 8) == [(1, 0), (2, 1), (2, 6)]
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert log.aborted_transactions(4, 6) == [(1, 0)]
    assert log.aborted_transactions(6, 8) == [(2, 6)]
    assert log.aborted_transactions(8, 9) == []


@pytest.mark.parametrize("max_bytes", [1, 200, ALL])
async def test_a_reader_of_what_is_committed_sees_that_and_nothing_else(new_log: NewLog, max_bytes: int) -> None:
    log = await new_log(segment_bytes=1024, index_interval_bytes=1)
    expected = []
    for number in range(30):
        producer, commit = number % 3, number % 4 != 0
        await txn_append(log, b"%d" % number, b"x" * 50, producer=producer, epoch=number)
        await append(log, b"plain %d" % number)
        await end(log, producer, commit=commit, epoch=number + 1)
        expected += [b"%d" % number, b"x" * 50] if commit else []
        expected.append(b"plain %d" % number)
    await txn_append(log, b"open", producer=1, epoch=99)
    await append(log, b"behind it")
    assert [record.value for record in await read_committed(log, max_bytes=max_bytes)] == expected


async def test_producers_are_described_with_their_transactions(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"x")
    await txn_append(log, b"a", b"b", producer=1, epoch=2)
    await txn_append(log, b"a", producer=2)
    await end(log, 2, commit=True, epoch=1, coordinator_epoch=7)
    assert log.producers.describe() == (
        (1, 2, 1, NOW_MS, -1, 1),
        (2, 1, -1, NOW_MS, 7, -1),
    )


# What is never forgotten, and what is


async def test_an_open_transaction_is_never_forgotten(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(retention_ms=-1)
    await txn_append(log, b"a", producer=1)
    clock.advance(100 * DAY_MS)
    await log.apply_retention()
    for producer in range(10, 20):
        await append(log, b"x", producer=producer)
    assert len(log.producers) == 4
    assert (log.producers.has_open(1, 0), log.first_unstable_offset) == (True, 0)
    await end(log, 1, commit=False)
    assert log.aborted_transactions(0, 99) == [(1, 0)]


async def test_more_open_transactions_than_producers_are_allowed_are_all_known(new_log: NewLog) -> None:
    log = await new_log()
    for producer in range(10):
        await txn_append(log, b"x", producer=producer)
    assert all(log.producers.has_open(producer, 0) for producer in range(10))
    for producer in range(10):
        await end(log, producer, commit=False)
    assert len(log.aborted_transactions(0, 99)) == 10


async def test_a_trim_forgets_aborted_transactions_that_it_removes(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"0", producer=1)
    await txn_append(log, b"1", producer=2)
    await end(log, 1, commit=False)  # 2
    await append(log, b"3")
    await end(log, 2, commit=False)  # 4
    await log.trim(3)
    assert log.aborted_transactions(0, 99) == [(2, 1)]
    assert len(log.producers.aborted) == 1
    assert await read_committed(log) == [(3, None, b"3")]


async def test_a_trim_past_an_open_transaction_leaves_it_open(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"0", producer=1)
    await append(log, b"1")
    await log.trim(1)
    assert (log.first_unstable_offset, log.producers.has_open(1, 0)) == (1, True)
    await end(log, 1, commit=False)
    assert [record.value for record in await read_committed(log)] == [b"1"]


async def test_retention_does_not_wait_for_transactions(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(segment_bytes=1024, retention_ms=DAY_MS)
    await txn_append(log, PADDING, producer=1)
    clock.advance(2 * DAY_MS)
    await append(log, PADDING, at_ms=NOW_MS + 2 * DAY_MS)
    await log.apply_retention()
    assert (log.start_offset, log.first_unstable_offset) == (1, 1)


# Compaction


async def test_compaction_stays_below_the_first_open_transaction(new_log: NewLog) -> None:
    log = await new_log(**COMPACTED)
    await append(log, b"old", keys=[b"k"])
    await append(log, PADDING, keys=[b"filler"])
    await txn_append(log, b"open", producer=1, keys=[b"o"])
    await append(log, b"new", PADDING, keys=[b"k", b"filler"])
    await append(log, PADDING, keys=[b"end"])
    await log.compact()
    assert [record.value for record in await read_all(log)].count(b"old") == 1
    await end(log, 1, commit=True)
    await append(log, PADDING, keys=[b"end"])
    assert await log.compact()
    found = [record.value for record in await read_all(log)]
    assert b"old" not in found and b"new" in found and b"open" in found


async def test_compaction_drops_what_was_aborted_and_it_supersedes_nothing(new_log: NewLog) -> None:
    log = await new_log(**COMPACTED)
    await append(log, b"good", keys=[b"k"])
    await append(log, PADDING, keys=[b"filler"])
    await txn_append(log, b"bad", producer=1, keys=[b"k"])
    await append(log, PADDING, keys=[b"filler"])
    await append(log, PADDING, keys=[b"filler"])
    await end(log, 1, commit=False)  # in a later segment than what it ends
    assert await log.compact()
    found = [record.value for record in await read_all(log)]
    assert b"good" in found and b"bad" not in found
    assert [record for record in await read_committed(log) if record.key == b"k"] == [(0, b"k", b"good")]


async def test_what_was_committed_supersedes_what_came_before(new_log: NewLog) -> None:
    log = await new_log(**COMPACTED)
    await append(log, b"old", keys=[b"k"])
    await txn_append(log, b"new", producer=1, keys=[b"k"])
    await end(log, 1, commit=True)
    await append(log, PADDING, keys=[b"filler"])
    await append(log, PADDING, keys=[b"filler"])
    assert await log.compact()
    assert [record.value for record in await read_committed(log)][:1] == [b"new"]


async def test_compaction_forgets_aborted_transactions_of_which_nothing_is_left(new_log: NewLog) -> None:
    log = await new_log(**COMPACTED)
    for number in range(5):
        await txn_append(log, PADDING, producer=1, sequence=number, keys=[b"k"])
        await end(log, 1, commit=False)
    await append(log, PADDING, keys=[b"filler"])
    await append(log, b"end", keys=[b"end"])
    assert len(log.producers.aborted) == 5
    assert await log.compact()
    assert len(log.producers.aborted) <= 1
    assert [record.value for record in await read_committed(log)] == [PADDING, b"end"]


async def test_markers_go_once_nothing_of_their_transaction_is_left_and_their_time_is_over(
    new_log: NewLog, clock: ManualClock
) -> None:
    log = await new_log(**COMPACTED, delete_retention_ms=1000)
    for number in range(4):
        await txn_append(log, PADDING, producer=1, sequence=number, keys=[b"k"])
        await end(log, 1, commit=number % 2 == 0)
    await txn_append(log, b"stays", producer=2, keys=[b"unique"])
    await end(log, 2, commit=True)
    await txn_append(log, b"goes", producer=2, sequence=1, keys=[b"k"])
    await end(log, 2, commit=True)
    await append(log, PADDING, keys=[b"k"])
    await append(log, b"end", keys=[b"end"])

    async def markers() -> list[int]:
        headers = [read_header(found) for found in await read_batches(log)]
        return [header.base_offset for header in headers if header.is_control]

    assert await log.compact()
    assert await markers() == [1, 3, 5, 7, 9, 11], "their time is not over"
    clock.advance(2000)
    await append(log, PADDING, keys=[b"k"])
    await append(log, b"end", keys=[b"end"])
    assert await log.compact()
    assert await markers() == [7, 9, 11], "the last one of each producer, and one whose records are there"


async def test_compaction_keeps_the_last_batch_of_a_producer_without_its_records(new_log: NewLog) -> None:
    log = await new_log(**COMPACTED)
    await append(log, b"a", b"b", producer=1, sequence=0, keys=[b"k", b"l"])
    await append(log, b"c", producer=1, sequence=2, keys=[b"k"])
    await append(log, PADDING, PADDING, keys=[b"k", b"l"])
    await append(log, b"end", keys=[b"end"])
    assert await log.compact()
    headers = [read_header(found) for found in await read_batches(log)]
    # Where only records are stored, what is known of a producer is elsewhere.
    assert [(h.base_offset, h.last_offset, h.record_count, h.base_sequence) for h in headers if h.producer_id == 1] == (
        [(2, 2, 0, 2)] if keeps_batches(log) else []
    )
    again = await append_batch(log, memoryview(batch(b"c", producer=1, sequence=2, keys=[b"k"])), EPOCH)
    assert (again.base_offset, again.is_repeat) == (2, True)
    await append(log, b"d", producer=1, sequence=3, keys=[b"m"])
    await append(log, PADDING, PADDING, keys=[b"k", b"l"])
    await append(log, b"end", keys=[b"end"])
    assert await log.compact()
    headers = [read_header(found) for found in await read_batches(log)]
    assert [h.base_offset for h in headers if h.producer_id == 1] == [6], "one that is no longer the last goes"


# Recompression and stamping leave a batch transactional


async def test_a_recompressed_batch_stays_transactional(new_log: NewLog) -> None:
    log = await new_log(compression_type="gzip", message_timestamp_type="LogAppendTime")
    await txn_append(log, b"a", producer=1)
    found = split(content(await log.read(0, ALL, 1)))
    assert read_header(found[0]).is_transactional
    assert log.producers.has_open(1, 0)


async def test_a_topic_that_is_configured_anew_keeps_its_transactions(new_log: NewLog) -> None:
    log = await new_log()
    await txn_append(log, b"a", producer=1)
    log.configure(settings(flush_messages=1))
    assert log.first_unstable_offset == 0
    await end(log, 1, commit=True)
    assert log.first_unstable_offset is None
