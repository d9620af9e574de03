"""Fetch: the hot path out. Long polling, size limits, and the answer without copying a record.

A fetch that finds too little is parked: it waits on its partitions until enough was appended or its time is over. With
isolation level read_committed it sees, and waits for, what lies below the last stable offset (KIP-98).
Incremental fetch sessions (KIP-227) are declined to clients the way the protocol provides for: session id 0 in every
answer. What followers fetch is in `following`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.answer import Answer
from penstock.broker.handlers.following import FollowerFetches
from penstock.broker.handlers.parking import Parking
from penstock.broker.handlers.reading import ClientReading, Nearest, Reading, Sight
from penstock.broker.handlers.shown_reading import Shown, ShownReading
from penstock.clock import Clock
from penstock.config.broker import Limits
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code, StorageError, code_of
from penstock.protocol.fetch import FetchRequest, FetchResult, encode_response
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.views.catalogue import Catalogue

_READ_COMMITTED = 1
_FULL_FETCH_EPOCHS = (0, -1)
"""A new session is asked for, or none."""


class _Gathered(NamedTuple):
    results: list[FetchResult]
    partitions: list[Partition]
    size: int
    failed: bool
    sights: list[Sight]
    shown: dict[int, Shown]
    """Which of the results are those of topics without a log of their own."""


class FetchHandler:
    def __init__(
        self,
        replicas: Replicas,
        catalogue: Catalogue,
        delays: Delays,
        limits: Limits,
        clock: Clock,
        nearest: Nearest,
        may_have_caught_up: Callable[[], None],
    ) -> None:
        self._replicas = replicas
        self._catalogue = catalogue
        self._delays = delays
        self._max_bytes = limits.fetch_bytes
        self._max_wait_ms = limits.idle_connection_ms
        self._nearest = nearest
        self._parking = Parking(limits.parked_fetches)
        self._followers = FollowerFetches(replicas, self._parking, limits, clock, may_have_caught_up)

    @property
    def parked(self) -> int:
        return len(self._parking)

    def close(self) -> None:
        """Answers everybody who waits with what there is."""
        self._parking.close()

    async def fetch(self, version: int, correlation_id: int, request: FetchRequest) -> Answer:
        if request.replica_id >= 0:
            return await self._followers.fetch(version, correlation_id, request)
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            parts = encode_response(version, correlation_id, (), error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
            return Answer(parts, sum(map(len, parts)), failed=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms, self._max_wait_ms) / 1000
        throttle_ms = 0
        committed_only = request.isolation_level == _READ_COMMITTED
        reading = ClientReading(committed_only=committed_only, rack=request.rack_id, nearest=self._nearest)
        showing = ShownReading(reading, self._catalogue, self._delays)
        found: _Gathered | None = None
        while True:
            found = await self._gather(request, reading, showing, found)
            is_enough = found.size >= request.min_bytes or found.failed or not request.partitions
            if is_enough or self._parking.is_closing or loop.time() >= deadline:
                break
            if self._parking.is_full:
                throttle_ms = max(0, int((deadline - loop.time()) * 1000))
                break
            if found.shown and showing.is_searching:
                continue
            if [Sight.of(partition, reading.end_of(partition)) for partition in found.partitions] == found.sights:
                await self._parking.wait_for(found.partitions, reading.park, request.min_bytes - found.size, deadline)
        for at, shown in found.shown.items():
            found.results[at] = showing.completed(shown, found.results[at])
        parts = encode_response(version, correlation_id, found.results, throttle_ms=throttle_ms)
        return Answer(parts, found.size + 64, found.failed)

    async def _gather(
        self, request: FetchRequest, reading: Reading, showing: ShownReading, before: _Gathered | None
    ) -> _Gathered:
        """Reads every partition once, in the order asked for, as far as the size limits allow; but not what was read
        `before`, found empty, and is still as it was.
        """
        found = _Gathered([], [], 0, False, [], {})
        room = min(request.max_bytes, self._max_bytes)
        size, failed = 0, False
        # What was found already for views goes into the answer, whatever the others have by now.
        held = showing.held if before is not None and before.shown else 0
        for at, wanted in enumerate(request.partitions):
            topic = wanted.topic
            try:
                if before is not None and before.results[at].size == 0 and at not in before.shown:
                    partition, sight = before.partitions[at], before.sights[at]
                    if Sight.of(partition, reading.end_of(partition)) == sight:
                        found.partitions.append(partition)
                        found.sights.append(sight)
                        found.results.append(before.results[at])
                        continue
                if topic is None:
                    topic = self._replicas.seen_of(wanted.topic_id or b"")
                    if topic is None:
                        raise ApiError(Code.UNKNOWN_TOPIC_ID)
                shown = showing.find(topic)
                partition = self._replicas.find(topic if shown is None else shown.base, wanted.index)
                sight = Sight.of(partition, reading.end_of(partition))
                if shown is None:
                    is_first = size + held == 0
                    result = await reading.read(partition, wanted, room - size - held, is_first=is_first)
                else:
                    held -= showing.held_of(shown, wanted.index)
                    found.shown[len(found.results)] = shown
                    is_first = size + held == 0
                    result = await showing.read(shown, partition, wanted, room - size - held, is_first=is_first)
                found.partitions.append(partition)
                found.sights.append(sight)
                size += result.size
                # A client that is sent elsewhere, or told of an error, shall not wait.
                failed = failed or result.preferred_read_replica >= 0 or result.error_code != 0
                found.results.append(result)
            except (ApiError, StorageError) as error:
                failed = True
                found.results.append(FetchResult(wanted.topic, wanted.topic_id, wanted.index, code_of(error)))
        return found._replace(size=size, failed=failed)
