"""Fetch: the hot path out. Long polling, size limits, and the answer without copying a record.

A fetch that finds too little is parked: it waits on its partitions until enough was appended or its time is over. With
isolation level read_committed it sees, and waits for, what lies below the last stable offset (KIP-98).
Incremental fetch sessions (KIP-227) are declined the way the protocol provides for: session id 0 in every answer.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from penstock.broker.answer import Answer
from penstock.errors import ApiError, Code, StorageError
from penstock.protocol.fetch import FetchPartition, FetchRequest, FetchResult, encode_response
from penstock.replication.partition import Partition, code_of
from penstock.replication.replicas import Replicas
from penstock.storage.contract import NOTHING

_READ_COMMITTED = 1
_FULL_FETCH_EPOCHS = (0, -1)
"""A new session is asked for, or none."""


_NOTHING_COMMITTED = NOTHING._replace(aborted=[])
"""Nothing, for a reader that is told of aborted transactions: there are none in it."""


class _Gathered(NamedTuple):
    results: list[FetchResult]
    partitions: list[Partition]
    size: int
    failed: bool
    ends: list[int]
    """What could be seen of each partition ended here."""


class ParkedFetch:
    """One fetch that waits until enough has been appended."""

    __slots__ = ("_done", "_missing_bytes")

    def __init__(self, done: asyncio.Future[None], missing_bytes: int) -> None:
        self._done = done
        self._missing_bytes = missing_bytes

    def grew(self, appended_bytes: int) -> None:
        self._missing_bytes -= appended_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class FetchHandler:
    def __init__(self, replicas: Replicas, max_bytes: int, max_parked: int, max_wait_ms: int) -> None:
        self._replicas = replicas
        self._max_bytes = max_bytes
        self._max_parked = max_parked
        self._max_wait_ms = max_wait_ms
        self._parked: set[ParkedFetch] = set()
        self._is_closing = False

    @property
    def parked(self) -> int:
        return len(self._parked)

    def close(self) -> None:
        """Answers everybody who waits with what there is."""
        self._is_closing = True
        for waiter in tuple(self._parked):
            waiter.wake()

    async def fetch(self, version: int, correlation_id: int, request: FetchRequest) -> Answer:
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            parts = encode_response(version, correlation_id, (), error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
            return Answer(parts, sum(map(len, parts)), failed=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms, self._max_wait_ms) / 1000
        throttle_ms = 0
        committed_only = request.isolation_level == _READ_COMMITTED
        while True:
            found = await self._gather(request, committed_only)
            is_enough = found.size >= request.min_bytes or found.failed or not request.partitions
            if is_enough or self._is_closing or loop.time() >= deadline:
                break
            if len(self._parked) >= self._max_parked:
                throttle_ms = max(0, int((deadline - loop.time()) * 1000))
                break
            if [_end_of(partition, committed_only) for partition in found.partitions] == found.ends:
                await self._park(found.partitions, committed_only, request.min_bytes - found.size, deadline)
        parts = encode_response(version, correlation_id, found.results, throttle_ms=throttle_ms)
        return Answer(parts, found.size + 64, found.failed)

    async def _gather(self, request: FetchRequest, committed_only: bool) -> _Gathered:
        """Reads every partition once, in the order asked for, as far as the size limits allow."""
        found = _Gathered([], [], 0, False, [])
        room = min(request.max_bytes, self._max_bytes)
        size, failed = 0, False
        for wanted in request.partitions:
            topic = wanted.topic
            try:
                if topic is None:
                    topic = self._replicas.topic_of(wanted.topic_id or b"")
                    if topic is None:
                        raise ApiError(Code.UNKNOWN_TOPIC_ID)
                partition = self._replicas.find(topic, wanted.index)
                result = await self._read(partition, wanted, room - size, committed_only, is_first=size == 0)
                found.partitions.append(partition)
                found.ends.append(result.last_stable_offset if committed_only else result.high_watermark)
                size += result.size
                found.results.append(result)
            except (ApiError, StorageError) as error:
                failed = True
                found.results.append(FetchResult(wanted.topic, wanted.topic_id, wanted.index, code_of(error)))
        return found._replace(size=size, failed=failed)

    async def _read(
        self, partition: Partition, wanted: FetchPartition, room: int, committed_only: bool, *, is_first: bool
    ) -> FetchResult:
        partition.check_epoch(wanted.current_leader_epoch)
        high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
        parts, size, _, aborted = _NOTHING_COMMITTED if committed_only else NOTHING
        if is_first or room > 0:
            parts, size, _, aborted = await partition.read(
                wanted.fetch_offset, min(wanted.max_bytes, room), committed_only=committed_only
            )
            if size > room and not is_first:
                parts, size, _, aborted = _NOTHING_COMMITTED if committed_only else NOTHING
        return FetchResult(
            wanted.topic,
            wanted.topic_id,
            wanted.index,
            0,
            high_watermark,
            last_stable_offset,
            partition.log.start_offset,
            aborted,
            -1,
            parts,
            size,
        )

    async def _park(
        self, partitions: list[Partition], committed_only: bool, missing_bytes: int, deadline: float
    ) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        waiter = ParkedFetch(done, missing_bytes)
        timer = loop.call_at(deadline, waiter.wake)
        self._parked.add(waiter)
        for partition in partitions:
            partition.park(waiter, committed_only=committed_only)
        try:
            await done
        finally:
            timer.cancel()
            self._parked.discard(waiter)
            for partition in partitions:
                partition.unpark(waiter)


def _end_of(partition: Partition, committed_only: bool) -> int:
    return partition.last_stable_offset if committed_only else partition.high_watermark
