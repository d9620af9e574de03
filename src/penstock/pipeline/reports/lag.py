"""How far groups were behind, over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.pipeline.reports.facts import milliseconds
from penstock.pipeline.reports.results import Asked, Figure, Lines, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "Consumer lag"
NOTE = (
    "Brokers tell where groups stand now and nothing of before, so every report takes a sample and keeps it in the "
    "lake; --watch takes one again and again. Lag is the end of a partition less the offset that the group has "
    "committed, so it counts transaction markers and other gaps too. Waiting is the age of the oldest record that a "
    "group had not committed when the last sample was taken, if that record is in the window."
)

_MOST_LINES = 8


def tables(facts: DataFrame, samples: DataFrame, now: datetime) -> list[Asked]:
    """`samples` has those of this run, at `now`, and those of earlier ones that lie in the window."""
    over_time = (
        samples.groupBy("at", "group", "topic")
        .agg(F.sum("lag").alias("lag"), F.count_if(F.col("lag") > 0).alias("partitions_behind"))
        .orderBy("at", "group", "topic")
    )
    last = samples.where((F.col("at") == F.lit(now)) & (F.col("lag") > 0))
    # Samples are few; records are not.
    waiting = (
        facts.join(F.broadcast(last.select("group", "topic", "partition", "committed")), ["topic", "partition"])
        .where(F.col("offset") >= F.col("committed"))
        .groupBy("group", "topic")
        .agg(F.min("timestamp").alias("oldest"), F.count("*").alias("messages"))
    )
    of_now = (
        samples.where(F.col("at") == F.lit(now))
        .groupBy("group", "topic")
        .agg(F.sum("lag").alias("lag"), F.max("lag").alias("most_in_a_partition"), F.count("*").alias("partitions"))
        .join(waiting, ["group", "topic"], "left")
        .withColumn("waiting_ms", milliseconds(F.lit(now), F.col("oldest")))
        .orderBy(F.desc("lag"), "group", "topic")
    )
    return [
        Asked("lag_now", "Where groups stand now", of_now),
        Asked("lag_over_time", "Lag by group and topic at each sample", over_time),
    ]


def figures(results: Sequence[Result]) -> list[Figure]:
    """The groups that were furthest behind."""
    lines: dict[str, dict[datetime, float]] = defaultdict(lambda: defaultdict(float))
    for row in results[1].rows:
        lines[row["group"]][row["at"]] += row["lag"]
    worst = sorted(lines, key=lambda group: (-max(lines[group].values()), group))[:_MOST_LINES]
    series = {group: sorted(lines[group].items()) for group in worst}
    return [Lines("Lag of the groups that were furthest behind", "messages", series)] if series else []
