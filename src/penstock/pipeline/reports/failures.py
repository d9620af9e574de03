"""What went wrong in consumers: retries and dead letters by group and error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.pipeline.reports.facts import is_retry, origin_topic
from penstock.pipeline.reports.results import Asked, Bars, Figure, Result
from penstock.sdk.topic_names import DEAD, RETRY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "Retries and dead letters"
NOTE = (
    "From the topics in which groups keep their retries (GROUP.TOPIC-HASH.retry) and dead letters (GROUP.dead). An "
    "error's kind is the text before its first colon. Resent and purged count dead letters that an operator has dealt "
    "with. A group whose name cannot be a topic's appears under the name of its topics."
)

_KIND_CHARS = 80
_MOST_BARS = 15
_OF_ONE_TOPIC = r"-[0-9a-f]{8}\.retry$"
_DOT_TOPIC = "concat('.', substring_index(origin, '/', 1))"


def tables(facts: DataFrame) -> list[Asked]:
    of_dead = F.col("topic").endswith(DEAD)
    kind = F.when(F.col("settled").isNotNull(), F.substring_index("settled", " ", 1)).otherwise(
        F.when(of_dead, F.lit("dead")).otherwise(F.lit("retry"))
    )
    group = (
        F.when(of_dead, F.expr(f"left(topic, length(topic) - {len(DEAD)})"))
        # GROUP.TOPIC-HASH.retry: what stands before the last mention of the topic.
        .when(
            F.col("topic").rlike(_OF_ONE_TOPIC) & F.expr(f"locate({_DOT_TOPIC}, topic) > 1"),
            F.expr(
                f"left(topic, length(topic) - length(substring_index(topic, {_DOT_TOPIC}, -1)) - length({_DOT_TOPIC}))"
            ),
        )
        # GROUP.retry, of version 0.1.
        .otherwise(F.expr(f"left(topic, length(topic) - {len(RETRY)})"))
    )
    found = (
        facts.where(is_retry())
        .select(
            group.alias("group"),
            kind.alias("kind"),
            origin_topic().alias("origin_topic"),
            F.substring(F.substring_index("error", ":", 1), 1, _KIND_CHARS).alias("error_kind"),
            "error",
            "attempt",
            "timestamp",
        )
        .groupBy("group", "kind", "origin_topic", "error_kind")
        .agg(
            F.count("*").alias("messages"),
            F.max("attempt").alias("most_attempts"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
            F.max_by("error", "timestamp").alias("last_error"),
        )
        .orderBy(F.desc("messages"), "group", "kind", "origin_topic", "error_kind")
    )
    return [Asked("failures", "Retries and dead letters by group and error", found)]


def figures(results: Sequence[Result]) -> list[Figure]:
    """Retries and dead letters of each group and kind of error."""
    drawn: list[Figure] = []
    for kind, title in (("dead", "Dead letters"), ("retry", "Retries")):
        counted: Counter[str] = Counter()
        for row in results[0].rows:
            if row["kind"] == kind:
                counted[f"{row['group']}: {row['error_kind'] or 'no error told'}"] += row["messages"]
        if counted:
            values = [(name, float(count)) for name, count in counted.most_common(_MOST_BARS)]
            drawn.append(Bars(f"{title} by group and error", "messages", values))
    return drawn
