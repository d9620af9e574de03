"""Whether partitions are used evenly, and which keys make them uneven."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.pipeline.reports.facts import total_bytes
from penstock.pipeline.reports.results import Asked, Bars, Figure, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "Partition skew and hot keys"
NOTE = (
    "A partition's ratio is its messages to the mean of its topic's partitions: 1 is even. Partitions that brokers "
    "have and that got nothing count too. Hot keys are those with the most messages of each topic; a long key is "
    "cut to 64 bytes, and told from others of the same beginning."
)

KEYS_PER_TOPIC = 20
_MOST_BARS = 16


def tables(facts: DataFrame, partitions: Mapping[str, Sequence[int]]) -> list[Asked]:
    """`partitions` are those that brokers have now."""
    used = facts.groupBy("topic", "partition").agg(F.count("*").alias("messages"), F.sum(total_bytes()).alias("bytes"))
    known = [(topic, number) for topic, numbers in partitions.items() for number in numbers]
    if known:
        spark = facts.sparkSession
        every = spark.createDataFrame(known, "topic string, partition int")
        # A topic of which nothing was sent is not uneven.
        every = every.join(used.select("topic").distinct(), "topic", "left_semi")
        used = used.join(every, ["topic", "partition"], "full").fillna(0, ["messages", "bytes"])
    of_topic = Window.partitionBy("topic")
    even = (
        used.withColumn("share", F.round(F.col("messages") / F.sum("messages").over(of_topic), 6))
        .withColumn("ratio", F.round(F.col("messages") / F.avg("messages").over(of_topic), 4))
        .orderBy("topic", "partition")
    )
    ranked = Window.partitionBy("topic").orderBy(F.desc("messages"), "key", "key_hash")
    hot = (
        facts.where(F.col("key").isNotNull())
        .groupBy("topic", "key", "key_hash")
        .agg(
            F.count("*").alias("messages"),
            F.sum(total_bytes()).alias("bytes"),
            F.count_distinct("partition").alias("partitions"),
        )
        .withColumn("share", F.round(F.col("messages") / F.sum("messages").over(of_topic), 6))
        .withColumn("place", F.row_number().over(ranked))
        .where(F.col("place") <= KEYS_PER_TOPIC)
        .drop("key_hash")
        .orderBy("topic", "place")
    )
    return [
        Asked("partitions", "Messages by partition", even),
        Asked("hot_keys", f"The {KEYS_PER_TOPIC} keys with the most messages of each topic", hot),
    ]


def figures(results: Sequence[Result]) -> list[Figure]:
    """The partitions of the most uneven topic, and the hottest keys."""
    drawn: list[Figure] = []
    by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in results[0].rows:
        by_topic[row["topic"]].append(row)
    several = {topic: rows for topic, rows in by_topic.items() if len(rows) > 1}
    if several:
        topic = max(several, key=lambda name: max(row["ratio"] for row in several[name]))
        rows = sorted(several[topic], key=lambda row: -row["messages"])[:_MOST_BARS]
        values = [(f"partition {row['partition']}", float(row["messages"])) for row in rows]
        drawn.append(Bars(f"The most uneven topic: {topic}", "messages", values))
    keys = sorted(results[1].rows, key=lambda row: -row["messages"])[:_MOST_BARS]
    if keys:
        named = [(f"{row['topic']}: {row['key']}", float(row["messages"])) for row in keys]
        drawn.append(Bars("The hottest keys", "messages", named))
    return drawn
