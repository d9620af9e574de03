"""Whether everything that went into one topic came out in another, by biz-id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.reports.results import Asked, Bars, Figure, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "Reconciliation"
NOTE = (
    "Messages of one topic, in the window, looked for by their biz-id in another, where those after the window "
    "count too. Missing: not there at all. Fewer: there, but not as often as it was sent. Doubled: there more often "
    "than it was sent. Unasked: in the second topic, in the window, and never in the first since the window began; "
    "just behind the beginning of the window that may be because it was sent before. Messages without a biz-id "
    "cannot be compared, and are counted."
)

_DIFFERENCES = ("missing", "fewer", "doubled", "unasked")


@dataclass(frozen=True, slots=True)
class TopicPair:
    """Two topics, and how the biz-ids that matter begin."""

    sent_in: str
    seen_in: str
    prefix: str = ""


def parse_pair(text: str) -> TopicPair:
    """ORDERS:PAYMENTS, or ORDERS:PAYMENTS:PREFIX."""
    parts = text.split(":", 2)
    if len(parts) < 2 or not all(parts[:2]):
        raise PipelineError(f"{text!r} names no two topics: TOPIC:TOPIC does, or TOPIC:TOPIC:BEGINNING-OF-BIZ-ID")
    return TopicPair(*parts)


def tables(facts: DataFrame, pairs: Sequence[TopicPair]) -> list[Asked]:
    """The facts go on after the window; `in_window` tells which of them are in it."""
    if not pairs:
        return []
    compared = reduce(lambda one, other: one.unionByName(other), [_compared(facts, pair) for pair in pairs])
    counted = (
        compared.groupBy("sent_in", "seen_in", "outcome")
        .agg(F.count("biz_id").alias("biz_ids"), F.sum("sent").alias("sent"), F.sum("seen").alias("seen"))
        .orderBy("sent_in", "seen_in", "outcome")
    )
    listed = compared.where(F.col("outcome").isin(*_DIFFERENCES)).orderBy("sent_in", "seen_in", "outcome", "biz_id")
    return [
        Asked("reconciliation", "How many arrived", counted),
        Asked("reconciliation_differences", "What did not arrive, or arrived otherwise", listed),
    ]


def _compared(facts: DataFrame, pair: TopicPair) -> DataFrame:
    sent, seen = _counts(facts, pair.sent_in, "sent", pair.prefix), _counts(facts, pair.seen_in, "seen", pair.prefix)
    outcome = (
        F.when(F.col("biz_id").isNull(), F.lit("without biz-id"))
        .when(F.col("all_seen") == 0, F.lit("missing"))
        .when(F.col("all_sent") == 0, F.lit("unasked"))
        .when(F.col("all_seen") < F.col("sent"), F.lit("fewer"))
        .when(F.col("all_seen") > F.col("all_sent"), F.lit("doubled"))
        .otherwise(F.lit("equal"))
    )
    return (
        sent.join(seen, "biz_id", "full")
        .fillna(0, ["sent", "all_sent", "seen", "all_seen"])
        .where((F.col("sent") > 0) | ((F.col("all_sent") == 0) & (F.col("seen") > 0)))
        .select(
            F.lit(pair.sent_in).alias("sent_in"),
            F.lit(pair.seen_in).alias("seen_in"),
            outcome.alias("outcome"),
            "biz_id",
            "sent",
            F.col("all_seen").alias("seen"),
            "sent_first",
            "sent_at",
            "seen_first",
            "seen_at",
        )
    )


def _counts(facts: DataFrame, topic: str, name: str, prefix: str) -> DataFrame:
    """How often each biz-id is in a topic, and where it is first; messages without any are one row, of no id."""
    location = F.concat_ws("/", F.col("partition"), F.col("offset"))
    wanted = facts.where(F.col("topic") == topic)
    if prefix:
        wanted = wanted.where(F.col("biz_id").startswith(prefix))
    return wanted.groupBy("biz_id").agg(
        F.count_if("in_window").alias(name),
        F.count("*").alias(f"all_{name}"),
        F.min("timestamp").alias(f"{name}_first"),
        F.min_by(location, F.struct("partition", "offset")).alias(f"{name}_at"),
    )


def figures(results: Sequence[Result]) -> list[Figure]:
    if not results or not results[0].rows:
        return []
    # Those without any id are messages.
    values = [
        (
            f"{row['sent_in']} → {row['seen_in']}: {row['outcome']}",
            float(row["biz_ids"] or max(row["sent"], row["seen"])),
        )
        for row in results[0].rows
    ]
    return [Bars("Biz-ids, and messages that have none, by what became of them", "", values)]
