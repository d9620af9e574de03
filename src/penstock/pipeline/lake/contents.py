"""What a lake has of each topic, from the Delta log alone: no data file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TopicContents:
    """A topic in a lake."""

    topic: str
    rows: int
    size_bytes: int
    files: int
    first_day: str
    last_day: str
    oldest_ms: int | None
    """None if no record of it has a time."""
    newest_ms: int | None


def contents_of(actions: pa.Table) -> tuple[TopicContents, ...]:
    """By name, from the table of files of a Delta table."""
    import pyarrow.compute as pc

    if not actions.num_rows:
        return ()
    wanted = [
        ("num_records", "sum"),
        ("size_bytes", "sum"),
        ("path", "count"),
        ("partition.date", "min"),
        ("partition.date", "max"),
    ]
    # A table whose files have no times has no such columns.
    wanted += [
        (name, how)
        for name, how in (("min.timestamp", "min"), ("max.timestamp", "max"))
        if name in actions.column_names
    ]
    grouped = actions.group_by("partition.topic").aggregate(wanted)
    ordered = grouped.take(pc.sort_indices(grouped, [("partition.topic", "ascending")]))
    return tuple(
        TopicContents(
            topic=row["partition.topic"],
            rows=row["num_records_sum"] or 0,
            size_bytes=row["size_bytes_sum"] or 0,
            files=row["path_count"],
            first_day=str(row["partition.date_min"]),
            last_day=str(row["partition.date_max"]),
            oldest_ms=_ms(row.get("min.timestamp_min")),
            newest_ms=_ms(row.get("max.timestamp_max")),
        )
        for row in ordered.to_pylist()
    )


def _ms(moment: Any) -> int | None:
    return int(moment.timestamp() * 1000) if isinstance(moment, datetime) else None
