"""Fetch: the hot path out. Long polling, size limits, and a response without copying a record.

A fetch that finds too little is parked: it waits on its partitions until enough was appended or its time is over. With
isolation level read_committed it sees, and waits for, records below the last stable offset (KIP-98).
The broker declines incremental fetch sessions (KIP-227) of clients the way the protocol provides for: session id 0 in
every response. Followers have sessions: `follower_sessions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.handlers.fetch.derived_topics import DerivedTopic, DerivedTopicReads
from penstock.broker.handlers.fetch.follower_sessions import FollowerSessions
from penstock.broker.handlers.fetch.parked_fetches import ParkedFetches
from penstock.broker.handlers.fetch.partition_reads import ConsumerReads, Nearest, PartitionReads, PartitionSnapshot
from penstock.broker.known_brokers import KnownBrokers
from penstock.broker.permissions.access import Permissions
from penstock.broker.permissions.hot_paths import ReadCheck
from penstock.broker.requests.response_frame import ResponseFrame
from penstock.broker.requests.sliced_work import Slices, Work
from penstock.clock import Clock
from penstock.cluster.metadata import MetadataImage
from penstock.cluster.timer_topics import TimerTopic
from penstock.config.broker import Limits
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code, StorageError, code_of
from penstock.net.caller import Caller
from penstock.parts import size_of
from penstock.protocol.fetch import FetchRequest, FetchResult, encode_in_steps, encode_response
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.views.catalogue import Catalogue

_READ_COMMITTED = 1
_FULL_FETCH_EPOCHS = (0, -1)
"""The client requests a new session, or none."""
_LOOK_AT_CLOCK = 15
"""After so many partitions the fetch looks at the clock and lets others run if its slice is over."""
_FEW_PARTITIONS = 1000
_MANY_PARTITIONS_WAIT_MS = 500
"""The longest wait of a fetch of more than a few partitions: it holds memory that others may wait for."""


class _Gathered(NamedTuple):
    results: list[FetchResult]
    partitions: list[Partition]
    size: int
    failed: bool
    snapshots: list[PartitionSnapshot]
    derived: dict[int, DerivedTopic]
    """Which of the results are of topics without a log of their own."""


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
        brokers: KnownBrokers,
        slices: Slices | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        """Without `permissions` everything is allowed."""
        self._permissions = permissions
        self._replicas = replicas
        self._brokers = brokers
        self._catalogue = catalogue
        self._delays = delays
        self._max_bytes = limits.fetch_bytes
        self._max_wait_ms = limits.idle_connection_ms
        self._nearest = nearest
        self._slices = slices or Slices()
        self._parked = ParkedFetches(limits.parked_fetches)
        self._followers = FollowerSessions(
            replicas, self._parked, limits, clock, may_have_caught_up, self._slices, brokers.is_other
        )

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def follower_sessions(self) -> int:
        return len(self._followers)

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Ends the sessions of brokers that have left."""
        if old.alive != new.alive:
            self._followers.keep_only(new.alive)

    def close(self) -> None:
        """Answers every parked fetch with what there is."""
        self._parked.close()

    async def fetch(self, version: int, correlation_id: int, request: FetchRequest, caller: Caller) -> ResponseFrame:
        if request.replica_id >= 0:
            if not self._brokers.may_fetch_as(request.replica_id, caller):
                return await self._refused_follower(version, correlation_id, request)
            return await self._followers.fetch(version, correlation_id, request)
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            parts = encode_response(version, correlation_id, (), error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
            return ResponseFrame(parts, size_of(parts), failed=True)
        if caller.max_fetch_bytes < request.max_bytes:
            request.max_bytes = caller.max_fetch_bytes
            request.min_bytes = min(request.min_bytes, request.max_bytes)
        loop = asyncio.get_running_loop()
        max_wait_ms = self._max_wait_ms if len(request.partitions) <= _FEW_PARTITIONS else _MANY_PARTITIONS_WAIT_MS
        deadline = loop.time() + min(request.max_wait_ms, max_wait_ms) / 1000
        throttle_ms = 0
        work = Work(self._slices)
        committed_only = request.isolation_level == _READ_COMMITTED
        reads = ConsumerReads(
            committed_only=committed_only, rack=request.rack_id, listener=caller.listener, nearest=self._nearest
        )
        derived_reads = DerivedTopicReads(reads, self._catalogue, self._delays)
        found: _Gathered | None = None
        while True:
            # Checked each time: an operator may have denied by now what a parked fetch waits for.
            check = None if self._permissions is None else ReadCheck.of(self._permissions, caller)
            found = await self._gather(request, reads, derived_reads, found, work, check)
            is_enough = found.size >= request.min_bytes or found.failed or not request.partitions
            if is_enough or self._parked.is_closing or loop.time() >= deadline:
                break
            if self._parked.is_full:
                throttle_ms = max(0, int((deadline - loop.time()) * 1000))
                break
            if found.derived and derived_reads.is_searching:
                continue
            await work.pause()
            if all(
                PartitionSnapshot.of(partition, reads.end_of(partition)) == snapshot
                for partition, snapshot in zip(found.partitions, found.snapshots, strict=True)
            ):
                await self._parked.wait_for(found.partitions, reads.park, request.min_bytes - found.size, deadline)
        for at, derived in found.derived.items():
            found.results[at] = derived_reads.completed(derived, found.results[at])
        parts = await work.through(encode_in_steps(version, correlation_id, found.results, throttle_ms=throttle_ms))
        return ResponseFrame(parts, found.size + 64, found.failed)

    async def _refused_follower(self, version: int, correlation_id: int, request: FetchRequest) -> ResponseFrame:
        """The caller fetches as a follower and is none: Kafka's answer to one without CLUSTER_ACTION."""
        code = Code.TOPIC_AUTHORIZATION_FAILED
        results = [FetchResult(wanted.topic, wanted.topic_id, wanted.index, code) for wanted in request.partitions]
        parts = await Work(self._slices).through(encode_in_steps(version, correlation_id, results))
        return ResponseFrame(parts, size_of(parts), failed=True)

    async def _gather(
        self,
        request: FetchRequest,
        reads: PartitionReads,
        derived_reads: DerivedTopicReads,
        before: _Gathered | None,
        work: Work,
        check: ReadCheck | None,
    ) -> _Gathered:
        """Reads every partition once, in the order of the request, as far as the size limits allow. Skips a partition
        that was read `before`, was empty, and has not changed.
        """
        found = _Gathered([], [], 0, False, [], {})
        room = min(request.max_bytes, self._max_bytes)
        size, failed = 0, False
        # What was found already for views goes into the answer, whatever the others have by now.
        held = derived_reads.held if before is not None and before.derived else 0
        for at, wanted in enumerate(request.partitions):
            topic = wanted.topic
            if at & _LOOK_AT_CLOCK == _LOOK_AT_CLOCK:
                await work.pause()
            try:
                if before is not None and before.results[at].size == 0 and at not in before.derived:
                    partition, snapshot = before.partitions[at], before.snapshots[at]
                    if PartitionSnapshot.of(partition, reads.end_of(partition)) == snapshot:
                        found.partitions.append(partition)
                        found.snapshots.append(snapshot)
                        found.results.append(before.results[at])
                        continue
                if topic is None:
                    topic = self._replicas.seen_of(wanted.topic_id or b"")
                    if topic is None:
                        raise ApiError(Code.UNKNOWN_TOPIC_ID)
                derived = derived_reads.find(topic)
                if check is not None:
                    check.require(derived.base if isinstance(derived, TimerTopic) else topic)
                partition = self._replicas.find(topic if derived is None else derived.base, wanted.index)
                snapshot = PartitionSnapshot.of(partition, reads.end_of(partition))
                if derived is None:
                    is_first = size + held == 0
                    result = await reads.read(partition, wanted, room - size - held, is_first=is_first)
                else:
                    held -= derived_reads.held_of(derived, wanted.index)
                    found.derived[len(found.results)] = derived
                    is_first = size + held == 0
                    result = await derived_reads.read(derived, partition, wanted, room - size - held, is_first=is_first)
                found.partitions.append(partition)
                found.snapshots.append(snapshot)
                size += result.size
                # A client that is sent elsewhere, or told of an error, shall not wait.
                failed = failed or result.preferred_read_replica >= 0 or result.error_code != 0
                found.results.append(result)
            except (ApiError, StorageError) as error:
                failed = True
                found.results.append(FetchResult(wanted.topic, wanted.topic_id, wanted.index, code_of(error)))
        return found._replace(size=size, failed=failed)
