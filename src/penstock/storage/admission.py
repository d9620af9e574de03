"""What a producer's batch must look like before any log takes it, whichever engine stores it.

Checks are per batch: the header, the CRC, the topic's limits, the producer's sequence. Single records are looked at
only where the topic demands it (a compacted topic needs a key on every record).
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

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
from penstock.records.records import recompress, records_block, walk
from penstock.storage.producers import ProducedBatch, ProducerState


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


class Admitted(NamedTuple):
    """A batch that may be appended, and what the log needs to know of it."""

    batch: memoryview
    header: BatchHeader
    append_time_ms: int
    repeat_of: int | None
    """The base offset of the first copy if the producer sent this batch before."""


def admit(
    batch: memoryview,
    config: TopicConfig,
    producers: ProducerState,
    now_ms: int,
    guard: int | None = None,
    *,
    is_own: bool = False,
) -> Admitted:
    """Checks one batch of a produce request; raises ApiError with what Kafka answers.

    One of our `own` was built by a coordinator, perhaps in the name of a producer: it has no sequence numbers, and
    what was just computed is not computed again.
    """
    header = read_header(batch) if is_own else check_batch(batch)
    _check_fields(header, sequenced=not is_own)
    if len(batch) > config.max_message_bytes:
        raise _too_large(len(batch), config)
    if "compact" in config.cleanup_policy and not is_own:
        _check_keys(batch, header)
    if header.producer_id >= 0 and (first := producers.check(header, guard, sequenced=not is_own)) is not None:
        # Nothing is asked of it that may have changed since it was taken.
        return _repeat(batch, header, first, config)
    if config.compression_type != "producer":
        batch = recompress(batch, CODEC_BY_SETTING[config.compression_type])
        header = read_header(batch)
        if len(batch) > config.max_message_bytes:
            raise _too_large(len(batch), config)
    if config.message_timestamp_type == "LogAppendTime":
        stamp_append_time(batch, now_ms)
        return Admitted(batch, read_header(batch), now_ms, None)
    _check_timestamps(header, config, now_ms)
    return Admitted(batch, header, -1, None)


def look_back(batch: memoryview, config: TopicConfig, producers: ProducerState, successor: int) -> Admitted:
    """What a retired log says to a batch: where it lies if the producer sent it before; else RetiredError."""
    header = check_batch(batch)
    _check_fields(header, sequenced=True)
    seen = producers.look_back(header) if header.producer_id >= 0 else True
    if isinstance(seen, bool):
        raise RetiredError(successor, follows=seen)
    return _repeat(batch, header, seen, config)


def _repeat(batch: memoryview, header: BatchHeader, first: ProducedBatch, config: TopicConfig) -> Admitted:
    """It keeps the time that it was given the first time."""
    append_time_ms = first.timestamp_ms if config.message_timestamp_type == "LogAppendTime" else -1
    return Admitted(batch, header, append_time_ms, first.base_offset)


def check_batch(batch: memoryview) -> BatchHeader:
    """The header of the one batch that `batch` must be, with its CRC checked."""
    if len(batch) < HEADER_BYTES:
        raise ApiError(Code.INVALID_RECORD, f"{len(batch)} bytes are no record batch")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise ApiError(Code.INVALID_RECORD, f"message format {header.magic} is not supported, only {MAGIC}")
    if header.length + LENGTH_OVERHEAD != len(batch):
        raise ApiError(Code.INVALID_RECORD, "a produce request must hold exactly one batch a partition")
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


def _too_large(size: int, config: TopicConfig) -> ApiError:
    return ApiError(
        Code.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes, the topic allows {config.max_message_bytes} (max.message.bytes)",
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


def _check_keys(batch: memoryview, header: BatchHeader) -> None:
    records = walk(records_block(batch, header), header.record_count)
    without_key = [index for index, record in enumerate(records) if record.key is None]
    if without_key:
        reason = "a compacted topic takes only records that have a key"
        raise RefusedRecordsError(tuple((index, reason) for index in without_key))
