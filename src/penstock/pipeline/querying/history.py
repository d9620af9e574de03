"""All that there ever was of topics: what the lake has, and behind it what only the brokers have.

Rules:
- The lake counts up to its watermark, the live log from there on: no gap and no repeat. Both sides are of one version
  of the lake, and the ranges of the live logs follow from that version.
- What is read is fixed when it is planned: files by name, live logs by offsets.
- Files that cannot have what is wanted are left out by what the table says of them, before any is opened.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

from penstock.ids import TopicPartition
from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.lake.delta import Lake, LakeFile, LakeLocation, open_lake
from penstock.pipeline.lake.record_table import offset_key
from penstock.pipeline.topics.kafka import Brokers
from penstock.pipeline.topics.positions import partitions_of
from penstock.pipeline.topics.ranges import Range

_LOOKS = 3
"""The archive may move on, and brokers delete, between the look at the lake and the look at the logs."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """From one time up to but not including another; records without a time are in none but the endless one."""

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise PipelineError(f"the window ends at {self.until}, before it begins at {self.since}")

    @property
    def since_ms(self) -> int | None:
        return None if self.since is None else max(0, int(self.since.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class HistorySlice:
    """What is read of some topics."""

    files: tuple[LakeFile, ...] = ()
    ranges: tuple[Range, ...] = ()


class History:
    """A lake, a cluster, or both: topics from the first record that lake or cluster still has."""

    def __init__(self, lake: Lake | None, brokers: Brokers | None, *, accepts_loss: bool = False) -> None:
        if lake is None and brokers is None:
            raise PipelineError("there is neither a lake nor a broker to read from")
        if lake is not None and brokers is not None and lake.cluster_id != brokers.cluster_id():
            raise PipelineError(
                f"{lake.location.uri} is the archive of cluster {lake.cluster_id}, and this is cluster "
                f"{brokers.cluster_id()}: their records are not one history"
            )
        self._lake = lake
        self._brokers = brokers
        self._accepts_loss = accepts_loss

    @property
    def names(self) -> list[str]:
        """Topics that the archive or the brokers have."""
        archived = {file.topic for file in self._lake.files()} if self._lake is not None else set()
        live = self._brokers.names() if self._brokers is not None else []
        return sorted(archived.union(live))

    @property
    def originals(self) -> list[str]:
        """The same without views, which show records that other topics have."""
        names = self.names
        views = self._brokers.views(names) if self._brokers is not None else frozenset[str]()
        return [name for name in names if name not in views]

    def slice(self, topics: Collection[str], window: TimeWindow) -> HistorySlice:
        """What there is of these topics now."""
        for look in range(1, _LOOKS + 1):
            if self._lake is not None:
                self._lake.refresh()
            try:
                return self._look(topics, window)
            except DataLossError:
                if look == _LOOKS or self._lake is None:
                    raise
        raise AssertionError

    def _look(self, topics: Collection[str], window: TimeWindow) -> HistorySlice:
        files = [] if self._lake is None else self._lake.files()
        kept = tuple(file for file in files if file.topic in topics and may_have(file, window))
        if self._brokers is None:
            return HistorySlice(files=kept)
        known = self._brokers.topics(topics)
        partitions = partitions_of(known.values())
        firsts = self._brokers.first_offsets(partitions)
        lasts = self._brokers.end_offsets(partitions, committed=True)
        young: Mapping[TopicPartition, int | None] = firsts
        if window.since_ms is not None:
            young = self._brokers.offsets_since(dict.fromkeys(partitions, window.since_ms))
        ranges = [
            live_range(
                Range(at.topic, known[at.topic].topic_id, at.partition, firsts[at], lasts[at]),
                watermark=self._watermark(known[at.topic].topic_id, at.partition),
                young=young[at],
                accepts_loss=self._accepts_loss,
            )
            for at in partitions
        ]
        return HistorySlice(kept, tuple(each for each in ranges if each.length > 0))

    def _watermark(self, topic_id: str, partition: int) -> int | None:
        return None if self._lake is None else self._lake.mark(offset_key(topic_id, partition))


def open_history(
    location: LakeLocation | None, kafka: Mapping[str, str] | None, *, accepts_loss: bool = False
) -> History:
    """Of a lake that exists, of a cluster, or of both."""
    lake = None if location is None else open_lake(location)
    return History(lake, None if kafka is None else Brokers(kafka), accepts_loss=accepts_loss)


def live_range(log: Range, *, watermark: int | None, young: int | None, accepts_loss: bool) -> Range:
    """What is read of a live log whose lake ends at `watermark`; `young` is its first offset in the window."""
    start = log.start if watermark is None else watermark
    if log.end < start:
        raise DataLossError(f"{log.at} ends at {log.end}, but is archived up to {start}: its log was cut")
    # What begins behind the first record that is there has lost nothing of what was deleted.
    is_touched = young is not None and young <= log.start
    if start < log.start and is_touched and not accepts_loss:
        raise DataLossError(
            f"{log.at} begins at {log.start}, but is archived up to {start} only: {log.start - start} offsets are "
            "nowhere any more; --accept-loss reads what there is"
        )
    begin = log.end if young is None else max(start, log.start, young)
    return Range(log.topic, log.topic_id, log.partition, min(begin, log.end), log.end)


def may_have(file: LakeFile, window: TimeWindow) -> bool:
    """Whether a file can have records of a window."""
    day = date.fromisoformat(file.date)
    if window.since is not None and day < window.since.astimezone(UTC).date():
        return False
    if window.until is not None and day > window.until.astimezone(UTC).date():
        return False
    stats = json.loads(file.stats)
    youngest, oldest = _time(stats["maxValues"]), _time(stats["minValues"])
    if youngest is None or oldest is None:
        # No record of it has a time.
        return window == TimeWindow()
    too_old = window.since is not None and youngest < window.since
    too_young = window.until is not None and oldest >= window.until
    return not too_old and not too_young


def _time(stats: Mapping[str, str]) -> datetime | None:
    text = stats.get("timestamp")
    return None if text is None else datetime.fromisoformat(text)
