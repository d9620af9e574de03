"""Produce: the hot path in. Work per batch, never per record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, cast

from penstock.background_loop import shielded
from penstock.broker.leader_endpoints import LeaderEndpoints
from penstock.broker.permissions.access import Permissions
from penstock.broker.permissions.hot_paths import permitted_writes
from penstock.broker.requests.response_frame import ResponseFrame
from penstock.broker.requests.sliced_work import Slices, Work
from penstock.broker.retired_redirection import RetiredRedirection
from penstock.broker.transaction_verification import TransactionVerification, Verified
from penstock.cluster.metadata import INTERNAL_TOPICS
from penstock.errors import ApiError, Code, ProtocolError, StorageError, code_of
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.net import eager
from penstock.net.caller import Caller
from penstock.protocol.produce import (
    NodeEndpoint,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    encode_in_steps,
    encode_response,
)
from penstock.records.batch import CODEC_MASK
from penstock.records.compression import Codec
from penstock.replication.inspection import Inspection
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.replicas import Replicas
from penstock.storage.admission import Inspected, RefusedRecordsError, RetiredError
from penstock.storage.contract import Appended

logger = logging.getLogger(__name__)

_BATCHES_FROM_VERSION = 3
"""Before it, records came as message sets, a format that Kafka 4 and this broker no longer know."""
_ZSTD_FROM_VERSION = 7
_ATTRIBUTES_LOW_BYTE = 22
_NOT_VERIFIED: Verified = {}
_FEW_RESULTS = 500
"""So many are encoded in one go."""


class Unacknowledged(NamedTuple):
    """A batch that is written, and that a disk, a database or followers have to have before it is acknowledged."""

    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    partition: Partition
    appended: Appended
    term: int
    """Of the partition, when it was written."""
    securing: asyncio.Task[None] | None
    """The partition's wait for a disk or a database."""


Outcome = ProduceResult | Unacknowledged
Found = tuple[Partition, memoryview, Inspected] | Exception
"""Where a batch goes, the batch, and what is known of it; or why it is refused."""


