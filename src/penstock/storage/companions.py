"""Companion logs: the other halves of some batches of a log, at the same offsets (`docs/internals/delay.md`).

A half that is put aside is written before the one that stays, and synced before it. So at the end of a companion there
may be halves of batches that never came to be; but what says that it has another half, has it. A power loss can break
the latter, behind the last sync: `reconcile` makes it true again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace

from penstock.config.setting import LONG_MAX
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError
from penstock.logs import fields
from penstock.records.batch import PAIRED_BIT, BatchHeader
from penstock.storage.contract import Log

logger = logging.getLogger(__name__)

_SEGMENT_BYTES = 64 << 20
_READ_BYTES = 1 << 20


def companion_config(config: TopicConfig) -> TopicConfig:
    """It has gaps, like a compacted log, and is synced with the log that it belongs to."""
    return replace(
        config,
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=min(config.segment_bytes, _SEGMENT_BYTES),
        segment_ms=LONG_MAX,
        flush_messages=LONG_MAX,
        flush_ms=LONG_MAX,
        partitions_retired={},
    )


async def reconcile(main: Log, companion: Log, synced_end: int) -> None:
    """Makes pairs whole after a start; what lies below `synced_end` was synced, and is."""
    await companion.cut(main.end_offset)
    # Below its start are only records that were delivered or cancelled, and it has trimmed them.
    lost = await _first_broken(main, companion, max(synced_end, companion.start_offset))
    if lost is not None:
        logger.error(
            "cut the end of the log: a power loss destroyed a batch or its companion half",
            extra=fields(log=str(main.topic_partition), end=lost, was=main.end_offset),
        )
        await main.cut(lost)
        await companion.cut(main.end_offset)
    main.sync_after(companion)


async def _first_broken(main: Log, companion: Log, start: int) -> int | None:
    """The first offset, from `start` on, at which something is damaged or has lost its other half."""
    halves = {header.base_offset async for header in _headers(companion, start) if header is not None}
    offset = max(start, main.start_offset)
    async for header in _headers(main, start):
        if header is None:
            return offset
        if header.attributes & PAIRED_BIT and header.base_offset not in halves:
            return header.base_offset
        offset = header.next_offset
    return None


async def _headers(log: Log, start: int) -> AsyncIterator[BatchHeader | None]:
    """The headers of all batches from an offset on; None for what is damaged."""
    offset, end = max(start, log.start_offset), log.end_offset
    while offset < end:
        try:
            found = await log.read(offset, _READ_BYTES, end)
        except ApiError:
            offset += 1
            yield None
            continue
        if not found.size:
            return
        for _, header, _ in found.batches():
            offset = header.next_offset
            yield header
