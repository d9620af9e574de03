"""What every engine promises of a log: one suite, all engines."""

from __future__ import annotations

import pytest

from penstock.clock import ManualClock
from penstock.errors import ApiError, Code
from penstock.records.batch import MAX_SEQUENCE, read_header, stamp_append_time
from penstock.records.compression import Codec
from penstock.storage.admission import RefusedRecordsError
from penstock.storage.contract import Engine, Log
from penstock.storage.memory import MemoryEngine
from penstock.storage.retention import Hold
from support.logs import (
    ALL,
    AT,
    DAY_MS,
    EPOCH,
    NOW_MS,
    NewLog,
    Seen,
    append,
    append_batch,
    batch,
    content,
    keeps_batches,
    read_all,
    seen,
    settings,
    split,
)

PADDING = b"." * 700
"""With segments of 1024 bytes, one batch with this in it fills a segment."""


async def refused(log: Log, *values: bytes | None, **options: object) -> ApiError:
    before = log.end_offset
    with pytest.raises(ApiError) as caught:
        await append(log, *values, **options)
    assert log.end_offset == before
    return caught.value


# Offsets and order


async def test_a_new_log_is_empty(new_log: NewLog) -> None:
    log = await new_log()
    assert (log.start_offset, log.end_offset, log.visible_end, log.size_bytes) == (0, 0, 0, 0)
    assert (await log.read(0, ALL, 0)).size == 0


async def test_offsets_grow_by_one_a_record(new_log: NewLog) -> None:
    log = await new_log()
    assert [await append(log, b"a", b"b"), await append(log, b"c"), await append(log, b"d")] == [0, 2, 3]
    assert log.end_offset == 4


async def test_records_come_back_in_the_order_they_were_appended(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024)
    for number in range(50):
        await append(log, b"%d" % number, b"x" * 100)
    found = await read_all(log)
    assert [record.offset for record in found] == list(range(100))
    assert [record.value for record in found][::2] == [b"%d" % number for number in range(50)]


