"""What is found out about a producer's batch before it is appended, and what is refused without being unpacked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.delay.batch_split import SplitPlan
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code
from penstock.net import eager
from penstock.records.batch import crc_of
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch
from penstock.replication.inspection import Inspection
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.storage.admission import Inspected
from penstock.storage.memory import MemoryEngine
from support.leading import leading
from support.logs import AT, NOW_MS, TOPIC_ID, settings

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LIMIT = 1 << 20


@pytest.fixture
async def inspection() -> AsyncIterator[Inspection]:
    made = Inspection(Limits(unpacked_batch_bytes=LIMIT, inspected_records=1000))
    yield made
    made.close()


async def partition_of(**configured: str) -> Partition:
    clock = ManualClock(NOW_MS)
    engine = MemoryEngine(LogSettings(), Limits(), clock)
    return leading(await engine.create(AT, TOPIC_ID, settings(**configured)), delayed_records=Delays(clock))


def batch_of(*records: Record, codec: Codec = Codec.NONE) -> memoryview:
    return memoryview(build_batch(records, codec=codec))


def of_zeros(size: int, codec: Codec) -> memoryview:
    return batch_of(Record(b"k", bytes(size), timestamp_ms=NOW_MS), codec=codec)


async def code_of_refusal(inspection: Inspection, partition: Partition, batch: memoryview) -> Code:
    with pytest.raises(ApiError) as refused:
        await inspection.inspect(partition, batch)
    return refused.value.code


@pytest.mark.parametrize("codec", COMPRESSED)
async def test_a_batch_that_unpacks_to_too_much_is_refused(inspection: Inspection, codec: Codec) -> None:
    bomb = of_zeros(2 * LIMIT, codec)
    with pytest.raises(ApiError, match=r"limits\.unpacked_batch_bytes") as refused:
        await inspection.inspect(await partition_of(), bomb)
    assert refused.value.code is Code.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSED)
async def test_a_batch_that_unpacks_to_what_is_allowed_is_taken(inspection: Inspection, codec: Codec) -> None:
    partition = await partition_of()
    batch = of_zeros(LIMIT - 100, codec)
    appended = await partition.append(batch, ALL_IN_SYNC, inspected=await inspection.inspect(partition, batch))
    assert appended.base_offset == 0


@pytest.mark.parametrize("codec", COMPRESSED)
async def test_a_batch_with_a_wrong_crc_is_not_unpacked(inspection: Inspection, codec: Codec) -> None:
    bomb = of_zeros(2 * LIMIT, codec)
    bomb[17] ^= 0xFF
    # Unpacked, it would be too large.
    assert await code_of_refusal(inspection, await partition_of(), bomb) is Code.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", COMPRESSED)
async def test_a_batch_that_is_too_large_as_sent_is_not_unpacked(inspection: Inspection, codec: Codec) -> None:
    broken = of_zeros(10_000, codec)
    broken[-10:] = bytes(10)
    broken[17] ^= 0xFF
    partition = await partition_of(**{"max.message.bytes": "50"})
    with pytest.raises(ApiError, match=r"max\.message\.bytes"):
        await inspection.inspect(partition, broken)


async def test_a_batch_with_a_right_crc_that_does_not_unpack_is_refused_for_good(inspection: Inspection) -> None:
    good = build_batch([Record(None, bytes(1000), timestamp_ms=NOW_MS)])
    good[22] |= Codec.ZSTD
    good[17:21] = crc_of(memoryview(good)).to_bytes(4, "big")
    assert await code_of_refusal(inspection, await partition_of(), memoryview(good)) is Code.INVALID_RECORD


@pytest.mark.parametrize("count", [10, 900], ids=["few", "in a thread"])
async def test_records_without_a_key_are_found(inspection: Inspection, count: int) -> None:
    partition = await partition_of(**{"cleanup.policy": "compact"})
    keyed = [Record(b"k", b"v", timestamp_ms=NOW_MS)] * (count - 1)
    found = await inspection.inspect(partition, batch_of(*keyed, Record(None, b"v", timestamp_ms=NOW_MS)))
    assert found.without_key == (count - 1,)


async def test_only_some_of_very_many_wrong_records_are_named(inspection: Inspection) -> None:
    partition = await partition_of(**{"cleanup.policy": "compact"})
    found = await inspection.inspect(partition, batch_of(*[Record(None, b"v", timestamp_ms=NOW_MS)] * 1000))
    assert found.without_key == tuple(range(100))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("configured", [{"cleanup.policy": "compact"}, {}], ids=["compacted", "delayed"])
async def test_more_records_than_may_be_looked_at_one_by_one_are_refused(
    inspection: Inspection, codec: Codec, configured: dict[str, str]
) -> None:
    record = Record(b"k", b"", (("penstock-delay", b"1h"),), timestamp_ms=NOW_MS)
    batch = batch_of(*[record] * 1001, codec=codec)
    assert await code_of_refusal(inspection, await partition_of(**configured), batch) is Code.MESSAGE_TOO_LARGE


async def test_a_batch_that_nobody_has_to_look_into_may_have_any_number_of_records(inspection: Inspection) -> None:
    batch = batch_of(*[Record(None, b"", timestamp_ms=NOW_MS)] * 1001, codec=Codec.LZ4)
    assert (await inspection.inspect(await partition_of(), batch)).delayed is None


@pytest.mark.parametrize("codec", [Codec.NONE, *COMPRESSED])
@pytest.mark.parametrize("size", [10, 900_000], ids=["small", "in a thread"])
async def test_delayed_records_are_found(inspection: Inspection, codec: Codec, size: int) -> None:
    record = Record(None, bytes(size), (("penstock-delay", b"1h"),), timestamp_ms=NOW_MS)
    found = await inspection.inspect(await partition_of(), batch_of(record, codec=codec))
    assert isinstance(found.delayed, SplitPlan)
    assert len(found.delayed.waiting) == 1


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize(("size", "at_once"), [(20_000, True), (900_000, False)], ids=["small", "large"])
async def test_a_small_batch_is_looked_into_without_waiting_for_a_thread(
    inspection: Inspection, codec: Codec, size: int, at_once: bool
) -> None:
    look = eager.start(asyncio.get_running_loop(), inspection.inspect(await partition_of(), of_zeros(size, codec)))
    assert isinstance(look, Inspected) is at_once
    if isinstance(look, asyncio.Task):
        await look


async def test_what_was_inspected_under_other_settings_is_inspected_again(inspection: Inspection) -> None:
    partition = await partition_of()
    batch = batch_of(Record(None, b"v", timestamp_ms=NOW_MS))
    found = await inspection.inspect(partition, batch)
    partition.log.configure(settings(**{"cleanup.policy": "compact"}))
    with pytest.raises(ApiError, match="key"):
        await partition.append(batch, ALL_IN_SYNC, inspected=found)


async def test_batches_that_wait_for_a_thread_do_not_keep_the_loop(inspection: Inspection) -> None:
    partition = await partition_of()
    looks = [asyncio.ensure_future(inspection.inspect(partition, of_zeros(900_000, Codec.GZIP))) for _ in range(4)]
    await asyncio.sleep(0)
    assert not all(look.done() for look in looks)
    await asyncio.gather(*looks)
