"""A report from its options to its sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.querying.frames import HistoryReader
from penstock.pipeline.querying.history import History, TimeWindow
from penstock.pipeline.querying.stored_files import frame_of
from penstock.pipeline.reports import (
    delays,
    failures,
    lag,
    lag_samples,
    latency,
    reconciliation,
    report_tables,
    sizes,
    skew,
    volume,
)
from penstock.pipeline.reports.facts import READ, SENDER_HEADERS, facts_of, is_retry, origin_topic
from penstock.pipeline.reports.reconciliation import TopicPair
from penstock.pipeline.reports.results import NAMES, Asked, Figure, Result, Section, collected
from penstock.pipeline.topics.kafka import Brokers
from penstock.pipeline.workers import raised_by
from penstock.sdk.topic_names import DEAD, RETRY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.lake.delta import LakeLocation

Tell = Callable[[str, int, int], None]
"""Called with the report that is being computed, how much is done, and of how much."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a report is about."""

    topics: tuple[str, ...]
    window: TimeWindow
    location: LakeLocation | None
    kafka: Mapping[str, str] | None
    names: tuple[str, ...] = NAMES
    pairs: tuple[TopicPair, ...] = ()
    sender_headers: tuple[str, ...] = SENDER_HEADERS
    origins: frozenset[str] | None = None
    """Of retries and dead letters only those that were in one of these first; None for all."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    at: datetime
    window: TimeWindow
    topics: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def results(self) -> list[Result]:
        return [result for section in self.sections for result in section.results]


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    title: str
    note: str
    tables: Callable[[], list[Asked]]
    figures: Callable[[Sequence[Result]], list[Figure]]


def run(spark: SparkSession, options: ReportOptions, history: History, now: datetime, tell: Tell) -> Report:
    """Computes the reports of a options; `now` is when it is."""
    from pyspark.errors import PySparkException

    unknown = sorted({name for pair in options.pairs for name in (pair.sent_in, pair.seen_in)} - set(options.topics))
    if unknown:
        raise PipelineError(f"--reconcile names {', '.join(unknown)}, which is none of the topics of the report")
    tell("what there is", 0, len(options.names) + 1)
    # What was sent may arrive after the window.
    reads_on = bool(options.pairs) and "reconciliation" in options.names
    window = TimeWindow(options.window.since, None) if reads_on else options.window
    slice_ = history.slice(options.topics, window)
    records = HistoryReader(spark, options.location, options.kafka).frame(slice_, window, READ)
    facts = facts_of(records, options.window.until, options.sender_headers)
    if options.origins is not None:
        facts = facts.where(~is_retry() | origin_topic().isNull() | origin_topic().isin(*options.origins))
    facts = facts.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        sections = []
        parts = list(_parts(spark, options, facts, now))
        for done, part in enumerate(parts):
            tell(part.title, done + 1, len(parts) + 1)
            results = tuple(collected(asked) for asked in part.tables())
            sections.append(Section(part.name, part.title, part.note, results, tuple(part.figures(results))))
        tell("done", len(parts) + 1, len(parts) + 1)
    except PySparkException as error:
        raise raised_by(str(error)) from None
    finally:
        facts.unpersist()
    return Report(now, options.window, options.topics, tuple(sections))


def chosen_topics(history: History, topics: Sequence[str] | None) -> tuple[str, ...]:
    """The requested topics; by default all but views, with the topics of retries and dead letters."""
    every = history.names
    if topics is None:
        return tuple(history.originals)
    missing = sorted(set(topics) - set(every))
    if missing:
        raise PipelineError(f"there is no topic {', '.join(missing)}")
    return tuple(sorted(set(topics).union(name for name in every if name.endswith((RETRY, DEAD)))))


def _parts(spark: SparkSession, options: ReportOptions, facts: DataFrame, now: datetime) -> Iterator[_Part]:
    inside = facts.where("in_window")
    every = {
        "volume": _Part("volume", volume.TITLE, volume.NOTE, lambda: volume.tables(inside), volume.figures),
        "latency": _Part("latency", latency.TITLE, latency.NOTE, lambda: latency.tables(inside), latency.figures),
        "lag": _Part("lag", lag.TITLE, lag.NOTE, lambda: _lag(spark, options, inside, now), _if_any(lag.figures)),
        "failures": _Part("failures", failures.TITLE, failures.NOTE, lambda: failures.tables(inside), failures.figures),
        "skew": _Part("skew", skew.TITLE, skew.NOTE, lambda: skew.tables(inside, _partitions(options)), skew.figures),
        "delays": _Part("delays", delays.TITLE, delays.NOTE, lambda: delays.tables(inside), delays.figures),
        "sizes": _Part("sizes", sizes.TITLE, sizes.NOTE, lambda: sizes.tables(inside), sizes.figures),
        "reconciliation": _Part(
            "reconciliation",
            reconciliation.TITLE,
            reconciliation.NOTE,
            lambda: reconciliation.tables(facts, options.pairs),
            reconciliation.figures,
        ),
    }
    for name in options.names:
        if name != "reconciliation" or options.pairs:
            yield every[name]


def _if_any(draw: Callable[[Sequence[Result]], list[Figure]]) -> Callable[[Sequence[Result]], list[Figure]]:
    return lambda results: draw(results) if results else []


def _lag(spark: SparkSession, options: ReportOptions, facts: DataFrame, now: datetime) -> list[Asked]:
    """Takes a sample, keeps it, and looks at it together with earlier ones; nothing without brokers."""
    if options.kafka is None:
        return []
    taken = lag_samples.sample(options.kafka, options.topics, now)
    frame = spark.createDataFrame(taken)
    if options.location is not None and taken.num_rows:
        report_tables.append(options.location, report_tables.SAMPLES, taken, "at")
        earlier = frame_of(
            spark, options.location, report_tables.files_of(options.location, report_tables.SAMPLES), frame.schema
        )
        # Compaction of two reports at once may double samples.
        frame = earlier.where(F.col("topic").isin(*options.topics)).distinct()
        # The one of now is shown whatever the window.
        of_now = F.col("at") == F.lit(now)
        if options.window.since is not None:
            frame = frame.where(of_now | (F.col("at") >= F.lit(options.window.since)))
        if options.window.until is not None:
            frame = frame.where(of_now | (F.col("at") < F.lit(options.window.until)))
    return lag.tables(facts, frame, now)


def _partitions(options: ReportOptions) -> dict[str, tuple[int, ...]]:
    if options.kafka is None:
        return {}
    return {name: topic.partitions for name, topic in Brokers(options.kafka).topics(options.topics).items()}
