"""Messages of a topic in the lake, as brokers would have given them.

Rules:
- Only what the topic of now has left there: one that was deleted and made again had other messages at the same offsets.
- Files are left out by what the table says of them, row groups by their footers and by the columns that decide. One row
  group is in memory at a time, and of its messages one batch.
- Everything here blocks; it runs in a thread of its caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from penstock.console.pipeline.lake_view import LakeView
from penstock.sdk.ports import Received

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipeline.lake.delta import LakeFile, LakeLocation
    from penstock.pipeline.lake.record_files import RowGroup
    from penstock.pipeline.lake.selection import Selection

_COLUMNS = ["partition", "offset", "timestamp", "key", "value", "headers"]
_MICROSECONDS = 1000


class Wanted(Protocol):
    """The part of a search that columns can decide. The search looks at each message once more, masked."""

    @property
    def key(self) -> str | None: ...

    @property
    def biz_id(self) -> str | None: ...

    @property
    def tag(self) -> str | None: ...

    @property
    def since_ms(self) -> int | None: ...

    @property
    def until_ms(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class ArchivedMessages:
    """Ranges of offsets of a topic in a lake."""

    location: LakeLocation
    topic_id: str
    ranges: Mapping[int, tuple[int, int]]
    """From, until, by partition."""
    selection: Selection
    files: tuple[LakeFile, ...]
    batch_rows: int

    @property
    def total(self) -> int:
        """Of messages to look at: an upper bound."""
        offsets = sum(end - start for start, end in self.ranges.values())
        return min(offsets, sum(file.rows for file in self.files))

    def scan(
        self,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int], None] = lambda count: None,
    ) -> Generator[Received, None, None]:
        """Those that may be wanted, by day, and within a day in order."""
        from penstock.pipeline.lake.record_files import row_groups

        looked_at = 0
        for file in self.files:
            for group in row_groups(self.location, file.path):
                if is_stopped():
                    return
                if rows := self._rows_of(group):
                    for batch in self._batches(group):
                        yield from (self._received(row) for row in batch)
                        if is_stopped():
                            return
                    looked_at += rows
                    on_progress(rows)
        on_progress(max(0, self.total - looked_at))

    def first(self) -> Received | None:
        """The first of them."""
        with closing(self.scan()) as messages:
            return next(messages, None)

    def _rows_of(self, group: RowGroup) -> int:
        """How many messages of a row group lie in the ranges, as far as its footer tells; 0: none."""
        topic_id, partition, first = group.position
        if topic_id != self.topic_id or partition not in self.ranges:
            return 0
        start, end = self.ranges[partition]
        return min(group.rows, max(0, min(group.last + 1, end) - max(first, start)))

    def _batches(self, group: RowGroup) -> Iterator[list[dict[str, Any]]]:
        """The messages that may be wanted."""
        start, end = self.ranges[group.position[1]]
        selection = replace(self.selection, first=start, end=end)
        mask = selection.mask(group.file.read_row_group(group.number, columns=selection.columns))
        if not mask.true_count:
            return
        at = 0
        for batch in group.file.iter_batches(self.batch_rows, row_groups=[group.number], columns=_COLUMNS):
            yield _rows(batch.filter(mask.slice(at, batch.num_rows)))
            at += batch.num_rows

    def _received(self, row: dict[str, Any]) -> Received:
        time_us = row["timestamp"]
        return Received(
            topic=self.selection.topic,
            partition=row["partition"],
            offset=row["offset"],
            value=row["value"],
            key=row["key"],
            headers=tuple((each["key"], each["value"]) for each in row["headers"] or ()),
            timestamp_ms=None if time_us is None else time_us // _MICROSECONDS,
        )


async def archived_messages(
    lake: LakeView, topic: str, ranges: Mapping[int, tuple[int, int]], wanted: Wanted, batch_rows: int
) -> ArchivedMessages | None:
    """What a lake has of ranges of offsets; None if it has nothing of the topic."""
    archived = (await lake.look()).topics.get(topic)
    if archived is None:
        return None
    from penstock.pipeline.lake.selection import Selection

    selection = Selection(
        topic=topic,
        partitions=frozenset(ranges),
        first=min(start for start, _ in ranges.values()),
        end=max(end for _, end in ranges.values()),
        since_ms=wanted.since_ms,
        until_ms=wanted.until_ms,
        keys=_one(None if wanted.key is None else wanted.key.encode("utf-8", "surrogatepass")),
        tags=_one(wanted.tag),
        biz_ids=_one(wanted.biz_id),
    )
    files = await lake.run(lambda opened: selection.of_files(opened.files(topic)))
    ordered = sorted(files, key=lambda file: (file.date, file.path))
    return ArchivedMessages(lake.location(), archived.topic_id, ranges, selection, tuple(ordered), batch_rows)


def _one(value: Any) -> frozenset[Any] | None:
    return None if value is None else frozenset({value})


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """With times as microseconds: a time of Python's has no such range."""
    import pyarrow as pa

    index = batch.schema.get_field_index("timestamp")
    times = batch.column(index).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    found: list[dict[str, Any]] = batch.set_column(index, "timestamp", times).to_pylist()
    return found
