"""Batches that cannot be stored, or cost a database much: what they do to whoever writes beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.config.broker import Limits
from penstock.errors import ApiError, Code
from penstock.records.batch import HEADER_BYTES, read_header, with_header
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch, records_block, walk
from penstock.replication.inspection import Inspection
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.storage.contract import Appended
from penstock.storage.sql.log import SqlLog
from penstock.storage.sql.writer import GROUP_RECORDS
from support.leading import leading
from support.logs import AT, NOW_MS, TOPIC_ID, batch, read_all, settings

from .conftest import OpenEngine

MOST_RECORDS = 1000


@pytest.fixture
async def inspection() -> AsyncIterator[Inspection]:
    made = Inspection(Limits(inspected_records=MOST_RECORDS))
    yield made
    made.close()


@pytest.fixture
async def partition(open_engine: OpenEngine) -> Partition:
    log = await (await open_engine()).create(AT, TOPIC_ID, settings())
    await log.take_over(0)
    return leading(log)


async def append(inspection: Inspection, partition: Partition, made: bytearray) -> Appended:
    """As a broker does it for a client."""
    inspected = await inspection.inspect(partition, memoryview(made))
    return await partition.append(memoryview(made), ALL_IN_SYNC, inspected=inspected)


def twice_the_same_offset() -> bytearray:
    made = batch(b"a", b"a")
    header = read_header(made)
    (first, _) = walk(records_block(memoryview(made), header), 2)
    return with_header(header, bytes(made[HEADER_BYTES:])[first.start : first.end] * 2)


def outside_of_64_bits() -> bytearray:
    made = build_batch([Record(None, b"a", (), 0), Record(None, b"b", (), 1)])
    header = read_header(made)._replace(base_timestamp=(1 << 63) - 1)
    return with_header(header, bytes(made[HEADER_BYTES:]))


def cut_off() -> bytearray:
    return with_header(read_header(batch(b"a", b"b")), b"\x02\x00\x00")


@pytest.mark.parametrize("broken", [twice_the_same_offset, outside_of_64_bits, cut_off])
async def test_a_batch_that_cannot_be_stored_takes_no_other_one_back_with_it(
    inspection: Inspection, partition: Partition, broken: Callable[[], bytearray]
) -> None:
    results = await asyncio.gather(
        *(
            append(inspection, partition, made)
            for made in (batch(b"before"), broken(), batch(b"between"), broken(), batch(b"after"))
        ),
        return_exceptions=True,
    )
    refused, taken = results[1::2], results[::2]
    assert [each.code for each in refused if isinstance(each, ApiError)] == [Code.INVALID_RECORD] * 2
    assert [each.base_offset for each in taken if isinstance(each, Appended)] == [0, 1, 2]
    assert [record.value for record in await read_all(partition.log)] == [b"before", b"between", b"after"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_batch_of_too_many_records_is_refused_so_that_its_producer_splits_it(
    inspection: Inspection, partition: Partition, codec: Codec
) -> None:
    one = Record(None, None, (), NOW_MS)
    with pytest.raises(ApiError, match=r"limits\.inspected_records") as refused:
        await append(inspection, partition, build_batch([one] * (MOST_RECORDS + 1), codec=codec))
    assert refused.value.code is Code.MESSAGE_TOO_LARGE
    assert (await append(inspection, partition, build_batch([one] * MOST_RECORDS, codec=codec))).base_offset == 0


async def test_what_waits_for_the_database_is_measured_decompressed(
    inspection: Inspection, partition: Partition
) -> None:
    log = partition.log
    assert isinstance(log, SqlLog)
    size = 1 << 20
    made = memoryview(build_batch([Record(None, bytes(size), (), NOW_MS)], codec=Codec.ZSTD))
    assert len(made) < size / 100
    checked = log.check(made, inspected=await inspection.inspect(partition, made))
    await log.write(checked, 0, 0)
    assert log.env.buffer.bytes >= size
    await log.secure(0)
    assert log.env.buffer.bytes == 0


async def test_a_transaction_ends_before_it_has_too_many_records(partition: Partition) -> None:
    log = partition.log
    assert isinstance(log, SqlLog)
    many = memoryview(build_batch([Record(None, None, (), NOW_MS)] * GROUP_RECORDS, codec=Codec.ZSTD))
    groups = []
    for made in (many, memoryview(batch(b"next"))):
        await log.write(log.check(made), log.end_offset, 0)
        groups.append(log.writer.group(is_second_half=False))
    assert groups[0] is groups[1], "the group of the second batch has room"
    assert groups[1].records == 1
    await log.secure(0)
    assert log.visible_end == GROUP_RECORDS + 1
