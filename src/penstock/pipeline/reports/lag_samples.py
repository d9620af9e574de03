"""The lag of groups at one moment: a sample, to be kept with those of other moments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.pipeline.topics.kafka import Brokers

if TYPE_CHECKING:
    import pyarrow as pa

# Groups that no consumer is a member of: they remember what was written already.
_NOT_CONSUMERS = ("penstock-spark.", "penstock-replay.")


def sample(kafka: Mapping[str, str], topics: Collection[str], now: datetime) -> pa.Table:
    """The lag of every group in each partition of the topics for which it has committed an offset."""
    import pyarrow as pa

    brokers = Brokers(kafka)
    committed = brokers.committed_by_groups(topics, _NOT_CONSUMERS)
    ends = brokers.end_offsets(sorted({at for each in committed.values() for at in each}), committed=False)
    rows = [
        {
            "at": now,
            "group": group,
            "topic": at.topic,
            "partition": at.partition,
            "committed": offset,
            "end": ends[at],
            "lag": max(0, ends[at] - offset),
        }
        for group, each in committed.items()
        for at, offset in each.items()
    ]
    return pa.Table.from_pylist(rows, _schema())


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("group", pa.string()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("committed", pa.int64()),
            ("end", pa.int64()),
            ("lag", pa.int64()),
        ]
    )