async def test_an_append_says_where_the_batch_lies(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a")
    appended = await append_batch(log, memoryview(batch(b"b", b"c")), EPOCH)
    assert appended == (1, 2, -1, False)


async def test_the_batch_is_stamped_with_offset_and_leader_epoch(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a")
    sent = batch(b"b")
    await append_batch(log, memoryview(sent), 7)
    assert (read_header(sent).base_offset, read_header(sent).leader_epoch) == (1, 7)
    assert content(await log.read(1, ALL, 2)) == bytes(sent)


async def test_memory_of_a_batch_can_be_reused_after_the_append(new_log: NewLog) -> None:
    log = await new_log()
    sent = batch(b"kept")
    await append_batch(log, memoryview(sent), EPOCH)
    sent[:] = bytes(len(sent))
    assert await read_all(log) == [Seen(0, None, b"kept")]


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_passes_through_byte_for_byte(new_log: NewLog, codec: Codec) -> None:
    log = await new_log()
    sent = batch(b"a" * 500, b"b" * 500, codec=codec)
    await append_batch(log, memoryview(sent), EPOCH)
    assert content(await log.read(0, ALL, 2)) == bytes(sent)
    assert [record.value for record in await read_all(log)] == [b"a" * 500, b"b" * 500]


async def test_segments_are_told_from_the_first_offset_to_the_end(engine: Engine, new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024)
    assert list(log.described_segments()) == []
    for number in range(5):
        await append(log, PADDING, b"x", at_ms=NOW_MS + number)
    found = log.described_segments()
    if isinstance(engine, MemoryEngine):
        assert list(found) == []
        return
    assert [(each.base_offset, each.end_offset) for each in found] == [(first, first + 2) for first in range(0, 10, 2)]
    assert sum(each.size_bytes for each in found) == log.size_bytes
    assert [each.max_timestamp_ms for each in found] == [NOW_MS + number for number in range(5)]
    assert [each.first_timestamp_ms for each in found] == [NOW_MS + number for number in range(5)]
    await log.trim(5)
    assert [each.end_offset for each in log.described_segments()] == [6, 8, 10]


# Reads


async def test_a_read_from_inside_a_batch_gives_the_whole_batch(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b", b"c")
    assert [record.offset for record in seen(content(await log.read(1, ALL, 3)))] == [0, 1, 2]


async def test_a_read_gives_at_most_max_bytes(new_log: NewLog) -> None:
    log = await new_log(index_interval_bytes=0)
    for _ in range(20):
        await append(log, b"x" * 100)
    one = len(batch(b"x" * 100))
    found = split(content(await log.read(4, 5 * one + 3, 20)))
    assert [read_header(each).base_offset for each in found] == [4, 5, 6, 7, 8]


async def test_a_read_gives_at_least_one_batch_however_small_the_limit(new_log: NewLog) -> None:
    log = await new_log()
    for _ in range(3):
        await append(log, b"x" * 5000)
    assert [read_header(each).base_offset for each in split(content(await log.read(1, 1, 3)))] == [1]


async def test_a_read_stops_below_the_end_offset_it_was_given(new_log: NewLog) -> None:
    log = await new_log()
    for _ in range(4):
        await append(log, b"a", b"b")
    assert [record.offset for record in seen(content(await log.read(0, ALL, 4)))] == [0, 1, 2, 3]


async def test_a_batch_that_reaches_past_the_end_offset_is_not_given(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b", b"c")
    assert (await log.read(0, ALL, 2)).size == 0


async def test_a_read_at_the_end_gives_nothing(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a")
    assert (await log.read(1, ALL, 1)).size == 0


@pytest.mark.parametrize("offset", [-1, 3, 1 << 40])
async def test_an_offset_outside_the_log_is_out_of_range(new_log: NewLog, offset: int) -> None:
    log = await new_log()
    await append(log, b"a", b"b")
    with pytest.raises(ApiError) as caught:
        await log.read(offset, ALL, 2)
    assert caught.value.code == Code.OFFSET_OUT_OF_RANGE


async def test_every_offset_can_be_read_whatever_the_index_holds(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=4096, index_interval_bytes=300)
    for number in range(200):
        await append(log, *[b"%d" % number] * (1 + number % 3))
    for offset in range(log.end_offset):
        first = split(content(await log.read(offset, 1, log.end_offset)))[0]
        assert read_header(first).base_offset <= offset <= read_header(first).last_offset


# Look-up by time


async def test_a_time_finds_the_first_record_not_before_it(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", at_ms=1000)
    await append(log, b"b", at_ms=2000)
    await append(log, b"c", at_ms=3000)
    assert await log.find_time(1500) == (1, 2000, EPOCH)
    assert await log.find_time(2000) == (1, 2000, EPOCH)
    assert await log.find_time(0) == (0, 1000, EPOCH)
    assert await log.find_time(3001) is None


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_time_inside_a_batch_finds_its_record(new_log: NewLog, codec: Codec) -> None:
    log = await new_log()
    await append(log, b"a", b"b", b"c", at_ms=[1000, 2000, 3000], codec=codec)
    assert await log.find_time(1500) == (1, 2000, EPOCH)
    assert await log.find_time(2500) == (2, 3000, EPOCH)


async def test_equal_timestamps_find_the_first_of_them(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024)
    for _ in range(40):
        await append(log, b"x" * 100, at_ms=5000)
    assert await log.find_time(5000) == (0, 5000, EPOCH)
    assert await log.find_max_timestamp() == (0, 5000, EPOCH)


async def test_timestamps_out_of_order_find_the_first_by_offset(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024, index_interval_bytes=200)
    times = [5000, 1000, 9000, 2000, 8000, 3000, 9500, 100] * 5
    for time in times:
        await append(log, b"x" * 100, at_ms=time)
    for wanted in (1, 1000, 4999, 5001, 8500, 9001, 9500):
        expected = next(at for at, time in enumerate(times) if time >= wanted)
        found = await log.find_time(wanted)
        assert found is not None and found.offset == expected
    assert await log.find_time(9501) is None


async def test_the_max_timestamp_is_found_with_its_first_record(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024)
    assert await log.find_max_timestamp() is None
    for time in (1000, 7000, 3000, 7000, 2000):
        await append(log, PADDING, at_ms=time)
    assert await log.find_max_timestamp() == (1, 7000, EPOCH)


async def test_the_max_timestamp_below_the_start_does_not_count(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b", b"c", at_ms=[9000, 2000, 4000])
    await append(log, b"d", at_ms=3000)
    await log.trim(1)
    assert await log.find_max_timestamp() == (2, 4000, EPOCH)
    await log.trim(3)
    assert await log.find_max_timestamp() == (3, 3000, EPOCH)
    await log.trim(4)
    assert await log.find_max_timestamp() is None


async def test_a_time_never_finds_a_record_below_the_start(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b", b"c", at_ms=[1000, 1000, 1000])
    await log.trim(2)
    assert await log.find_time(0) == (2, 1000, EPOCH)


# Trim and retention


async def test_a_trim_makes_the_offset_the_start(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024)
    for _ in range(5):
        await append(log, PADDING)
    size = log.size_bytes
    await log.trim(3)
    assert (log.start_offset, log.end_offset) == (3, 5)
    assert log.size_bytes < size
    with pytest.raises(ApiError) as caught:
        await log.read(2, ALL, 5)
    assert caught.value.code == Code.OFFSET_OUT_OF_RANGE
    assert [record.offset for record in await read_all(log)] == [3, 4]


async def test_a_trim_never_goes_back(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b", b"c")
    await log.trim(2)
    await log.trim(1)
    assert log.start_offset == 2


async def test_a_trim_past_the_end_is_refused(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a")
    with pytest.raises(ApiError) as caught:
        await log.trim(2)
    assert caught.value.code == Code.OFFSET_OUT_OF_RANGE
    assert log.start_offset == 0


async def test_a_log_trimmed_to_its_end_goes_on_at_the_next_offset(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b")
    await log.trim(2)
    assert await append(log, b"c") == 2
    assert await read_all(log) == [Seen(2, None, b"c")]


async def test_retention_drops_what_is_too_old(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(segment_bytes=1024, retention_ms=DAY_MS)
    for age in range(4):
        await append(log, PADDING, at_ms=NOW_MS - (3 - age) * DAY_MS // 2)
    await log.apply_retention()
    assert log.start_offset == 1
    clock.advance(DAY_MS // 2)
    await log.apply_retention()
    assert log.start_offset == 2


async def test_retention_by_age_empties_a_log_that_nobody_writes_to(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(retention_ms=DAY_MS)
    await append(log, b"a")
    await append(log, b"b")
    clock.advance(DAY_MS + 1)
    await log.apply_retention()
    assert (log.start_offset, log.end_offset, log.size_bytes) == (2, 2, 0)
    assert await append(log, b"c", at_ms=clock.now_ms()) == 2


async def test_retention_keeps_the_bytes_it_was_told_to_keep(new_log: NewLog) -> None:
    one = len(batch(PADDING))
    log = await new_log(segment_bytes=1024, retention_bytes=3 * one)
    for _ in range(10):
        await append(log, PADDING)
    await log.apply_retention()
    assert (log.start_offset, log.size_bytes) == (7, 3 * one)


async def test_retention_of_no_bytes_keeps_nothing(new_log: NewLog) -> None:
    log = await new_log(retention_bytes=0)
    await append(log, b"a")
    await log.apply_retention()
    assert (log.start_offset, log.end_offset, log.size_bytes) == (1, 1, 0)


async def test_retention_without_bounds_keeps_everything(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(segment_bytes=1024, retention_ms=-1, retention_bytes=-1)
    for _ in range(3):
        await append(log, PADDING, at_ms=0)
    clock.advance(1000 * DAY_MS)
    await log.apply_retention()
    assert log.start_offset == 0


async def test_retention_does_not_touch_a_log_that_is_only_compacted(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(segment_bytes=1024, retention_ms=1, retention_bytes=0, cleanup_policy="compact")
    await append(log, PADDING, keys=[b"k"])
    await append(log, PADDING, keys=[b"l"])
    clock.advance(DAY_MS)
    await log.apply_retention()
    assert log.start_offset == 0


async def test_retention_leaves_what_is_held(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(segment_bytes=1024, retention_ms=DAY_MS)
    for _ in range(4):
        await append(log, PADDING)
    clock.advance(DAY_MS + 1)
    assert await log.apply_retention(Hold(2)) == 0
    assert log.start_offset == 2
    assert await log.apply_retention(Hold(4)) == 0
    assert log.start_offset == 4


async def test_a_hold_ends_at_its_bound_in_bytes(new_log: NewLog, clock: ManualClock) -> None:
    one = len(batch(PADDING))
    log = await new_log(segment_bytes=1024, retention_ms=DAY_MS, retention_bytes=-1)
    for _ in range(5):
        await append(log, PADDING)
    clock.advance(DAY_MS + 1)
    await append(log, PADDING, at_ms=clock.now_ms())
    assert await log.apply_retention(Hold(1, max_bytes=2 * one)) == 2 * one
    assert log.start_offset == 3
    assert await log.apply_retention(Hold(1, max_bytes=2 * one)) == 0


async def test_a_hold_ends_at_its_bound_in_time(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024, retention_ms=DAY_MS)
    for age in range(4):
        await append(log, PADDING, at_ms=NOW_MS - (3 - age) * DAY_MS)
    assert await log.apply_retention(Hold(0, max_ms=DAY_MS)) == len(batch(PADDING))
    assert log.start_offset == 1


# Compaction


async def compacting(new_log: NewLog, **named: object) -> Log:
    return await new_log(segment_bytes=1024, cleanup_policy="compact", **{"min_cleanable_dirty_ratio": "0.01", **named})


async def keyed(log: Log, key: bytes, value: bytes | None, **options: object) -> int:
    """One batch that fills a segment: the record, and one under a key of its own that makes it large."""
    filler = b"filler-%d" % log.end_offset
    return await append(log, value, PADDING, keys=[key, filler], **options)


async def values_of(log: Log, key: bytes) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in await read_all(log) if record.key == key]


async def test_compaction_keeps_the_last_record_of_each_key(new_log: NewLog) -> None:
    log = await compacting(new_log)
    for number in range(6):
        await keyed(log, b"k%d" % (number % 2), b"%d" % number)
    assert await log.compact()
    assert await values_of(log, b"k0") == [(8, b"4")]
    assert await values_of(log, b"k1") == [(6, b"3"), (10, b"5")], "the last batch is not compacted yet"
    assert log.end_offset == 12


async def test_compaction_leaves_a_log_that_is_not_compacted_alone(new_log: NewLog) -> None:
    log = await new_log(segment_bytes=1024)
    for _ in range(4):
        await keyed(log, b"k", b"v")
    assert not await log.compact()
    assert len(await values_of(log, b"k")) == 4


async def test_compaction_never_changes_an_offset(new_log: NewLog) -> None:
    log = await compacting(new_log)
    for number in range(6):
        await keyed(log, b"same", b"%d" % number)
    before = {record.offset: record for record in await read_all(log)}
    await log.compact()
    after = await read_all(log)
    assert len(after) < len(before)
    assert all(before[record.offset] == record for record in after)


async def test_a_read_of_an_offset_that_was_compacted_away_goes_on_behind_it(new_log: NewLog) -> None:
    log = await compacting(new_log)
    for number in range(6):
        await append(log, PADDING + b"%d" % number, keys=[b"same"])
    await log.compact()
    found = seen(content(await log.read(0, ALL, 6)))
    assert [record.offset for record in found][:1] == [4]


async def test_compaction_is_not_repeated_when_nothing_is_new(new_log: NewLog) -> None:
    log = await compacting(new_log)
    for number in range(4):
        await keyed(log, b"k", b"%d" % number)
    assert await log.compact()
    assert not await log.compact()


async def test_compaction_waits_for_the_dirty_ratio(new_log: NewLog) -> None:
    log = await compacting(new_log, min_cleanable_dirty_ratio="0.5")
    for number in range(9):
        await keyed(log, b"k%d" % number, b"v")
    assert await log.compact()
    await keyed(log, b"k0", b"new")
    await keyed(log, b"k1", b"new")
    assert not await log.compact()
    for number in range(8):
        await keyed(log, b"m%d" % number, b"v")
    assert await log.compact()


async def test_a_tombstone_removes_its_key_and_stays_until_its_time_is_over(
    new_log: NewLog, clock: ManualClock
) -> None:
    log = await compacting(new_log, delete_retention_ms=1000)
    await keyed(log, b"k", b"v")
    await keyed(log, b"k", None)
    await keyed(log, b"other", b"v")
    assert await log.compact()
    assert await values_of(log, b"k") == [(2, None)]
    clock.advance(999)
    assert not await log.compact()
    clock.advance(1)
    assert await log.compact()
    assert await values_of(log, b"k") == []
    clock.advance(5000)
    assert not await log.compact(), "one pass for expired tombstones is enough"


async def test_tombstones_go_even_if_compaction_never_rests(new_log: NewLog, clock: ManualClock) -> None:
    log = await compacting(new_log, delete_retention_ms=50_000)
    await keyed(log, b"gone", None)
    for number in range(80):
        await keyed(log, b"busy", b"%d" % number)
        clock.advance(1000)
        await log.compact()
    assert await values_of(log, b"gone") == []


async def test_records_younger_than_the_lag_are_not_compacted(new_log: NewLog, clock: ManualClock) -> None:
    log = await compacting(new_log, min_compaction_lag_ms=10_000)
    for number in range(4):
        await keyed(log, b"k", b"%d" % number)
    assert not await log.compact()
    clock.advance(10_000)
    assert await log.compact()
    assert [value for _, value in await values_of(log, b"k")] == [b"2", b"3"]


async def test_a_compacted_batch_keeps_its_codec_and_can_be_found_by_time(new_log: NewLog) -> None:
    log = await compacting(new_log)
    times = [NOW_MS - 50, NOW_MS - 40]
    random = bytes(range(256)) * 3
    await append(log, b"1", random, keys=[b"k", b"f1"], at_ms=times, codec=Codec.GZIP)
    await append(log, b"2", PADDING, keys=[b"k", b"f2"], at_ms=NOW_MS)
    await append(log, b"3", PADDING, keys=[b"x", b"f3"], at_ms=NOW_MS)
    assert await log.compact()
    first = split(content(await log.read(0, 1, 6)))[0]
    assert read_header(first).codec == (Codec.GZIP if keeps_batches(log) else Codec.NONE)
    assert [record.offset for record in seen(first)][:1] == [1]
    assert await log.find_time(NOW_MS - 100) == (1, NOW_MS - 40, EPOCH)


async def test_a_compacted_topic_refuses_records_without_a_key_and_says_which(new_log: NewLog) -> None:
    log = await new_log(cleanup_policy="compact")
    error = await refused(log, b"a", b"b", b"c", keys=[b"k", None, None])
    assert isinstance(error, RefusedRecordsError)
    assert error.code == Code.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1, 2]


# What a batch must be


async def test_a_batch_with_a_wrong_crc_is_refused(new_log: NewLog) -> None:
    log = await new_log()
    sent = batch(b"abc")
    sent[-2] ^= 1
    with pytest.raises(ApiError) as caught:
        await append_batch(log, memoryview(sent), EPOCH)
    assert caught.value.code == Code.CORRUPT_MESSAGE
    assert log.end_offset == 0


async def test_two_batches_at_once_are_refused(new_log: NewLog) -> None:
    log = await new_log()
    with pytest.raises(ApiError) as caught:
        await append_batch(log, memoryview(batch(b"a") + batch(b"b")), EPOCH)
    assert caught.value.code == Code.INVALID_RECORD


async def test_a_batch_larger_than_the_topic_allows_is_refused(new_log: NewLog) -> None:
    size = len(batch(b"x" * 1000))
    log = await new_log(max_message_bytes=size)
    await append(log, b"x" * 1000)
    assert (await refused(log, b"x" * 1001)).code == Code.MESSAGE_TOO_LARGE


async def test_a_batch_is_measured_as_it_would_be_stored(new_log: NewLog) -> None:
    log = await new_log(max_message_bytes=2000, compression_type="uncompressed")
    await append(log, b"x" * 1000, codec=Codec.GZIP)
    assert (await refused(log, b"x" * 100_000, codec=Codec.GZIP)).code == Code.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
async def test_a_topic_with_a_compression_type_stores_in_that_one(new_log: NewLog, name: str) -> None:
    log = await new_log(compression_type=name)
    for codec in Codec:
        await append(log, b"a" * 300, b"b" * 300, codec=codec, at_ms=[NOW_MS - 5, NOW_MS])
    stored = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    found = split(content(await log.read(0, ALL, log.end_offset)))
    assert {read_header(each).codec for each in found} == {stored}
    assert [record.value for record in await read_all(log)] == [b"a" * 300, b"b" * 300] * 5
    assert await log.find_time(NOW_MS) == (1, NOW_MS, EPOCH)


async def test_append_time_replaces_the_producers(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(message_timestamp_type="LogAppendTime")
    clock.advance(123)
    sent = batch(b"a", b"b", at_ms=[5, 9])
    appended = await append_batch(log, memoryview(sent), EPOCH)
    assert appended.append_time_ms == NOW_MS + 123
    stored = content(await log.read(0, ALL, 2))
    header = read_header(stored)
    assert header.uses_append_time and header.max_timestamp == NOW_MS + 123
    again = bytearray(stored)
    stamp_append_time(memoryview(again), NOW_MS + 123)
    assert bytes(again) == stored, "the CRC fits"
    assert await log.find_time(NOW_MS) == (0, NOW_MS + 123, EPOCH)


async def test_a_repeat_is_told_the_append_time_of_the_first(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(message_timestamp_type="LogAppendTime")
    first = await append_batch(log, memoryview(batch(b"a", producer=1)), EPOCH)
    clock.advance(5000)
    repeat = await append_batch(log, memoryview(batch(b"a", producer=1)), EPOCH)
    assert repeat == (first.base_offset, first.last_offset, NOW_MS, True)


async def test_timestamps_out_of_bounds_are_refused(new_log: NewLog) -> None:
    log = await new_log(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    await append(log, b"a", at_ms=NOW_MS - 1000)
    await append(log, b"a", at_ms=NOW_MS + 500)
    assert (await refused(log, b"a", at_ms=NOW_MS - 1001)).code == Code.INVALID_TIMESTAMP
    assert (await refused(log, b"a", at_ms=NOW_MS + 501)).code == Code.INVALID_TIMESTAMP
    assert (await refused(log, b"a", b"b", at_ms=[NOW_MS, NOW_MS + 501])).code == Code.INVALID_TIMESTAMP


async def test_changed_settings_count_from_the_next_append_on(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"x" * 1000)
    log.configure(settings(max_message_bytes=500))
    assert (await refused(log, b"x" * 1000)).code == Code.MESSAGE_TOO_LARGE


# Idempotence


async def test_a_repeat_gives_the_first_offset_and_is_not_stored(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b", producer=1, sequence=0)
    await append(log, b"c", producer=1, sequence=2)
    for sequence, values, expected in ((0, (b"a", b"b"), (0, 1)), (2, (b"c",), (2, 2))):
        again = await append_batch(log, memoryview(batch(*values, producer=1, sequence=sequence)), EPOCH)
        assert again == (*expected, -1, True)
    assert log.end_offset == 3


async def test_each_producer_has_its_own_sequence(new_log: NewLog) -> None:
    log = await new_log()
    assert [await append(log, b"a", producer=1), await append(log, b"b", producer=2)] == [0, 1]


async def test_a_gap_in_the_sequence_is_refused(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", producer=1, sequence=0)
    assert (await refused(log, b"c", producer=1, sequence=2)).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_an_old_epoch_is_refused(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", producer=1, epoch=5)
    assert (await refused(log, b"b", producer=1, epoch=4, sequence=1)).code == Code.INVALID_PRODUCER_EPOCH


async def test_a_new_epoch_starts_at_sequence_zero(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", b"b", producer=1, epoch=0)
    assert (await refused(log, b"c", producer=1, epoch=1, sequence=2)).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await append(log, b"c", producer=1, epoch=1, sequence=0) == 2


async def test_the_last_five_batches_are_known_and_older_repeats_are_duplicates(new_log: NewLog) -> None:
    log = await new_log()
    for sequence in range(8):
        await append(log, b"%d" % sequence, producer=1, sequence=sequence)
    for sequence in range(3, 8):
        again = await append_batch(log, memoryview(batch(b"%d" % sequence, producer=1, sequence=sequence)), EPOCH)
        assert (again.base_offset, again.is_repeat) == (sequence, True)
    for sequence in range(3):
        error = await refused(log, b"%d" % sequence, producer=1, sequence=sequence)
        assert error.code == Code.DUPLICATE_SEQUENCE_NUMBER


async def test_a_sequence_from_before_the_log_knew_the_producer_is_no_duplicate(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"b", producer=1, sequence=10)
    error = await refused(log, b"a", producer=1, sequence=9)
    assert error.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "a client takes a duplicate for success"


async def test_the_sequence_wraps_around_behind_its_largest_number(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", producer=1, sequence=MAX_SEQUENCE - 2)
    assert await append(log, b"b", b"c", b"d", producer=1, sequence=MAX_SEQUENCE - 1) == 1
    assert await append(log, b"e", producer=1, sequence=1) == 4
    again = await append_batch(log, memoryview(batch(b"b", b"c", b"d", producer=1, sequence=MAX_SEQUENCE - 1)), EPOCH)
    assert again == (1, 3, -1, True)
    for sequence in range(2, 7):
        await append(log, b"x", producer=1, sequence=sequence)
    error = await refused(log, b"b", b"c", b"d", producer=1, sequence=MAX_SEQUENCE - 1)
    assert error.code == Code.DUPLICATE_SEQUENCE_NUMBER
    assert (await refused(log, b"x", producer=1, sequence=8)).code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_refused_batch_does_not_count_in_the_sequence(new_log: NewLog) -> None:
    log = await new_log(max_message_bytes=500)
    await append(log, b"a", producer=1, sequence=0)
    await refused(log, b"x" * 1000, producer=1, sequence=1)
    assert await append(log, b"b", producer=1, sequence=1) == 1


async def test_a_repeat_is_answered_even_if_the_topic_would_refuse_it_now(new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a", producer=1, at_ms=NOW_MS - 5000)
    log.configure(settings(message_timestamp_before_max_ms=1000))
    again = await append_batch(log, memoryview(batch(b"a", producer=1, at_ms=NOW_MS - 5000)), EPOCH)
    assert again.is_repeat


async def test_a_silent_producer_is_forgotten(new_log: NewLog, clock: ManualClock) -> None:
    log = await new_log(retention_ms=-1)
    await append(log, b"a", producer=1, sequence=0)
    clock.advance(DAY_MS)
    await append(log, b"a", producer=2, sequence=0)
    await log.apply_retention()
    assert len(log.producers) == 2
    clock.advance(1)
    await log.apply_retention()
    assert [producer for producer, _ in log.producers.entries()] == [2]
    assert await append(log, b"b", producer=1, sequence=77) == 2, "any sequence may begin"


async def test_a_producer_of_old_records_is_not_forgotten_while_it_sends(new_log: NewLog) -> None:
    log = await new_log(retention_ms=-1)
    await append(log, b"a", producer=1, sequence=0, at_ms=NOW_MS - 300 * DAY_MS)
    await log.apply_retention()
    again = await append_batch(log, memoryview(batch(b"a", producer=1, sequence=0, at_ms=NOW_MS - 300 * DAY_MS)), EPOCH)
    assert again.is_repeat


async def test_the_number_of_producers_is_bounded_and_the_longest_silent_goes(new_log: NewLog) -> None:
    log = await new_log()
    for producer in range(4):
        await append(log, b"a", producer=producer, sequence=0)
    await append(log, b"b", producer=0, sequence=1)
    await append(log, b"a", producer=9, sequence=0)
    assert sorted(producer for producer, _ in log.producers.entries()) == [0, 2, 3, 9]


# Epochs


async def test_leader_epochs_are_noted_with_the_offset_they_began_at(new_log: NewLog) -> None:
    log = await new_log()
    for epoch in (0, 0, 2, 5):
        await append_batch(log, memoryview(batch(b"a")), epoch)
    assert log.epochs.starts == ((0, 0), (2, 2), (5, 3))
    assert log.epochs.end_of(0, log.end_offset) == (0, 2)
    assert log.epochs.end_of(3, log.end_offset) == (2, 3)
    assert log.epochs.end_of(5, log.end_offset) == (5, 4)
    assert log.epochs.end_of(6, log.end_offset) == (-1, -1)


async def test_epochs_below_the_start_are_forgotten_by_a_trim(new_log: NewLog) -> None:
    log = await new_log()
    for epoch in (0, 1, 2):
        await append_batch(log, memoryview(batch(b"a")), epoch)
    await log.trim(1)
    assert log.epochs.starts == ((1, 1), (2, 2))


# Engines


async def test_a_deleted_log_is_gone_and_a_new_one_of_its_name_is_empty(engine: Engine, new_log: NewLog) -> None:
    log = await new_log()
    await append(log, b"a")
    await engine.delete(AT)
    assert AT not in engine.logs
    fresh = await new_log()
    assert (fresh.start_offset, fresh.end_offset) == (0, 0)
    assert engine.logs[AT] is fresh


async def test_flush_and_admit_return(new_log: NewLog) -> None:
    log = await new_log()
    await log.prepare_write()
    await append(log, b"a")
    await log.flush()
    assert log.visible_end == 1