class ProduceHandler:
    def __init__(
        self,
        replicas: Replicas,
        verification: TransactionVerification,
        redirection: RetiredRedirection,
        inspection: Inspection,
        leaders: LeaderEndpoints,
        cannot_write: Callable[[], None],
        slices: Slices,
        permissions: Permissions | None = None,
    ) -> None:
        """The handler calls `cannot_write` when a log has failed. Without `permissions` it allows everything."""
        self._permissions = permissions
        self._replicas = replicas
        self._leaders = leaders
        self._cannot_write = cannot_write
        self._verification = verification
        self._redirection = redirection
        self._inspection = inspection
        self._slices = slices

    async def produce(
        self, version: int, correlation_id: int, request: ProduceRequest, caller: Caller
    ) -> ResponseFrame | Coroutine[Any, Any, ResponseFrame]:
        """Appends every batch of the request; each partition has its own outcome.

        If all batches are written and some of them wait for a disk, a database or followers, the answer is what a
        coroutine gives that needs neither the request nor its frame.
        """
        denied: list[ProduceResult] = []
        if self._permissions is not None:
            request, denied = permitted_writes(self._permissions, request, caller)
        acks, wanted = request.acks, request.partitions
        outcomes: list[Outcome]
        if acks not in (-1, 0, 1):
            outcomes = [_refused(item, Code.INVALID_REQUIRED_ACKS, f"acks={acks} means nothing") for item in wanted]
        elif version < _BATCHES_FROM_VERSION:
            outcomes = [_refused(item, Code.UNSUPPORTED_VERSION, f"Produce v{version}") for item in wanted]
        else:
            verified = _NOT_VERIFIED
            if request.transactional_id is not None:
                verified = await self._verification.verify(version, request.transactional_id, wanted)
            if len(wanted) == 1:
                found = await self._look(version, wanted[0])
                outcomes = [await self._append(version, request, wanted[0], found, verified)]
            else:
                outcomes = await self._append_all(version, request, verified)
        if denied:
            outcomes = [*outcomes, *denied]
        if Unacknowledged in map(type, outcomes):
            acknowledged = self._acknowledged(outcomes, acks, request.timeout_ms)
            if acks != 0 and len(outcomes) <= _FEW_RESULTS:
                # What a request for more partitions holds, a connection holds once.
                return self._answer(version, correlation_id, acknowledged, caller.listener)
            results = await acknowledged
        else:
            results = cast(list[ProduceResult], outcomes)
        failed = any(result.error_code for result in results)
        if acks == 0:
            if failed:
                # The client expects no answer: only a closed connection makes it refresh its metadata.
                raise ProtocolError(f"a produce request with acks=0 failed: {results}")
            return ResponseFrame([], 0)
        if failed or len(results) > _FEW_RESULTS:  # else there is nothing to look up or to pause for
            return await self._response(version, correlation_id, results, caller.listener)
        frame = encode_response(version, correlation_id, results)
        return ResponseFrame([frame], len(frame))

    async def _answer(
        self,
        version: int,
        correlation_id: int,
        acknowledged: Coroutine[Any, Any, Sequence[ProduceResult]],
        listener: str,
    ) -> ResponseFrame:
        return await self._response(version, correlation_id, await acknowledged, listener)

    async def _acknowledged(self, outcomes: Sequence[Outcome], acks: int, timeout_ms: int) -> Sequence[ProduceResult]:
        """The results, when every batch is where it has to be, or it is known that it does not get there."""
        loop = asyncio.get_running_loop()
        started = [
            eager.start(loop, self._settled(one, acks, timeout_ms)) if isinstance(one, Unacknowledged) else one
            for one in outcomes
        ]
        return [await one if isinstance(one, asyncio.Task) else one for one in started]

    async def _settled(self, waiting: Unacknowledged, acks: int, timeout_ms: int) -> ProduceResult:
        topic, index, partition, appended, term, securing = waiting
        try:
            if securing is not None:
                await shielded(securing)
            if acks == ALL_IN_SYNC:
                await partition.acknowledged(appended.last_offset, term, timeout_ms)
        except Exception as error:
            return self._failed(topic, index, error)
        return _result(topic, index, partition, appended)

    async def _response(
        self, version: int, correlation_id: int, results: Sequence[ProduceResult], listener: str
    ) -> ResponseFrame:
        failed = any(result.error_code for result in results)
        endpoints: list[NodeEndpoint] = []
        if failed:
            results = [self._leaders.named_in(result) async for result in Work(self._slices).over(results)]
            endpoints = self._leaders.endpoints(results, listener)
        if len(results) <= _FEW_RESULTS:
            frame = encode_response(version, correlation_id, results, endpoints=endpoints)
        else:
            steps = encode_in_steps(version, correlation_id, results, endpoints=endpoints)
            frame = await Work(self._slices).through(steps)
        return ResponseFrame([frame], len(frame), failed)

    async def _append_all(self, version: int, request: ProduceRequest, verified: Verified) -> list[Outcome]:
        """Each append is made in the order of the request, and only waiting for the disk overlaps.

        A batch is looked into when those before it are on their way: were all looked into at once, one that needs no
        thread for it would overtake another for the same partition that does.
        """
        loop = asyncio.get_running_loop()
        started: list[Outcome | asyncio.Task[Outcome]] = []
        async for item in Work(self._slices).over(request.partitions):
            found = await self._look(version, item)
            started.append(eager.start(loop, self._append(version, request, item, found, verified)))
        return [await one if isinstance(one, asyncio.Task) else one for one in started]

    async def _look(self, version: int, wanted: ProducePartition) -> Found:
        """Finds the partition and looks into the batch; the reason if the batch is refused."""
        topic, index, records = wanted
        try:
            if records is None or len(records) == 0:
                raise ApiError(Code.INVALID_RECORD, "there is no record batch")
            if (
                version < _ZSTD_FROM_VERSION
                and len(records) > _ATTRIBUTES_LOW_BYTE
                and records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK == Codec.ZSTD
            ):
                raise ApiError(Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 or above")
            if topic in INTERNAL_TOPICS:
                raise ApiError(Code.INVALID_TOPIC_EXCEPTION, f"{topic} is written by brokers alone")
            partition = self._replicas.find(topic, index)
            partition.check_is_leader()
            return partition, records, await self._inspection.inspect(partition, records)
        except Exception as error:
            return error

    async def _append(
        self, version: int, request: ProduceRequest, wanted: ProducePartition, found: Found, verified: Verified
    ) -> Outcome:
        topic, index, _ = wanted
        acks = request.acks
        try:
            guard = verified.get(TopicPartition(topic, index)) if verified else None
            try:
                if isinstance(guard, ApiError):
                    raise guard
                if isinstance(found, Exception):
                    raise found
                partition, records, inspected = found
                written = await partition.write(records, acks, guard=guard, inspected=inspected)
                appended, term = written.appended, written.term
                if partition.log.secures_later:
                    securing = partition.secure(written)
                    if securing is not None:
                        return Unacknowledged(topic, index, partition, appended, term, securing)
                else:
                    await partition.secured(written)
            except ApiError as error:
                partition, appended = await self._redirected(version, request, wanted, error)
                term = partition.term
            if acks == ALL_IN_SYNC and partition.high_watermark <= appended.last_offset:
                return Unacknowledged(topic, index, partition, appended, term, None)
            return _result(topic, index, partition, appended)
        except Exception as error:
            return self._failed(topic, index, error)

    def _failed(self, topic: str, index: int, error: Exception) -> ProduceResult:
        """The result for a batch that is not in the log, or not as safe as it has to be."""
        if isinstance(error, RefusedRecordsError):
            return ProduceResult(
                topic, index, error.code, error_message=error.message, record_errors=error.record_errors
            )
        if isinstance(error, ApiError | StorageError):
            if isinstance(error, StorageError):
                self._cannot_write()
            return ProduceResult(topic, index, code_of(error), error_message=str(error))
        logger.error(
            "an append failed for an unknown reason", exc_info=error, extra=fields(topic=topic, partition=index)
        )
        return ProduceResult(topic, index, Code.UNKNOWN_SERVER_ERROR, error_message=str(error))

    async def _redirected(
        self, version: int, request: ProduceRequest, wanted: ProducePartition, error: ApiError
    ) -> tuple[Partition, Appended]:
        """Appends to the successor of a partition that is retired or gone; any other error stays what it is."""
        at = TopicPartition(wanted.topic, wanted.index)
        if isinstance(error, RetiredError):
            successor: int | None = error.successor
            follows = error.follows
        else:
            is_unknown = error.code is Code.UNKNOWN_TOPIC_OR_PARTITION
            successor = self._redirection.successor_of_gone(at) if is_unknown else None
            follows = True
        if successor is None or wanted.records is None:
            raise error
        return await self._redirection.append(version, request, at, wanted.records, successor, follows=follows)


def _result(topic: str, index: int, partition: Partition, appended: Appended) -> ProduceResult:
    return ProduceResult(topic, index, 0, appended.base_offset, appended.append_time_ms, partition.log.start_offset)


def _refused(wanted: ProducePartition, code: Code, reason: str) -> ProduceResult:
    return ProduceResult(wanted.topic, wanted.index, code, error_message=reason)
