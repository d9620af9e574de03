"""Takes delayed messages of clients without a broker into the partitions that this process leads.

Such a client puts them into `queue_inbox` (`storage/sql/inbox_table.py`). The leader appends each batch from there as a
producer's batch, so that its records go to the companion, and then deletes it. The numbers of the batches are the
sequences of that producer: one that was appended and not deleted before a crash is a repeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from penstock.errors import ApiError, Code, PenstockError
from penstock.logs import fields
from penstock.records.batch import HEADER_BYTES, read_header, with_header
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.sql.errors import DatabaseError
from penstock.sql.group import DatabaseGroup
from penstock.sql.groups import DatabaseGroups
from penstock.storage.sql import inbox_table
from penstock.storage.sql.inbox_table import BATCHES_A_LOOK, INBOX_PRODUCER_EPOCH, INBOX_PRODUCER_ID, InboxBatch
from penstock.storage.sql.log import SqlLog
from penstock.yielding import yielding

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_LOOK_FOR_TABLE_EVERY = 5
"""While there is no such table, every so many looks it is looked for."""
_REFUSED = frozenset({Code.INVALID_RECORD, Code.MESSAGE_TOO_LARGE, Code.CORRUPT_MESSAGE, Code.INVALID_TIMESTAMP})
"""Trying again would not help."""


class InboxIntake:
    """One loop over all databases; `close` ends it."""

    def __init__(self, groups: DatabaseGroups, partitions: Callable[[], Iterable[Partition]]) -> None:
        self._groups = groups
        self._partitions = partitions
        self._with_table: set[str] = set()
        self._looks = 0
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="inbox intake")

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._stop.is_set():
            has_more = False
            try:
                has_more = await self.take()
            except Exception:
                logger.exception("could not take in delayed messages")
            if not has_more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._stop.wait()

    async def take(self) -> bool:
        """Take in what is there now; whether there may be more."""
        looks_for_table = self._looks % _LOOK_FOR_TABLE_EVERY == 0
        self._looks += 1
        groups = list(self._groups)
        found = await asyncio.gather(*(self._read(group, looks_for_table=looks_for_table) for group in groups))
        if not any(found):
            return False
        led: dict[int, Partition] = {}
        async for partition in yielding(list(self._partitions())):
            if (log := _led_log(partition)) is not None:
                led[log.row.id] = partition
        taken = await asyncio.gather(
            *(self._take_from(group, batches, led) for group, batches in zip(groups, found, strict=True))
        )
        return any(taken)

    async def _read(self, group: DatabaseGroup, *, looks_for_table: bool) -> Sequence[InboxBatch]:
        try:
            if group.name not in self._with_table:
                if not looks_for_table or not await group.read(inbox_table.exists):
                    return ()
                self._with_table.add(group.name)
            return await group.read(inbox_table.read)
        except DatabaseError as error:
            self._with_table.discard(group.name)
            logger.debug("could not look for delayed messages", extra=fields(group=group.name, error=str(error)))
            return ()

    async def _take_from(
        self, group: DatabaseGroup, batches: Sequence[InboxBatch], led: Mapping[int, Partition]
    ) -> bool:
        if len(batches) == BATCHES_A_LOOK and not any(each.queue_id in led for each in batches):
            batches = await self._read_behind(group, sorted(led))
        by_queue: dict[int, list[InboxBatch]] = {}
        for each in batches:
            if each.queue_id in led:
                by_queue.setdefault(each.queue_id, []).append(each)
        taken = await asyncio.gather(
            *(self._take_into(led[queue_id], some, group) for queue_id, some in by_queue.items())
        )
        return any(taken)

    async def _read_behind(self, group: DatabaseGroup, queue_ids: Sequence[int]) -> Sequence[InboxBatch]:
        """What is ours, behind much that is others': it must not wait until they have taken theirs."""
        for at in range(0, len(queue_ids), BATCHES_A_LOOK):
            some = queue_ids[at : at + BATCHES_A_LOOK]
            try:
                found = await group.read(partial(inbox_table.read_of, queue_ids=some, limit=BATCHES_A_LOOK))
            except DatabaseError:
                return ()
            if found:
                return found
        return ()

    async def _take_into(self, partition: Partition, batches: list[InboxBatch], group: DatabaseGroup) -> bool:
        """In order; whether something was taken."""
        done: list[InboxBatch] = []
        log = partition.log
        assert isinstance(log, SqlLog)
        try:
            # Its clients append to the table themselves, all the time.
            await log.catch_up()
            for each in batches:
                await _append(partition, each, group.name)
                done.append(each)
        except (PenstockError, OSError) as error:
            is_raced = isinstance(error, ApiError) and error.code is Code.NOT_ENOUGH_REPLICAS
            logger.log(
                logging.DEBUG if is_raced else logging.INFO,
                "could not take in delayed messages, will retry",
                extra=fields(log=str(partition.topic_partition), error=str(error)),
            )
        if not done:
            return False
        try:
            await group.change(lambda connection: inbox_table.delete(connection, done), group.generation)
        except DatabaseError as error:
            # They are known again at the next look.
            logger.info(
                "could not delete delayed messages from the inbox table after taking them in, will retry",
                extra=fields(error=str(error)),
            )
            return False
        return True


def _led_log(partition: Partition) -> SqlLog | None:
    return partition.log if partition.leadership is not None and isinstance(partition.log, SqlLog) else None


async def _append(partition: Partition, each: InboxBatch, group: str) -> None:
    log = partition.log
    assert isinstance(log, SqlLog)
    # In another database than the log since that has moved, the numbers are not those that the log knows.
    is_sequenced = log.env.group.name == group
    try:
        await partition.append(_stamped(each, is_sequenced=is_sequenced), ALL_IN_SYNC)
    except ApiError as error:
        if error.code is Code.DUPLICATE_SEQUENCE_NUMBER:
            return
        if error.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            logger.warning(
                "delayed messages are missing from the inbox table; continuing with those that are there",
                extra=fields(log=str(partition.topic_partition), number=each.first_number),
            )
            await partition.append(_stamped(each, is_sequenced=False), ALL_IN_SYNC)
        elif error.code in _REFUSED:
            logger.error(
                "delayed messages are refused and dropped",
                extra=fields(log=str(partition.topic_partition), messages=each.message_count, reason=str(error)),
            )
        else:
            raise


def _stamped(each: InboxBatch, *, is_sequenced: bool) -> memoryview:
    header = read_header(each.batch)
    if is_sequenced:
        header = header._replace(
            producer_id=INBOX_PRODUCER_ID, producer_epoch=INBOX_PRODUCER_EPOCH, base_sequence=each.base_sequence
        )
    return memoryview(with_header(header, each.batch[HEADER_BYTES:]))
