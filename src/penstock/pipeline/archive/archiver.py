"""The archive's driver: looks at the table and at the logs, lets Spark write files, commits; again and again.

Rules:
- Where to go on is what the table says, and nothing else: there is no checkpoint.
- What a batch is allowed to do is checked on the version of the table that it follows (docs/internals/pipeline.md).
- The archiver tells brokers last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from penstock.clock import SystemClock
from penstock.ids import TopicPartition
from penstock.pipeline.archive.plan import (
    FIRST_OFFSETS,
    Next,
    OffsetRange,
    Progress,
    next_limit,
    next_of,
    shortened,
    tasks_for,
)
from penstock.pipeline.archive.task import Archived, TaskResult, archive
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.lake.delta import Change, LakeLocation, open_for_archive
from penstock.pipeline.lake.record_table import Anchor, anchor_key, archiver_key, offset_key, unpacked
from penstock.pipeline.topics.kafka import Brokers, Topic
from penstock.pipeline.topics.options import ISOLATION, TopicSelection
from penstock.pipeline.topics.positions import partitions_of, subscribed
from penstock.pipeline.topics.ranges import limited
from penstock.pipeline.workers import Workers

ARCHIVE_GROUP = "penstock.archive.group"
"""The topic setting that names the group whose offsets retention waits for."""

MAX_OFFSETS = 4_000_000

_POLL_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What is archived, where to, and how."""

    kafka: Mapping[str, str]
    subscription: TopicSelection
    location: LakeLocation
    name: str = "archive"
    """The table fences archivers of one name: the later one wins. advisory_lock.py stops a second one before that."""
    max_offsets: int = MAX_OFFSETS
    """A batch goes so far at most; less far if that would take long."""
    accepts_loss: bool = False

    @property
    def group(self) -> str:
        """The group whose offsets tell brokers what is archived."""
        return f"penstock-{self.name}"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one round did."""

    version: int
    rows: int
    files: int
    size: int
    lost: int
    """Offsets that were deleted before they could be archived."""
    left: int
    """Offsets that were waiting when it was planned and are not in it."""


class ArchiverReplacedError(PipelineError):
    """Another archiver of the same name was started later."""


class Archiver:
    """One of them, from its start until it stops or is replaced."""

    def __init__(
        self, options: ArchiveOptions, workers: Workers, after_step: Callable[[str], None] | None = None
    ) -> None:
        """The archiver calls `after_step` after every step: files, commit, group."""
        self._options = options
        self._workers = workers
        self._after = after_step or (lambda step: None)
        self._kafka = dict(options.kafka) | {ISOLATION: "read_committed"}
        self._brokers = Brokers(self._kafka)
        self._lake = open_for_archive(options.location, self._brokers.cluster_id())
        self._epoch = self._claim()
        self._progress: dict[TopicPartition, Progress] = {}
        self._limit = min(FIRST_OFFSETS, options.max_offsets)
        self._clock = SystemClock()

    def run_batch(self) -> Batch | None:
        """Archives what is there, up to the bound of a batch; None if nothing is."""
        began_ms = self._clock.monotonic_ms()
        nexts = self._look()
        starts = {each.piece.range.at: each.piece.range.start for each in nexts}
        lasts = {each.piece.range.at: each.piece.range.end for each in nexts}
        ends = limited(starts, lasts, self._limit)
        pieces = shortened((each.piece for each in nexts), ends)
        tasks = tasks_for(pieces, self._workers.parallelism)
        if not tasks:
            return None
        work = partial(archive, self._kafka, self._options.location, poll_timeout_ms=_POLL_TIMEOUT_MS)
        outcomes = self._workers.run(work, tasks)
        self._after("files")
        moved = _moved(pieces, outcomes)
        files = [file for outcome in outcomes for file in outcome.files]
        marks = {archiver_key(self._options.name): self._epoch}
        for at, progress in moved.items():
            assert progress.watermark is not None
            marks[offset_key(progress.topic_id, at.partition)] = progress.watermark
            anchor = progress.anchor or self._progress[at].anchor
            marks[anchor_key(progress.topic_id, at.partition)] = anchor.packed(progress.watermark) if anchor else 0
        self._lake.commit(Change(added=files, marks=marks), lambda: self._may_commit(moved))
        self._after("commit")
        self.tell()
        self._after("group")
        left = sum(lasts.values()) - sum(ends.values())
        if left:
            took_s = (self._clock.monotonic_ms() - began_ms) / 1000
            self._limit = next_limit(self._limit, took_s, self._options.max_offsets)
        return Batch(
            version=self._lake.version,
            rows=sum(archived.rows for outcome in outcomes for archived in outcome.pieces),
            files=len(files),
            size=sum(file.size for file in files),
            lost=sum(each.lost for each in nexts),
            left=left,
        )

    def hold(self) -> None:
        """Has brokers keep what is not archived: sets the name of the group on their topics."""
        topics = subscribed(self._brokers, self._options.subscription)
        self._brokers.set_config(topics, ARCHIVE_GROUP, self._options.group)

    def tell(self) -> None:
        """Tells the brokers how far everything that is known is archived."""
        offsets = {
            at: mark
            for at, progress in self._progress.items()
            if (mark := self._lake.mark(offset_key(progress.topic_id, at.partition))) is not None
        }
        self._brokers.commit_offsets(self._options.group, offsets)

    def _claim(self) -> int:
        """Raises the fence: from here on every earlier archiver of this name is refused."""
        key = archiver_key(self._options.name)
        claimed = 0

        def raise_by_one() -> bool:
            nonlocal claimed
            claimed = (self._lake.mark(key) or 0) + 1
            marks[key] = claimed
            return True

        marks: dict[str, int] = {}
        self._lake.commit(Change(marks=marks), raise_by_one)
        return claimed

    def _look(self) -> list[Next]:
        """Where every partition stands, in the table and in its log."""
        self._lake.refresh()
        self._check_fence()
        topics = subscribed(self._brokers, self._options.subscription)
        partitions = partitions_of(topics.values())
        firsts = self._brokers.first_offsets(partitions)
        lasts = self._brokers.end_offsets(partitions, committed=True)
        self._progress = {at: self._progress_of(at, topics[at.topic]) for at in partitions}
        return [
            next_of(at, self._progress[at], firsts[at], lasts[at], accepts_loss=self._options.accepts_loss)
            for at in partitions
        ]

    def _progress_of(self, at: TopicPartition, topic: Topic) -> Progress:
        watermark = self._lake.mark(offset_key(topic.topic_id, at.partition))
        if watermark is None:
            return Progress(topic.topic_id)
        packed = self._lake.mark(anchor_key(topic.topic_id, at.partition))
        return Progress(topic.topic_id, watermark, unpacked(packed, watermark))

    def _check_fence(self) -> None:
        now = self._lake.mark(archiver_key(self._options.name))
        if now != self._epoch:
            raise ArchiverReplacedError(
                f"another archiver named {self._options.name} has started on {self._options.location.uri} "
                f"(number {now}, this one is {self._epoch}): this one stops; it has written nothing twice"
            )

    def _may_commit(self, moved: Mapping[TopicPartition, Progress]) -> bool:
        """Whether the batch may follow the version that was just looked at; false if it is in there already."""
        self._check_fence()
        marks = {at: self._lake.mark(offset_key(each.topic_id, at.partition)) for at, each in moved.items()}
        if all(marks[at] == each.watermark for at, each in moved.items()):
            # Only this archiver can have done it: the answer to its commit got lost.
            return False
        for at, mark in marks.items():
            if mark != self._progress[at].watermark:
                raise ArchiverReplacedError(
                    f"{at} is archived to {self._options.location.uri} by an archiver of another name too: "
                    f"it was at {self._progress[at].watermark} and is now at {mark}"
                )
        return True


def _moved(pieces: Iterable[OffsetRange], outcomes: Iterable[TaskResult]) -> dict[TopicPartition, Progress]:
    """How far partitions are archived with these outcomes, and their last records if they had any."""
    lasts: dict[TopicPartition, Anchor] = {}
    done: list[Archived] = [archived for outcome in outcomes for archived in outcome.pieces]
    for archived in sorted(done, key=lambda each: each.piece.range.start):
        if archived.last is not None:
            lasts[archived.piece.range.at] = archived.last
    return {
        piece.range.at: Progress(piece.range.topic_id, piece.range.end, lasts.get(piece.range.at))
        for piece in pieces
        if piece.range.length > 0
    }
