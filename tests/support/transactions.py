"""Transactional batches and markers for a log, and what a read_committed client shows of it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.control import read_marker
from penstock.records.records import Record, build_batch
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.contract import Appended, Log
from support.logs import ALL, EPOCH, NOW_MS, Seen, append_batch, append_checked, content, seen, split


def txn_batch(
    *values: bytes | None,
    producer: int,
    epoch: int = 0,
    sequence: int = 0,
    keys: Sequence[bytes | None] | None = None,
    at_ms: int = NOW_MS,
) -> bytearray:
    """A batch as a transactional producer sends it."""
    names = [None] * len(values) if keys is None else keys
    return build_batch(
        [Record(key, value, (), at_ms) for key, value in zip(names, values, strict=True)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )


async def txn_append(log: Log, *values: bytes | None, producer: int, **options: object) -> int:
    """Appends a batch of a transaction that its coordinator knows; gives its base offset."""
    guard = log.producers.guard(producer)
    made = txn_batch(*values, producer=producer, **options)  # type: ignore[arg-type]
    return (await append_batch(log, memoryview(made), EPOCH, guard=guard)).base_offset


async def end(
    log: Log,
    producer: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = EPOCH,
) -> Appended:
    """Ends a producer's transaction, as the partition that leads does."""
    await log.prepare_write()
    checked = log.check_marker(producer, epoch, committed=commit, coordinator_epoch=coordinator_epoch)
    return await append_checked(log, checked, leader_epoch)


def shown(data: bytes, aborted: list[AbortedTransaction]) -> list[Seen]:
    """What a client shows of one answer: it begins to leave a producer out at the offset that the list names, and
    stops at the producer's next abort marker.
    """
    waiting, left_out, found = sorted(aborted, key=lambda entry: entry.first_offset), set(), []
    for one in split(data):
        header = read_header(one)
        while waiting and waiting[0].first_offset <= header.last_offset:
            left_out.add(waiting.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(memoryview(one), header)
            if marker is not None and not marker.committed:
                left_out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in left_out):
            found += seen(one)
    return found


async def read_committed(log: Log, start: int | None = None, max_bytes: int = ALL) -> list[Seen]:
    """Every record that a read_committed client shows from `start` on, by as many fetches as it takes."""
    first = offset = log.start_offset if start is None else start
    unstable = log.first_unstable_offset
    stable = log.visible_end if unstable is None else min(unstable, log.visible_end)
    found: list[Seen] = []
    while offset < stable:
        got = await log.read(offset, max_bytes, stable)
        data = content(got)
        if not data:
            break
        assert offset < got.end_offset <= stable
        assert read_header(split(data)[-1]).last_offset < got.end_offset
        found += shown(data, log.aborted_transactions(offset, got.end_offset))
        offset = read_header(split(data)[-1]).next_offset
    return [record for record in found if record.offset >= first]
