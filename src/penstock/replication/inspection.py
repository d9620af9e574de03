"""Looking into a producer's batch before it is appended: for delayed records, for keys, to bring it into another codec,
and whether a log that stores records one by one can read them all.

All of it needs the decompressed records, and only the producer knows how much that is. So nothing is decompressed
before the size and the CRC of the batch are right, no batch is decompressed to more than
`limits.unpacked_batch_bytes`, and what is more than a little is done in a thread. A request has one batch in a thread
at a time (`broker/handlers/produce.py`): the threads take turns between connections, and batches of one connection are
appended in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from penstock.config.broker import Limits
from penstock.errors import ApiError, Code
from penstock.records.batch import BatchHeader
from penstock.records.compression import Codec, CorruptBlockError, UnpackedTooLargeError
from penstock.records.records import records_block
from penstock.replication.partition import Partition
from penstock.storage.admission import Inspected, check_batch_for, inspect, looks_into_records

_THREADS = 2
_PACKED_ON_LOOP_BYTES = 64 * 1024
"""A compressed batch up to this size is decompressed on the event loop, ..."""
_UNPACKED_ON_LOOP_BYTES = 256 * 1024
"""... as long as it does not become more than this."""
_RECORDS_ON_LOOP = 200
"""So many records are looked at one by one on the event loop."""


class Inspection:
    """Owns the threads in which batches are decompressed and looked into."""

    def __init__(self, limits: Limits) -> None:
        self._max_unpacked = limits.unpacked_batch_bytes
        self._max_records = limits.inspected_records
        self._pool = ThreadPoolExecutor(_THREADS, "inspect")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def inspect(self, partition: Partition, batch: memoryview) -> Inspected:
        """What has to be known of a batch before it is appended to a partition; ApiError if it is refused."""
        config = partition.log.config
        header = check_batch_for(batch, config)
        looks_into = partition.log.stores_records or looks_into_records(config, header)
        if not looks_into and not partition.takes_delayed:
            return Inspected(header, config)
        if header.codec != Codec.NONE and len(batch) > _PACKED_ON_LOOP_BYTES:
            return await self._in_thread(partition, batch, header)
        try:
            block = _unpacked(batch, header, min(_UNPACKED_ON_LOOP_BYTES, self._max_unpacked))
        except UnpackedTooLargeError:
            return await self._in_thread(partition, batch, header)
        if not looks_into and not partition.asks_for_delay(block):
            return Inspected(header, config)
        if header.record_count > _RECORDS_ON_LOOP or len(block) > _UNPACKED_ON_LOOP_BYTES:
            return await self._in_thread(partition, batch, header)
        return self._look(partition, batch, header, block)

    async def _in_thread(self, partition: Partition, batch: memoryview, header: BatchHeader) -> Inspected:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._unpack_and_look, partition, batch, header)

    def _unpack_and_look(self, partition: Partition, batch: memoryview, header: BatchHeader) -> Inspected:
        try:
            block = _unpacked(batch, header, self._max_unpacked)
        except UnpackedTooLargeError:
            raise ApiError(
                Code.MESSAGE_TOO_LARGE,
                f"the batch of {len(batch)} bytes has more than {self._max_unpacked} bytes of records when it is "
                "decompressed (limits.unpacked_batch_bytes)",
            ) from None
        return self._look(partition, batch, header, block)

    def _look(self, partition: Partition, batch: memoryview, header: BatchHeader, block: memoryview) -> Inspected:
        log, config = partition.log, partition.log.config
        looks_at_each = (
            log.stores_records
            or "compact" in config.cleanup_policy
            or (partition.takes_delayed and partition.asks_for_delay(block))
        )
        if looks_at_each and header.record_count > self._max_records:
            raise ApiError(
                Code.MESSAGE_TOO_LARGE,
                f"the batch has {header.record_count} records; a batch of a compacted topic, of one in a database, or "
                f"with delayed records, may have {self._max_records} (limits.inspected_records)",
            )
        log.check_records(header, block)
        found = inspect(batch, header, config, block)
        return found._replace(delayed=partition.delayed_in(header, block), unpacked_bytes=len(block))


def _unpacked(batch: memoryview, header: BatchHeader, limit: int) -> memoryview:
    try:
        return records_block(batch, header, limit)
    except UnpackedTooLargeError:
        raise
    except CorruptBlockError as error:
        # Its CRC is right, so it was damaged before it was sent: sending it again would not help.
        raise ApiError(Code.INVALID_RECORD, str(error)) from None
