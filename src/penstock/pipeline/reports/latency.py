"""How long messages were on their way, as far as records tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from penstock.pipeline.reports.facts import is_retry, milliseconds, percentiles
from penstock.pipeline.reports.results import Asked, Figure, Result, Spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "End-to-end latency"
NOTE = (
    "A record has one time: that of its sender, or of the broker where the topic is set so. When it was handled is "
    "not written down anywhere, so latency is known where handling leaves a record: from one topic to the next by "
    "the same biz-id (first appearance in each), from a request to its reply, and from the first sending to each "
    "retry and dead letter. Times come from the clocks of different senders; negative counts what arrived before it "
    "was sent."
)

_MOST_SPANS = 20


def tables(facts: DataFrame) -> list[Asked]:
    timed = facts.where(F.col("timestamp").isNotNull() & F.col("settled").isNull())
    ways = _hops(timed).unionByName(_replies(timed)).unionByName(_failures(timed))
    taken = milliseconds(F.col("arrived"), F.col("sent"))
    found = (
        ways.withColumn("taken_ms", taken)
        .groupBy("way", "from_topic", "to_topic")
        .agg(
            F.count("*").alias("messages"),
            *percentiles(F.col("taken_ms"), unit="_ms"),
            F.count_if(F.col("taken_ms") < 0).alias("negative"),
        )
        .orderBy(F.desc("messages"), "from_topic", "to_topic", "way")
    )
    return [Asked("latency", "Latency from topic to topic", found)]


def _hops(timed: DataFrame) -> DataFrame:
    """From each topic of a biz-id to its next."""
    first = (
        timed.where(F.col("biz_id").isNotNull() & ~is_retry())
        .groupBy("biz_id", "topic")
        .agg(F.min("timestamp").alias("arrived"))
    )
    before = Window.partitionBy("biz_id").orderBy("arrived", "topic")
    return (
        first.withColumn("from_topic", F.lag("topic").over(before))
        .withColumn("sent", F.lag("arrived").over(before))
        .where(F.col("from_topic").isNotNull())
        .select(F.lit("biz-id").alias("way"), "from_topic", F.col("topic").alias("to_topic"), "sent", "arrived")
    )


def _replies(timed: DataFrame) -> DataFrame:
    """From a request to the first reply to it."""
    linked = timed.where(F.col("correlation").isNotNull())
    asked = (
        linked.where("wants_reply")
        .groupBy("correlation")
        .agg(F.min("timestamp").alias("sent"), F.min_by("topic", "timestamp").alias("from_topic"))
    )
    answered = (
        linked.where("not wants_reply")
        .groupBy("correlation")
        .agg(F.min("timestamp").alias("arrived"), F.min_by("topic", "timestamp").alias("to_topic"))
    )
    return asked.join(answered, "correlation").select(
        F.lit("request and reply").alias("way"), "from_topic", "to_topic", "sent", "arrived"
    )


def _failures(timed: DataFrame) -> DataFrame:
    """From the first sending, which a retry and a dead letter remember, to each of them."""
    parts = F.split("origin", "/")
    sent = F.timestamp_millis(F.try_element_at(parts, F.lit(4)).try_cast("long"))
    return (
        timed.where(is_retry() & F.col("origin").isNotNull())
        .select(
            F.lit("retries").alias("way"),
            F.try_element_at(parts, F.lit(1)).alias("from_topic"),
            F.col("topic").alias("to_topic"),
            sent.alias("sent"),
            F.col("timestamp").alias("arrived"),
        )
        .where(F.col("sent").isNotNull())
    )


def figures(results: Sequence[Result]) -> list[Figure]:
    spans = [
        (
            f"{row['from_topic']} → {row['to_topic']}",
            max(0.0, float(row["p50_ms"])),
            max(0.0, float(row["p90_ms"])),
            max(0.0, float(row["p99_ms"])),
        )
        for row in results[0].rows[:_MOST_SPANS]
    ]
    return [Spans("Half, 90 % and 99 % of the messages arrived within", "ms", spans)] if spans else []
