"""What a task of a replay does: sends the history of a partition, in order, in transactions that say how far it got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.lake.stored_rows import Stored, wanted_rows
from penstock.pipeline.topics.marked_producer import Mark, MarkedProducer
from penstock.pipeline.topics.range_reader import RangeReader
from penstock.pipeline.topics.ranges import Range
from penstock.pipeline.topics.row_records import OutgoingRecord

if TYPE_CHECKING:
    import pyarrow as pa

REPLAY_OF = "penstock-replay-of"
"""Header: topic/partition/offset of the record that this one is a copy of."""

_CHUNK_ROWS = 20_000
_CHUNK_BYTES = 64 << 20
_POLL_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What all tasks of a replay have in common."""

    kafka: Mapping[str, str]
    location: LakeLocation
    selection: Selection
    target: str
    partitions: int
    """Of the target."""
    keeps_time: bool


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """The history of one partition, then perhaps what the log has behind it."""

    name: str
    partition: int
    stored: tuple[Stored, ...]
    start: int
    """Offset from which on nothing was replayed, as far as the driver knows."""
    live: Range | None = None

    @property
    def end(self) -> int:
        """Offset behind the last one that it looks at."""
        if self.live is not None:
            return self.live.end
        return self.stored[-1].last + 1 if self.stored else self.start


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a task got."""

    name: str
    position: int
    rows: int


def replay(plan: ReplayPlan, task: ReplayTask) -> Replayed:
    """Sends what has not been sent."""
    with MarkedProducer(plan.kafka, task.name) as producer:
        mark = producer.open()
        begin = max(task.start, mark.number if mark is not None else 0)
        rows = 0
        for chunk, position in _chunks(plan, task, begin):
            producer.send(chunk, lambda position=position: Mark(position, ""), plan.target)  # type: ignore[misc]
            rows += len(chunk)
        return Replayed(task.name, max(begin, task.end), rows)


def _chunks(plan: ReplayPlan, task: ReplayTask, begin: int) -> Iterator[tuple[list[OutgoingRecord], int]]:
    """Records for one transaction at a time, with the offset behind the last; the end of the task at last."""
    chunk: list[OutgoingRecord] = []
    size = 0
    for offset, record in chain(_history(plan, task, begin), _live(plan, task, begin)):
        chunk.append(record)
        size += len(record.value or b"")
        if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk, offset + 1
            chunk, size = [], 0
    if chunk or begin < task.end:
        yield chunk, max(begin, task.end)


def _history(plan: ReplayPlan, task: ReplayTask, begin: int) -> Iterator[tuple[int, OutgoingRecord]]:
    selection = replace(plan.selection, first=max(begin, plan.selection.first or 0))
    for table in wanted_rows(plan.location, task.stored, selection):
        for row in _with_times(table).to_pylist():
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            yield row["offset"], _outgoing(plan, row, headers)


def _live(plan: ReplayPlan, task: ReplayTask, begin: int) -> Iterator[tuple[int, OutgoingRecord]]:
    if task.live is None or begin >= task.live.end:
        return
    wanted = replace(task.live, start=max(task.live.start, begin))
    with RangeReader(
        plan.kafka, longest=wanted.length, fail_on_data_loss=True, poll_timeout_ms=_POLL_TIMEOUT_MS
    ) as fetcher:
        for messages in fetcher.read(wanted):
            for message in messages:
                kind, time_ms = message.timestamp()
                row = {
                    "partition": wanted.partition,
                    "offset": message.offset(),
                    "key": message.key(),
                    "value": message.value(),
                    "time_ms": time_ms if kind else None,
                }
                headers: Any = message.headers() or ()
                yield int(message.offset() or 0), _outgoing(plan, row, list(headers))
        fetcher.verify(wanted.topic, wanted.topic_id)


def _outgoing(plan: ReplayPlan, row: Mapping[str, Any], headers: list[Any]) -> OutgoingRecord:
    source = f"{plan.selection.topic}/{row['partition']}/{row['offset']}"
    partition = row["partition"] if row["partition"] < plan.partitions else -1
    time_ms = row["time_ms"] if plan.keeps_time and row["time_ms"] is not None else 0
    marked = [*headers, (REPLAY_OF, source.encode())]
    return OutgoingRecord(plan.target, row["value"], row["key"], partition, max(0, time_ms), marked)


def _with_times(table: pa.Table) -> pa.Table:
    """With times as milliseconds, and without columns that a record is not made of."""
    import pyarrow as pa
    import pyarrow.compute as pc

    times = pc.divide(table.column("timestamp").cast(pa.int64()), 1000)
    return table.select(["partition", "offset", "key", "value", "headers"]).append_column("time_ms", times)
