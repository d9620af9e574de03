"""Produce: the hot path in. Work per batch, never per record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.broker.leader_endpoints import LeaderEndpoints
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
    ) -> None:
        """`cannot_write` is told when a log has failed."""
        self._replicas = replicas
        self._leaders = leaders
        self._cannot_write = cannot_write
        self._verification = verification
        self._redirection = redirection
        self._inspection = inspection
        self._slices = slices

    async def produce(
        self, version: int, correlation_id: int, request: ProduceRequest, caller: Caller
    ) -> ResponseFrame:
        """Appends every batch of the request; each partition has its own outcome."""
        acks, wanted = request.acks, request.partitions
        if acks not in (-1, 0, 1):
            results = [_refused(item, Code.INVALID_REQUIRED_ACKS, f"acks={acks} means nothing") for item in wanted]
        elif version < _BATCHES_FROM_VERSION:
            results = [_refused(item, Code.UNSUPPORTED_VERSION, f"Produce v{version}") for item in wanted]
        else:
            verified = _NOT_VERIFIED
            if request.transactional_id is not None:
                verified = await self._verification.verify(version, request.transactional_id, wanted)
            if len(wanted) == 1:
                results = [
                    await self._append(version, request, wanted[0], await self._look(version, wanted[0]), verified)
                ]
            else:
                results = await self._append_all(version, request, verified)
        failed = any(result.error_code for result in results)
        if acks == 0:
            if failed:
                # The client asked for no answer: closing the connection is the only way to make it look again.
                raise ProtocolError(f"a produce request with acks=0 failed: {results}")
            return ResponseFrame([], 0)
        endpoints: list[NodeEndpoint] = []
        if failed:
            results = [self._leaders.named_in(result) async for result in Work(self._slices).over(results)]
            endpoints = self._leaders.endpoints(results, caller.listener)
        if len(results) <= _FEW_RESULTS:
            frame = encode_response(version, correlation_id, results, endpoints=endpoints)
        else:
            steps = encode_in_steps(version, correlation_id, results, endpoints=endpoints)
            frame = await Work(self._slices).through(steps)
        return ResponseFrame([frame], len(frame), failed)

    async def _append_all(self, version: int, request: ProduceRequest, verified: Verified) -> list[ProduceResult]:
        """Each append is made in the order of the request, and only waiting for the disk overlaps.

        A batch is looked into when those before it are on their way: were all looked into at once, one that needs no
        thread for it would overtake another for the same partition that does.
        """
        loop = asyncio.get_running_loop()
        started: list[ProduceResult | asyncio.Task[ProduceResult]] = []
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
            partition.check_leads()
            return partition, records, await self._inspection.inspect(partition, records)
        except Exception as error:
            return error

    async def _append(
        self, version: int, request: ProduceRequest, wanted: ProducePartition, found: Found, verified: Verified
    ) -> ProduceResult:
        topic, index, _ = wanted
        acks, timeout_ms = request.acks, request.timeout_ms
        try:
            guard = verified.get(TopicPartition(topic, index)) if verified else None
            if isinstance(guard, ApiError):
                raise guard
            try:
                if isinstance(found, Exception):
                    raise found
                partition, records, inspected = found
                appended = await partition.append(records, acks, guard=guard, inspected=inspected)
            except ApiError as error:
                partition, appended = await self._redirected(version, request, wanted, error)
            if acks == ALL_IN_SYNC and partition.high_watermark <= appended.last_offset:
                await partition.acknowledged(appended.last_offset, partition.term, timeout_ms)
            return ProduceResult(
                topic, index, 0, appended.base_offset, appended.append_time_ms, partition.log.start_offset
            )
        except RefusedRecordsError as error:
            return ProduceResult(
                topic, index, error.code, error_message=error.message, record_errors=error.record_errors
            )
        except (ApiError, StorageError) as error:
            if isinstance(error, StorageError):
                self._cannot_write()
            return _refused(wanted, code_of(error), str(error))
        except Exception as error:
            logger.exception("an append failed for an unknown reason", extra=fields(topic=topic, partition=index))
            return _refused(wanted, Code.UNKNOWN_SERVER_ERROR, str(error))

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


def _refused(wanted: ProducePartition, code: Code, reason: str) -> ProduceResult:
    return ProduceResult(wanted.topic, wanted.index, code, error_message=reason)
