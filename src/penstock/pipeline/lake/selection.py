"""Which records of a lake are wanted: which files can have some, which rows of a table are some."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.pipeline.lake.delta import LakeFile

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything that is given has to be so; of several values one."""

    topic: str
    partitions: frozenset[int] | None = None
    first: int | None = None
    """Offset from which on."""
    end: int | None = None
    """Offset up to which, without it."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Without it."""
    keys: frozenset[bytes] | None = None
    tags: frozenset[str] | None = None
    biz_ids: frozenset[str] | None = None

    @property
    def columns(self) -> list[str]:
        """What has to be looked at to tell whether a row is wanted."""
        wanted = ["offset"]
        for column, given in (("key", self.keys), ("tags", self.tags), ("biz_id", self.biz_ids)):
            if given is not None:
                wanted.append(column)
        if self.since_ms is not None or self.until_ms is not None:
            wanted.append("timestamp")
        return wanted

    def of_files(self, files: Iterable[LakeFile]) -> list[LakeFile]:
        """Files that can have wanted rows, by what the table says of them."""
        return [file for file in files if file.topic == self.topic and self._can_have(json.loads(file.stats))]

    def of_partition(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions

    def mask(self, table: pa.Table) -> pa.Array:
        """Which rows of a table, which has the `columns`, are wanted."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from penstock.pipeline.topics.columns import INSTANT

        kept = pa.array([True] * table.num_rows)
        offsets = table.column("offset")
        if self.first is not None:
            kept = pc.and_(kept, pc.greater_equal(offsets, self.first))
        if self.end is not None:
            kept = pc.and_(kept, pc.less(offsets, self.end))
        if self.since_ms is not None:
            since = pa.scalar(self.since_ms * 1000, pa.int64()).cast(INSTANT)
            kept = pc.and_(kept, pc.greater_equal(table.column("timestamp"), since))
        if self.until_ms is not None:
            until = pa.scalar(self.until_ms * 1000, pa.int64()).cast(INSTANT)
            kept = pc.and_(kept, pc.less(table.column("timestamp"), until))
        if self.keys is not None:
            kept = pc.and_(kept, pc.is_in(table.column("key"), pa.array(sorted(self.keys), pa.binary())))
        if self.biz_ids is not None:
            kept = pc.and_(kept, pc.is_in(table.column("biz_id"), pa.array(sorted(self.biz_ids), pa.string())))
        if self.tags is not None:
            wanted = self.tags
            tagged = [not wanted.isdisjoint(each or ()) for each in table.column("tags").to_pylist()]
            kept = pc.and_(kept, pa.array(tagged, pa.bool_()))
        whole = pc.fill_null(kept, False)
        return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole

    def _can_have(self, stats: dict[str, Any]) -> bool:
        low, high = stats["minValues"], stats["maxValues"]
        if self.partitions is not None and "partition" in low:
            between = range(low["partition"], high["partition"] + 1)
            if not any(partition in between for partition in self.partitions):
                return False
        if self.first is not None and high.get("offset", self.first) < self.first:
            return False
        if self.end is not None and low.get("offset", self.end - 1) >= self.end:
            return False
        if self.since_ms is not None and "timestamp" in high and _ms(high["timestamp"]) < self.since_ms:
            return False
        return not (self.until_ms is not None and "timestamp" in low and _ms(low["timestamp"]) >= self.until_ms)


def _ms(told: str) -> int:
    """Milliseconds since 1970 of a time as statistics have it."""
    moment = datetime.fromisoformat(told.replace("Z", "+00:00"))
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
