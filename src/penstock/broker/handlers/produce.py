"""Produce: the hot path in. Work per batch, never per record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.broker.answer import Answer
from penstock.broker.leaders import Leaders
from penstock.broker.redirection import Redirection
from penstock.broker.verification import Verification, Verified
from penstock.cluster.metadata import INTERNAL_TOPICS
from penstock.errors import ApiError, Code, ProtocolError, StorageError, code_of
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.net import eager
from penstock.protocol.produce import Endpoint, ProducePartition, ProduceRequest, ProduceResult, encode_response
from penstock.records.batch import CODEC_MASK
from penstock.records.compression import Codec
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.replicas import Replicas
from penstock.storage.admission import RefusedRecordsError, RetiredError
from penstock.storage.contract import Appended

logger = logging.getLogger(__name__)

_BATCHES_FROM_VERSION = 3
"""Before it, records came as message sets, a format that Kafka 4 and this broker no longer know."""
_ZSTD_FROM_VERSION = 7
_ATTRIBUTES_LOW_BYTE = 22
_NOT_VERIFIED: Verified = {}


class ProduceHandler:
    def __init__(
        self,
        replicas: Replicas,
        verification: Verification,
        redirection: Redirection,
        leaders: Leaders,
        cannot_write: Callable[[], None],
    ) -> None:
        """`cannot_write` is told when a log has failed."""
        self._replicas = replicas
        self._leaders = leaders
        self._cannot_write = cannot_write
        self._verification = verification
        self._redirection = redirection

    async def produce(self, version: int, correlation_id: int, request: ProduceRequest) -> Answer:
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
                results = [await self._append(version, request, wanted[0], verified)]
            else:
                # Each append is made in the order of the request; only waiting for the disk overlaps.
                loop = asyncio.get_running_loop()
                started = [eager.start(loop, self._append(version, request, item, verified)) for item in wanted]
                results = [await one if isinstance(one, asyncio.Task) else one for one in started]
        failed = any(result.error_code for result in results)
        if acks == 0:
            if failed:
                # The client asked for no answer: closing the connection is the only way to make it look again.
                raise ProtocolError(f"a produce request with acks=0 failed: {results}")
            return Answer([], 0)
        endpoints: list[Endpoint] = []
        if failed:
            results = [self._leaders.named_in(result) for result in results]
            endpoints = self._leaders.endpoints(results)
        frame = encode_response(version, correlation_id, results, endpoints=endpoints)
        return Answer([frame], len(frame), failed)

    async def _append(
        self, version: int, request: ProduceRequest, wanted: ProducePartition, verified: Verified
    ) -> ProduceResult:
        topic, index, records = wanted
        acks, timeout_ms = request.acks, request.timeout_ms
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
            guard = verified.get(TopicPartition(topic, index)) if verified else None
            if isinstance(guard, ApiError):
                raise guard
            try:
                partition = self._replicas.find(topic, index)
                appended = await partition.append(records, acks, guard=guard)
            except ApiError as error:
                partition, appended = await self._redirected(version, request, wanted, records, error)
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
        self, version: int, request: ProduceRequest, wanted: ProducePartition, records: memoryview, error: ApiError
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
        if successor is None:
            raise error
        return await self._redirection.append(version, request, at, records, successor, follows=follows)


def _refused(wanted: ProducePartition, code: Code, reason: str) -> ProduceResult:
    return ProduceResult(wanted.topic, wanted.index, code, error_message=reason)
