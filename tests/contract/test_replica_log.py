"""What every engine promises of a log that follows another: one suite, all engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from penstock.clock import ManualClock
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicPartition
from penstock.records.batch import read_header, stamp
from penstock.records.compression import Codec
from penstock.storage.contract import Engine, Log
from support.logs import (
    ALL,
    DAY_MS,
    NOW_MS,
    TOPIC_ID,
    append,
    append_batch,
    batch,
    content,
    read_all,
    read_batches,
    seen,
    settings,
)
from support.replicas import check_same, copy, producers_of, reconcile
from support.transactions import end, read_committed, txn_append, txn_batch

PADDING = b"." * 300
"""With segments of 1024 bytes, three batches with this in them fill a segment."""
SMALL = {"segment_bytes": 1024, "index_interval_bytes": 100}
COMPACTED = {**SMALL, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}

Pair = Callable[..., Awaitable[tuple[Log, Log]]]


@pytest.fixture
def new_pair(engine: Engine) -> Pair:
    async def create(**named: object) -> tuple[Log, Log]:
        config = settings(**named)
        leader = await engine.create(TopicPartition("orders", 0), TOPIC_ID, config)
        return leader, await engine.create(TopicPartition("orders", 1), TOPIC_ID, config)

    return create


async def in_epoch(log: Log, epoch: int, *values: bytes, **options: object) -> int:
    made = batch(*values, **options)  # type: ignore[arg-type]
    return (await append_batch(log, memoryview(made), epoch)).base_offset


def stamped(offset: int, *values: bytes, epoch: int = 0, **options: object) -> bytes:
    """A batch as a leader stores it."""
    made = batch(*values, **options)  # type: ignore[arg-type]
    stamp(memoryview(made), offset, epoch)
    return bytes(made)


async def story(log: Log) -> None:
    """Epochs, sequences, transactions that end well, badly and not at all, over several segments."""
    await in_epoch(log, 0, b"first" + PADDING, b"second", at_ms=NOW_MS + 5)
    for number in range(7):
        await in_epoch(log, 1, b"%d" % number + PADDING, producer=7, sequence=number, at_ms=NOW_MS + number % 3)
    await txn_append(log, b"long" + PADDING, producer=1)
    for number in range(4):
        await txn_append(log, b"%d" % number + PADDING, producer=2, epoch=number)
        await in_epoch(log, 4, b"between", codec=Codec.GZIP)
        await end(log, 2, commit=number % 2 == 1, epoch=number + 1, coordinator_epoch=number)
    await txn_append(log, b"open" + PADDING, producer=3)
    await end(log, 1, commit=False, epoch=1)
    await in_epoch(log, 6, b"last", at_ms=NOW_MS + 2)


# Copying


@pytest.mark.parametrize(("max_bytes", "torn"), [(ALL, 0), (1, 0), (900, 60), (900, 61), (1, 200)])
async def test_a_copy_cannot_be_told_from_the_log(new_pair: Pair, max_bytes: int, torn: int) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    await copy(leader, follower, max_bytes, torn=torn)
    await check_same(leader, follower)
    assert follower.size_bytes == leader.size_bytes


async def test_a_copy_knows_repeats_and_goes_on_where_its_leader_would(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    await copy(leader, follower)
    made = batch(b"6" + PADDING, producer=7, sequence=6)
    first = await append_batch(leader, memoryview(made), 9)
    again = await append_batch(follower, memoryview(made), 9)
    assert again == first
    assert again.is_repeat
    assert follower.producers.has_open(3, 0)
    with pytest.raises(ApiError) as caught:
        await append_batch(follower, memoryview(txn_batch(b"late", producer=2, epoch=2)), 9)
    assert caught.value.code == Code.INVALID_PRODUCER_EPOCH
    await end(follower, 3, commit=True)
    assert follower.first_unstable_offset is None


async def test_the_bytes_are_only_borrowed(new_pair: Pair) -> None:
    leader, follower = await new_pair()
    await append(leader, b"a", b"b")
    data = bytearray(content(await leader.read(0, ALL, 2)))
    await follower.append_as_is(memoryview(data))
    data[:] = bytes(len(data))
    assert [record.value for record in await read_all(follower)] == [b"a", b"b"]


async def test_what_is_there_already_is_left_out(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    everything = memoryview(b"".join(await read_batches(leader)))
    await follower.append_as_is(everything[: len(everything) // 2])
    half = follower.end_offset
    assert 0 < half < leader.end_offset
    assert await follower.append_as_is(everything) == leader.end_offset
    assert await follower.append_as_is(everything) == leader.end_offset
    await check_same(leader, follower)


async def test_nothing_to_append_is_fine(new_pair: Pair) -> None:
    _, follower = await new_pair()
    assert await follower.append_as_is(memoryview(b"")) == 0
    whole = stamped(0, b"a")
    for length in range(len(whole)):
        assert await follower.append_as_is(memoryview(whole[:length])) == 0
    assert await follower.append_as_is(memoryview(whole)) == 1


async def test_offsets_may_leave_gaps(new_pair: Pair) -> None:
    _, follower = await new_pair(**SMALL)
    offsets = [0, 5, 100, 70_000, (1 << 33) + 7, (1 << 33) + 9, 1 << 40]
    data = b"".join(stamped(offset, b"%d" % offset + PADDING) for offset in offsets)
    assert await follower.append_as_is(memoryview(data)) == (1 << 40) + 1
    assert [record.offset for record in await read_all(follower)] == offsets
    for before, offset in pairwise(offsets):
        found = await follower.read(before + 1, 1, follower.end_offset)
        assert [record.offset for record in seen(content(found))] == [offset]


@pytest.mark.parametrize("offset", [0, 1, 2])
async def test_a_batch_that_overlaps_the_end_is_refused(new_pair: Pair, offset: int) -> None:
    _, follower = await new_pair()
    await follower.append_as_is(memoryview(stamped(0, b"a", b"b", b"c")))
    fits = stamped(3, b"d")
    with pytest.raises(StorageError, match="overlap"):
        await follower.append_as_is(memoryview(stamped(offset, b"x", b"y", b"z", b"!") + fits))
    with pytest.raises(StorageError, match="overlap"):
        await follower.append_as_is(memoryview(stamped(3, b"x") + stamped(offset, b"y")))
    assert follower.end_offset == 3
    assert await follower.append_as_is(memoryview(fits)) == 4


@pytest.mark.parametrize("position", [8, 16, 17, 21, 23, 40, 61, -1])
async def test_a_damaged_batch_is_refused_with_all_that_came_with_it(new_pair: Pair, position: int) -> None:
    _, follower = await new_pair()
    damaged = bytearray(stamped(1, b"b"))
    damaged[position] ^= 0xFF
    with pytest.raises(ApiError) as caught:
        await follower.append_as_is(memoryview(stamped(0, b"a") + damaged + stamped(2, b"c")))
    assert caught.value.code == Code.CORRUPT_MESSAGE
    assert follower.end_offset == 0


async def test_flush_settings_hold_for_copies(new_pair: Pair) -> None:
    leader, follower = await new_pair(flush_messages=1)
    await story(leader)
    await copy(leader, follower, 1000)
    assert follower.visible_end == follower.end_offset
    await check_same(leader, follower)


async def test_a_compacted_log_can_be_copied(new_pair: Pair) -> None:
    leader, follower = await new_pair(**COMPACTED)
    for number in range(20):
        key = [b"k%d" % (number % 3)]
        await append(leader, b"%d" % number + PADDING, keys=key, producer=7, sequence=number)
        await txn_append(leader, b"in", producer=1, sequence=number, keys=[b"t"])
        await end(leader, 1, commit=number % 2 == 0)
    assert await leader.compact()
    await copy(leader, follower, 700)
    assert await read_batches(follower) == await read_batches(leader)
    assert await read_committed(follower) == await read_committed(leader)
    # The last batch of a producer may have been left without records, and then says nothing of its time.
    assert [each._replace(last_timestamp=0) for each in follower.producers.describe()] == [
        each._replace(last_timestamp=0) for each in leader.producers.describe()
    ]
    repeat = await append_batch(follower, memoryview(batch(b"19" + PADDING, keys=[b"k"], producer=7, sequence=19)), 9)
    assert repeat.is_repeat


async def test_a_copy_of_a_log_that_starts_later_begins_there(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    await leader.trim(9)
    await append(follower, b"of long ago", producer=99)
    await follower.begin_at(9)
    assert (follower.start_offset, follower.end_offset, follower.size_bytes) == (9, 9, 0)
    assert (follower.epochs.starts, producers_of(follower)) == ((), {})
    await copy(leader, follower)
    assert await read_batches(follower) == await read_batches(leader)
    assert await read_committed(follower) == await read_committed(leader)


async def test_the_start_may_lie_in_the_middle_of_a_batch(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await append(leader, *(b"%d" % number for number in range(10)))
    await append(leader, b"more" + PADDING)
    await leader.trim(4)
    await follower.begin_at(4)
    await copy(leader, follower)
    await check_same(leader, follower)
    assert [record.offset for record in await read_all(follower)] == list(range(4, 11))
    await append(follower, b"next")
    await follower.cut(11)
    await check_same(leader, follower)


# Cutting


async def test_a_cut_log_is_as_if_the_rest_had_never_been_appended(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    everything = [(read_header(one), one) for one in await read_batches(leader)]
    for header, _ in reversed(everything):
        await leader.cut(header.base_offset)
        await follower.begin_at(0)
        await follower.append_as_is(
            memoryview(b"".join(one for each, one in everything if each.base_offset < header.base_offset))
        )
        await check_same(leader, follower)
        for offset in (header.base_offset + 1, header.last_offset + 1):
            with pytest.raises(ApiError) as caught:
                await leader.read(offset, ALL, offset + 1)
            assert caught.value.code == Code.OFFSET_OUT_OF_RANGE
        assert (await leader.read(header.base_offset, ALL, header.base_offset)).size == 0


async def test_any_cut_and_a_copy_of_the_rest_is_the_log_again(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    await copy(leader, follower)
    for offset in range(leader.end_offset, -1, -1):
        await follower.cut(offset)
        assert follower.end_offset <= offset
        await copy(leader, follower, 2000)
        await check_same(leader, follower)


async def test_a_batch_that_straddles_the_cut_goes_wholly(new_pair: Pair) -> None:
    log, _ = await new_pair()
    for _ in range(3):
        await append(log, b"a", b"b", b"c")
    await log.cut(5)
    assert log.end_offset == 3
    assert [record.offset for record in await read_all(log)] == [0, 1, 2]
    assert await append(log, b"new") == 3
    await log.cut(1)
    assert (log.start_offset, log.end_offset) == (0, 0)


async def test_a_cut_in_a_gap_ends_behind_the_last_batch(new_pair: Pair) -> None:
    _, log = await new_pair()
    await log.append_as_is(memoryview(stamped(0, b"a") + stamped(10, b"b") + stamped(20, b"c")))
    await log.cut(15)
    assert log.end_offset == 11
    await log.cut(10)
    assert log.end_offset == 1


async def test_a_cut_at_or_above_the_end_changes_nothing(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    await copy(leader, follower)
    await follower.cut(follower.end_offset)
    await follower.cut(follower.end_offset + 5)
    await check_same(leader, follower)


async def test_a_cut_below_the_start_begins_anew_there(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    await copy(leader, follower)
    await follower.trim(9)
    await follower.cut(5)
    assert (follower.start_offset, follower.end_offset, follower.size_bytes) == (5, 5, 0)
    assert (follower.epochs.starts, producers_of(follower), follower.first_unstable_offset) == ((), {}, None)
    assert follower.aborted_transactions(0, ALL) == []
    await follower.begin_at(0)
    await copy(leader, follower)
    await check_same(leader, follower)


async def test_a_cut_at_the_start_leaves_nothing_but_what_was_known_then(new_pair: Pair) -> None:
    log, other = await new_pair(**SMALL)
    for number in range(6):
        await append(log, b"%d" % number + PADDING, producer=7, sequence=number)
    await log.trim(4)
    await log.cut(4)
    assert (log.start_offset, log.end_offset) == (4, 4)
    repeat = await append_batch(log, memoryview(batch(b"3" + PADDING, producer=7, sequence=3)), 3)
    assert (repeat.base_offset, repeat.is_repeat) == (3, True)
    assert await append(log, b"4 again", producer=7, sequence=4) == 4
    del other


async def test_a_cut_in_the_batch_that_the_start_lies_in_begins_at_the_start(new_pair: Pair) -> None:
    log, _ = await new_pair()
    await append(log, *(b"%d" % number for number in range(10)))
    await log.trim(4)
    await log.cut(7)
    assert (log.start_offset, log.end_offset) == (4, 4)


async def test_times_are_those_of_what_is_left(new_pair: Pair) -> None:
    log, _ = await new_pair(index_interval_bytes=100)
    for number in range(30):
        await append(log, PADDING, at_ms=NOW_MS + number)
    await log.cut(12)
    latest = await log.find_max_timestamp()
    assert latest is not None
    assert (latest.offset, latest.timestamp_ms) == (11, NOW_MS + 11)
    assert await log.find_time(NOW_MS + 12) is None
    await append(log, b"new", at_ms=NOW_MS + 3)
    await append(log, b"newer", at_ms=NOW_MS + 50)
    found = await log.find_time(NOW_MS + 12)
    assert found is not None
    assert found.offset == 13


async def test_a_follower_that_has_parted_from_its_leader_comes_back_to_it(new_pair: Pair) -> None:
    leader, follower = await new_pair(**SMALL)
    await story(leader)
    await copy(leader, follower, 3000)
    for number in range(6):
        await in_epoch(follower, 7 + number // 2, b"lost %d" % number + PADDING, producer=8, sequence=number)
    await txn_append(follower, b"lost", producer=9)
    await end(follower, 3, commit=True, epoch=1)
    for number in range(4):
        await in_epoch(leader, 10, b"kept %d" % number + PADDING, producer=8, sequence=number)
    assert await reconcile(leader, follower) > 0
    await copy(leader, follower)
    await check_same(leader, follower)


async def test_producers_that_were_trimmed_away_are_known_after_a_cut(new_pair: Pair) -> None:
    log, _ = await new_pair(**SMALL)
    log.saved_high_watermark = 0
    await append(log, b"of long ago" + PADDING, producer=7)
    for number in range(10):
        await append(log, b"%d" % number + PADDING)
        log.saved_high_watermark = log.end_offset
    await log.trim(8)
    await append(log, b"diverged", producer=7, sequence=1)
    await log.cut(11)
    repeat = await append_batch(log, memoryview(batch(b"of long ago" + PADDING, producer=7)), 3)
    assert (repeat.base_offset, repeat.is_repeat) == (0, True)


# The high watermark


async def test_a_cut_takes_the_high_watermark_back(new_pair: Pair) -> None:
    log, _ = await new_pair()
    assert log.saved_high_watermark == -1
    await append(log, b"a")
    await append(log, b"b")
    await log.cut(1)
    assert log.saved_high_watermark == -1
    await append(log, b"b")
    log.saved_high_watermark = 2
    await log.cut(1)
    assert log.saved_high_watermark == 1
    await log.begin_at(10)
    assert log.saved_high_watermark == 10


async def test_retention_stays_below_the_high_watermark(new_pair: Pair, clock: ManualClock) -> None:
    log, _ = await new_pair(**SMALL, retention_ms=1000)
    for number in range(12):
        await append(log, b"%d" % number + PADDING)
    clock.advance(DAY_MS)
    log.saved_high_watermark = 0
    await log.apply_retention()
    assert log.start_offset == 0
    log.saved_high_watermark = 7
    await log.apply_retention()
    assert 0 < log.start_offset <= 7
    log.saved_high_watermark = 12
    await log.apply_retention()
    assert log.start_offset == 12


async def test_compaction_stays_below_the_high_watermark(new_pair: Pair) -> None:
    """What lies above may be cut, and would take with it what it supersedes."""
    leader, follower = await new_pair(**COMPACTED)
    await append(leader, b"old" + PADDING, keys=[b"k"])
    await copy(leader, follower)
    follower.saved_high_watermark = follower.end_offset
    for _ in range(6):
        await append(follower, b"diverged" + PADDING, keys=[b"k"])
    await follower.compact()
    await follower.cut(1)
    assert [record.value for record in await read_all(follower)] == [b"old" + PADDING]


async def test_a_log_that_was_cut_is_compacted_like_one_that_was_not(new_pair: Pair, clock: ManualClock) -> None:
    log, _ = await new_pair(**COMPACTED, delete_retention_ms=1000)
    for number in range(9):
        await append(log, b"%d" % number + PADDING, keys=[b"k%d" % (number % 3)])
    assert await log.compact()
    clock.advance(5000)
    await log.cut(4)
    await append(log, b"old" + PADDING, keys=[b"t"])
    await append(log, None, keys=[b"t"])
    for number in range(9):
        await append(log, b"%d" % number + PADDING, keys=[b"n%d" % number])
    assert await log.compact()
    found = {record.key: record.value for record in await read_all(log)}
    assert found[b"t"] is None, "a tombstone is there until consumers had time to see it"
