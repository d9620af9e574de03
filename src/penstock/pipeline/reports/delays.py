"""Whether delayed messages came when they were due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.pipeline.reports.facts import milliseconds, percentiles
from penstock.pipeline.reports.results import Asked, Columns, Figure, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "Delay accuracy"
NOTE = (
    "A delayed message has two times when it is delivered: the one it was due at (penstock-deliver-at) and its "
    "timestamp, which is that of delivery. Their difference is how late it was. A message that was sent after its "
    "own due time is delivered at once and counts as late by as much: records do not tell it apart."
)

_BOUNDS_MS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 60_000)


def tables(facts: DataFrame) -> list[Asked]:
    late = facts.where(F.col("due").isNotNull() & F.col("timestamp").isNotNull()).select(
        "topic", milliseconds(F.col("timestamp"), F.col("due")).alias("late_ms")
    )
    by_topic = (
        late.groupBy("topic")
        .agg(
            F.count("*").alias("messages"),
            F.count_if(F.col("late_ms") < 0).alias("early"),
            *percentiles(F.col("late_ms"), prefix="late_", unit="_ms"),
        )
        .orderBy("topic")
    )
    bound = F.lit(None).cast("long")
    for each in _BOUNDS_MS:
        bound = F.when(F.col("late_ms") >= each, F.lit(each)).otherwise(bound)
    spread = (
        late.withColumn("from_ms", bound)
        .groupBy("from_ms")
        .agg(F.count("*").alias("messages"))
        .orderBy(F.asc_nulls_first("from_ms"))
    )
    return [
        Asked("delays", "How late delayed messages were, by topic", by_topic),
        Asked("delay_spread", "How late they were, in steps", spread),
    ]


def figures(results: Sequence[Result]) -> list[Figure]:
    counted = {row["from_ms"]: float(row["messages"]) for row in results[1].rows}
    if not counted:
        return []
    steps: list[int | None] = [*([None] if None in counted else []), *_BOUNDS_MS]
    used = [number for number, step in enumerate(steps) if step in counted]
    shown = steps[: used[-1] + 1]
    names = ["early" if step is None else f"{_words(step)}+" for step in shown]
    return [Columns("How late", "messages", names, {"messages": [counted.get(step, 0.0) for step in shown]})]


def _words(time_ms: int) -> str:
    return f"{time_ms} ms" if time_ms < 1000 else f"{time_ms // 1000} s"
