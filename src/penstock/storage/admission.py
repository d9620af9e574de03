"""The checks that a producer's batch must pass before a log writes it, whichever engine stores it.

All checks are per batch: the header, the CRC, the topic's limits, the producer's sequence. Single records are read
only where the topic demands it (a compacted topic needs a key on every record).

A batch is checked in three steps, so that the second can run in a thread:
1. `check_batch`: size, CRC and header fields. A batch is not decompressed before these are right.
2. `inspect`: what needs the decompressed records.
3. `check_append`: what depends on the state of the log. Its result, `Checked`, is what `Log.write` takes.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code
from penstock.records.batch import (
    ASIDE_BIT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    PAIRED_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    stamp_append_time,
)
from penstock.records.compression import CODEC_BY_SETTING, Codec
from penstock.records.control import Marker, build_marker
from penstock.records.records import recompress, records_block, walk
from penstock.storage.producers import ProducedBatch, ProducerState

MAX_RECORD_ERRORS = 100
"""Records of one batch that an answer names as wrong, each with a reason."""


class RefusedRecordsError(ApiError):
    """A batch refused because of some of its records: (index in the batch, why) of each."""

    def __init__(self, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(Code.INVALID_RECORD, record_errors[0][1])
        self.record_errors = record_errors


class RetiredError(ApiError):
    """The log takes nothing new: another partition has taken its place.

    `follows` says whether the batch is what would have come next from its producer, as far as the log knows.
    """

    def __init__(self, successor: int, *, follows: bool) -> None:
        super().__init__(Code.NOT_LEADER_OR_FOLLOWER, f"the partition is retired in favour of {successor}")
        self.successor = successor
        self.follows = follows


class Inspected(NamedTuple):
    """What was found out about a batch before its append; valid while the topic has this configuration."""

    header: BatchHeader
    config: TopicConfig
    without_key: tuple[int, ...] = ()
    """Records of a batch for a compacted topic that have no key, by their index in the batch."""
    recompressed: memoryview | None = None
    """The batch in the codec that the topic asks for, if it is in another."""
    delayed: object = None
    """What of it is for later, as found by `replication.delayed_records`; None if nothing is."""
    unpacked_bytes: int = 0
    """Of its records, if they were decompressed."""


class Checked(NamedTuple):
    """A batch that has passed every check: `Log.write` may write it, unless it is a repeat.

    It is valid until the log changes. Nothing else may be written to the log between the check and the write.
    """

    batch: memoryview
    header: BatchHeader
    """As the producer sent it: the batch has no offset yet."""
    now_ms: int
    append_time_ms: int = -1
    """Set if the topic stamps the time of the append."""
    repeat_of: int | None = None
    """The base offset of the first copy if the producer sent this batch before."""
    marker: Marker | None = None
    """Set if the batch ends a transaction."""
    unpacked_bytes: int = 0
    """See `Inspected`."""


def check_batch_for(batch: memoryview, config: TopicConfig) -> BatchHeader:
    """The header of a producer's batch that a topic may take; its records are still to be inspected."""
    header = check_batch(batch, config.max_message_bytes)
    _check_fields(header, sequenced=True)
    return header


def looks_into_records(config: TopicConfig, header: BatchHeader) -> bool:
    """Whether `inspect` looks at the records of such a batch."""
    return "compact" in config.cleanup_policy or _target_codec(config, header) is not None


def inspect(batch: memoryview, header: BatchHeader, config: TopicConfig, block: memoryview) -> Inspected:
    """What the topic wants to know of a batch with these decompressed records. Pure: it may run in a thread."""
    without_key: tuple[int, ...] = ()
    if "compact" in config.cleanup_policy:
        records = walk(block, header.record_count)
        found = [index for index, record in enumerate(records) if record.key is None]
        without_key = tuple(found[:MAX_RECORD_ERRORS])
    codec = _target_codec(config, header)
    recompressed = None if codec is None else recompress(batch, codec, block)
    return Inspected(header, config, without_key, recompressed)


def _target_codec(config: TopicConfig, header: BatchHeader) -> Codec | None:
    """The codec that a batch has to be brought into."""
    if config.compression_type == "producer":
        return None
    codec = CODEC_BY_SETTING[config.compression_type]
    return None if codec == header.codec else codec


