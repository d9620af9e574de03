"""How large messages are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.pipeline.reports.facts import percentiles, total_bytes
from penstock.pipeline.reports.results import Asked, Columns, Figure, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "Message sizes"
NOTE = "Key, value and headers together, as consumers get them; on disk and on the wire batches may be compressed."


def tables(facts: DataFrame) -> list[Asked]:
    sized = facts.withColumn("size", total_bytes())
    by_topic = (
        sized.groupBy("topic")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.round(F.avg("size"), 1).alias("mean"),
            *percentiles(F.col("size")),
            F.round(F.avg("key_bytes"), 1).alias("mean_key"),
            F.round(F.avg("header_bytes"), 1).alias("mean_headers"),
            F.count_if("is_tombstone").alias("tombstones"),
        )
        .orderBy(F.desc("bytes"), "topic")
    )
    # The power of two that it reaches; what is empty is with what has one byte.
    power = F.floor(F.log2(F.greatest(F.col("size"), F.lit(1)))).cast("int")
    spread = sized.groupBy("topic", power.alias("power")).agg(F.count("*").alias("messages")).orderBy("power", "topic")
    return [
        Asked("sizes", "Sizes in bytes, by topic", by_topic),
        Asked("size_spread", "Messages by size, in powers of two", spread),
    ]


def figures(results: Sequence[Result]) -> list[Figure]:
    counted: dict[int, float] = {}
    for row in results[1].rows:
        counted[row["power"]] = counted.get(row["power"], 0.0) + row["messages"]
    if not counted:
        return []
    powers = range(min(counted), max(counted) + 1)
    names = [f"{_words(1 << power)}+" for power in powers]
    return [Columns("Messages by size", "messages", names, {"messages": [counted.get(each, 0.0) for each in powers]})]


def _words(size: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"
