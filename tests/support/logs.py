"""Batches to append, engines to append them to, and what can be read back."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.clock import Clock, ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig, topic_config
from penstock.errors import ApiError, Code
from penstock.ids import TopicId, TopicPartition
from penstock.records.batch import HEADER_BYTES, read_header
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch, records_block, walk
from penstock.storage.admission import Checked
from penstock.storage.contract import Appended, Log, Slice
from penstock.storage.files import Files
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.storage.sql.log import SqlLog

AT = TopicPartition("orders", 0)
TOPIC_ID: TopicId = uuid.UUID("5a0c1c9a-95b0-4c5e-8a54-0f4f9d3a7c11")
NOW_MS = 1_700_000_000_000
ALL = 1 << 30
EPOCH = 3
DAY_MS = 86_400_000

NewLog = Callable[..., Awaitable[Log]]
"""Makes a log with the topic settings given, underscores for dots."""


class Seen(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None


def settings(**named: object) -> TopicConfig:
    """Topic settings, with underscores for dots."""
    return topic_config({name.replace("_", "."): str(value) for name, value in named.items()})


def batch(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    at_ms: int | Sequence[int] = NOW_MS,
    codec: Codec = Codec.NONE,
    producer: int = -1,
    epoch: int = 0,
    sequence: int = 0,
) -> bytearray:
    """A batch as a producer sends it."""
    times = [at_ms] * len(values) if isinstance(at_ms, int) else at_ms
    names = [None] * len(values) if keys is None else keys
    return build_batch(
        [Record(key, value, (), time) for key, value, time in zip(names, values, times, strict=True)],
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
    )


async def append(log: Log, *values: bytes | None, **options: object) -> int:
    """Appends one batch and gives its base offset."""
    made = batch(*values, **options)  # type: ignore[arg-type]
    return (await append_batch(log, memoryview(made), EPOCH)).base_offset


async def append_batch(
    log: Log, made: memoryview, leader_epoch: int, *, guard: int | None = None, is_own: bool = False
) -> Appended:
    """Checks, writes and secures one batch, as the partition that leads does."""
    await log.prepare_write()
    checked = log.check(made, guard=guard, is_own=is_own)
    return await append_checked(log, checked, leader_epoch)


async def append_checked(log: Log, checked: Checked, leader_epoch: int) -> Appended:
    is_repeat, last_offset_delta = checked.repeat_of is not None, checked.header.last_offset_delta
    base_offset = log.end_offset if checked.repeat_of is None else checked.repeat_of
    if not is_repeat:
        await log.write(checked, base_offset, leader_epoch)
    await log.secure(0 if is_repeat else last_offset_delta + 1)
    return Appended(base_offset, base_offset + last_offset_delta, checked.append_time_ms, is_repeat)


def keeps_batches(log: Log) -> bool:
    """Whether the engine stores batches as they were sent, and not only their records. Those that do not have the last
    ones in memory all the same, unless compaction has taken something out of them.
    """
    return not isinstance(log, SqlLog)


def content(found: Slice) -> bytes:
    """The bytes of a slice, wherever they lie."""
    joined = found.read()
    assert len(joined) == found.size
    return joined


def split(data: bytes) -> list[bytes]:
    """The batches of what a read gave; fails where they are not whole."""
    found, position = [], 0
    while position < len(data):
        assert len(data) - position >= HEADER_BYTES
        size = read_header(data, position).size
        assert position + size <= len(data)
        found.append(data[position : position + size])
        position += size
    return found


def seen(data: bytes) -> list[Seen]:
    """The records of what a read gave."""
    found = []
    for one in split(data):
        header = read_header(one)
        for record in walk(records_block(memoryview(one), header), header.record_count):
            key = None if record.key is None else bytes(record.key)
            value = None if record.value is None else bytes(record.value)
            found.append(Seen(header.base_offset + record.offset_delta, key, value))
    return found


async def read_batches(log: Log, start: int | None = None, max_bytes: int = ALL) -> list[bytes]:
    """Every batch from `start` on, by as many reads as it takes."""
    offset, found = log.start_offset if start is None else start, []
    while offset < log.visible_end:
        got = split(content(await log.read(offset, max_bytes, log.visible_end)))
        if not got:
            break
        found += got
        offset = read_header(got[-1]).next_offset
    return found


async def read_all(log: Log, start: int | None = None) -> list[Seen]:
    """Every record from `start` on."""
    first = log.start_offset if start is None else start
    return [record for record in seen(b"".join(await read_batches(log, start))) if record.offset >= first]


async def read_around_damage(log: Log) -> tuple[list[Seen], list[int]]:
    """Every record that can be read, and the offsets that answered with CORRUPT_MESSAGE."""
    found: list[Seen] = []
    bad: list[int] = []
    offset = log.start_offset
    while offset < log.visible_end:
        try:
            got = split(content(await log.read(offset, ALL, log.visible_end)))
        except ApiError as error:
            assert error.code == Code.CORRUPT_MESSAGE
            bad.append(offset)
            offset += 1
            continue
        if not got:
            break
        found += [record for record in seen(b"".join(got)) if record.offset >= offset]
        offset = read_header(got[-1]).next_offset
    return found, bad


def new_engine(
    folder: Path, clock: Clock | None = None, files: Files | None = None, **log_settings: int
) -> SegmentedEngine:
    chosen = {"checkpoint_ms": 3_600_000, **log_settings}
    limits = {name: chosen.pop(name) for name in ("open_files", "producers_per_partition") if name in chosen}
    return SegmentedEngine(folder, LogSettings(**chosen), Limits(**limits), clock or ManualClock(NOW_MS), files)


async def open_engine(
    folder: Path,
    config: TopicConfig | Mapping[TopicPartition, TopicConfig],
    clock: Clock | None = None,
    files: Files | None = None,
    **log_settings: int,
) -> SegmentedEngine:
    """An engine with the wanted logs open."""
    engine = new_engine(folder, clock, files, **log_settings)
    configs = {AT: config} if isinstance(config, TopicConfig) else config
    await engine.open({at: (TOPIC_ID, each) for at, each in configs.items()})
    return engine
