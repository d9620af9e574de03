"""What a task of the archive does: reads its pieces from the brokers and writes them to files of the lake."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.pipeline.archive.plan import OffsetRange, Task
from penstock.pipeline.failure import DataLossError
from penstock.pipeline.lake.delta import LakeFile, LakeLocation
from penstock.pipeline.lake.record_files import RecordFiles
from penstock.pipeline.lake.record_table import FILE_SCHEMA, Anchor
from penstock.pipeline.topics.columns import Columns, time_of
from penstock.pipeline.topics.range_reader import RangeReader

if TYPE_CHECKING:
    from confluent_kafka import Message

_MADE = [{"timestamp_type": "timestampType"}.get(name, name) for name in FILE_SCHEMA.names if name != "topic_id"]


@dataclass(frozen=True, slots=True)
class Archived:
    """What became of a piece."""

    piece: OffsetRange
    rows: int
    last: Anchor | None
    """Its last record, if it had any."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task did."""

    files: tuple[LakeFile, ...]
    pieces: tuple[Archived, ...]


def archive(kafka: Mapping[str, str], location: LakeLocation, task: Task, poll_timeout_ms: int) -> TaskResult:
    """Files with all records of the task's pieces."""
    files = RecordFiles(location, task.topic, task.length)
    today = datetime.now(UTC).date()
    longest = max(piece.range.length for piece in task.pieces)
    done = []
    try:
        with RangeReader(kafka, longest=longest, fail_on_data_loss=True, poll_timeout_ms=poll_timeout_ms) as fetcher:
            for piece in task.pieces:
                rows, last = 0, None
                for messages in _records(fetcher, piece):
                    files.write(batch_for(messages, piece.range.topic_id), today=today)
                    rows += len(messages)
                    last = messages[-1]
                files.end_partition()
                done.append(Archived(piece, rows, None if last is None else anchor_of(last)))
            fetcher.verify(task.topic, task.pieces[0].range.topic_id)
        return TaskResult(tuple(files.close()), tuple(done))
    except BaseException:
        files.discard()
        raise


def batch_for(messages: Sequence[Message], topic_id: str) -> pa.RecordBatch:
    """Messages as a file has them."""
    made = Columns(messages)
    ids = pa.repeat(pa.scalar(topic_id), len(messages))
    return pa.RecordBatch.from_arrays([ids, *(made[column] for column in _MADE)], schema=FILE_SCHEMA)


def anchor_of(message: Message) -> Anchor:
    """By which a record is known again."""
    offset = message.offset()
    assert offset is not None
    crc = zlib.crc32(repr(time_of(message)).encode())
    for part in (message.key(), message.value()):
        crc = zlib.crc32(b"\0" if part is None else b"\1" + bytes(part), crc)
    return Anchor(offset, crc)


def _records(fetcher: RangeReader, piece: OffsetRange) -> Iterator[Sequence[Message]]:
    """The piece's messages; first of all the anchor is read, compared, and left out."""
    wanted, anchor = piece.range, piece.anchor
    start = wanted.start if anchor is None else anchor.offset
    for messages in fetcher.read(replace(wanted, start=start)):
        if anchor is not None and messages[0].offset() == anchor.offset and anchor_of(messages[0]) != anchor:
            raise DataLossError(
                f"{wanted.at}: the record at offset {anchor.offset} is not the one that was archived: "
                "the log was cut and written anew"
            )
        if (messages[0].offset() or 0) < wanted.start:
            messages = [each for each in messages if (each.offset() or 0) >= wanted.start]
        if messages:
            yield messages