def check_append(
    batch: memoryview,
    config: TopicConfig,
    producers: ProducerState,
    now_ms: int,
    guard: int | None = None,
    *,
    is_own: bool = False,
    inspected: Inspected | None = None,
) -> Checked:
    """Checks one batch against the topic's settings and its producers; raises ApiError with Kafka's error code.

    A coordinator of this broker built a batch that `is_own`, perhaps in the name of a producer: it has no sequence
    numbers, and its CRC and keys need no check. Any other batch is inspected here unless it was `inspected` before.
    """
    if is_own:
        header = read_header(batch)
        _check_fields(header, sequenced=False)
        if len(batch) > config.max_message_bytes:
            raise _too_large(len(batch), config.max_message_bytes)
        inspected = Inspected(header, config)
    elif inspected is None:
        header = check_batch_for(batch, config)
        inspected = Inspected(header, config)
        if looks_into_records(config, header):
            inspected = inspect(batch, header, config, records_block(batch, header))
    else:
        header = inspected.header
    if inspected.without_key:
        reason = "a compacted topic takes only records that have a key"
        raise RefusedRecordsError(tuple((index, reason) for index in inspected.without_key))
    if header.producer_id >= 0 and (first := producers.check(header, guard, sequenced=not is_own)) is not None:
        # The settings may have changed since the first copy was written: they do not apply to a repeat.
        return _repeat(batch, header, now_ms, first, config)
    if inspected.recompressed is not None:
        batch = inspected.recompressed
        header = read_header(batch)
        if len(batch) > config.max_message_bytes:
            raise _too_large(len(batch), config.max_message_bytes)
    if config.message_timestamp_type == "LogAppendTime":
        stamp_append_time(batch, now_ms)
        return Checked(batch, read_header(batch), now_ms, now_ms, unpacked_bytes=inspected.unpacked_bytes)
    _check_timestamps(header, config, now_ms)
    return Checked(batch, header, now_ms, unpacked_bytes=inspected.unpacked_bytes)


def check_marker(
    producers: ProducerState, producer_id: int, producer_epoch: int, marker: Marker, now_ms: int
) -> Checked:
    """Builds the control batch that ends a producer's transaction; ApiError if a newer producer epoch or coordinator
    has fenced it.
    """
    producers.check_marker(producer_id, producer_epoch, marker.coordinator_epoch)
    batch = memoryview(build_marker(producer_id, producer_epoch, marker, now_ms))
    return Checked(batch, read_header(batch), now_ms, marker=marker)


def check_retired(
    batch: memoryview, config: TopicConfig, producers: ProducerState, now_ms: int, successor: int
) -> Checked:
    """Checks a batch sent to a retired log: RetiredError unless the log has a first copy of it."""
    header = check_batch(batch)
    _check_fields(header, sequenced=True)
    seen = producers.look_back(header) if header.producer_id >= 0 else True
    if isinstance(seen, bool):
        raise RetiredError(successor, follows=seen)
    return _repeat(batch, header, now_ms, seen, config)


def _repeat(batch: memoryview, header: BatchHeader, now_ms: int, first: ProducedBatch, config: TopicConfig) -> Checked:
    """A repeat keeps the append time of its first copy."""
    append_time_ms = first.timestamp_ms if config.message_timestamp_type == "LogAppendTime" else -1
    return Checked(batch, header, now_ms, append_time_ms, first.base_offset)


def check_batch(batch: memoryview, max_bytes: int | None = None) -> BatchHeader:
    """The header of the one batch that `batch` must be, with its size and its CRC checked."""
    if len(batch) < HEADER_BYTES:
        raise ApiError(Code.INVALID_RECORD, f"{len(batch)} bytes are no record batch")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise ApiError(Code.INVALID_RECORD, f"message format {header.magic} is not supported, only {MAGIC}")
    if header.length + LENGTH_OVERHEAD != len(batch):
        raise ApiError(Code.INVALID_RECORD, "a produce request must hold exactly one batch a partition")
    if max_bytes is not None and len(batch) > max_bytes:
        raise _too_large(len(batch), max_bytes)
    if crc32c(batch[CRC_START:]) != header.crc:
        raise ApiError(Code.CORRUPT_MESSAGE, "the batch's CRC does not match")
    return header


def _check_fields(header: BatchHeader, *, sequenced: bool) -> None:
    count = header.record_count
    if count < 1 or header.last_offset_delta != count - 1:
        raise ApiError(Code.INVALID_RECORD, f"{count} records with a last offset delta of {header.last_offset_delta}")
    if header.attributes & (CONTROL_BIT | PAIRED_BIT | ASIDE_BIT):
        raise ApiError(Code.INVALID_RECORD, "a producer may not send control batches, or halves of batches")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise ApiError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression codec {header.codec}")
    if header.producer_id >= 0:
        if (header.base_sequence >= 0) is not sequenced or header.producer_epoch < 0:
            raise ApiError(
                Code.INVALID_RECORD,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, epoch {header.producer_epoch}",
            )
    elif header.producer_id != -1:
        raise ApiError(Code.INVALID_RECORD, f"{header.producer_id} is no producer id")
    elif header.attributes & TRANSACTIONAL_BIT:
        raise ApiError(Code.INVALID_RECORD, "a transactional batch names no producer")


def _too_large(size: int, allowed: int) -> ApiError:
    return ApiError(
        Code.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, the topic allows {allowed} (max.message.bytes)"
    )


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise ApiError(
            Code.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is too far in the future (message.timestamp.after.max.ms)",
        )
    if (
        header.base_timestamp >= 0
        and now_ms - min(header.base_timestamp, header.max_timestamp) > config.message_timestamp_before_max_ms
    ):
        raise ApiError(
            Code.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is too far in the past (message.timestamp.before.max.ms)",
        )
