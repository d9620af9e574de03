"""How much was sent: by topic, partition, hour and producer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.pipeline.reports.facts import total_bytes
from penstock.pipeline.reports.results import Asked, Columns, Figure, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "Volume"
NOTE = (
    "Messages and bytes (key, value and headers, before compression) by the hour of their timestamps, in UTC. Kafka "
    "does not tell consumers who has sent a message, so a producer is known only if it says so itself, in a header "
    "(penstock-sender, or ce_source of CloudEvents); all others are together under unknown."
)

_MOST_PARTS = 7
_MOST_STEPS = 24 * 14
_OTHERS = "others"


def tables(facts: DataFrame) -> list[Asked]:
    hourly = (
        facts.groupBy("topic", "partition", F.date_trunc("hour", "timestamp").alias("hour"), "producer")
        .agg(
            F.count("*").alias("messages"),
            F.sum(total_bytes()).alias("bytes"),
            F.count_if("is_tombstone").alias("tombstones"),
        )
        .orderBy("hour", "topic", "partition", "producer")
    )
    return [Asked("volume", "Messages and bytes by topic, partition, hour and producer", hourly)]


def figures(results: Sequence[Result]) -> list[Figure]:
    """Messages by hour, the largest topics apart."""
    rows = [row for row in results[0].rows if row["hour"] is not None]
    if not rows:
        return []
    by_topic: Counter[str] = Counter()
    counted: dict[str, Counter[object]] = defaultdict(Counter)
    for row in rows:
        by_topic[row["topic"]] += row["messages"]
    apart = [name for name, _ in by_topic.most_common(_MOST_PARTS)]
    for row in rows:
        counted[row["topic"] if row["topic"] in apart else _OTHERS][row["hour"]] += row["messages"]
    last = max(row["hour"] for row in rows)
    first = max(min(row["hour"] for row in rows), last - timedelta(hours=_MOST_STEPS - 1))
    hours = [first + timedelta(hours=number) for number in range((last - first) // timedelta(hours=1) + 1)]
    parts = {name: [float(counted[name][hour]) for hour in hours] for name in [*apart, _OTHERS] if counted.get(name)}
    steps = [hour.strftime("%m-%d %H:00") for hour in hours]
    return [Columns("Messages an hour", "messages", steps, parts)]
