"""Replay: history out of a lake to a topic, or to one consumer group up to the live log.

Rules:
- A replay has an id. How far each partition got is the mark of its transactions (marked.py); when a run ends, it is
  also written into the lake, where it does not expire. A run begins where the higher of the two says.
- Running one twice sends nothing twice; one that was interrupted goes on.
- A replay to a group is over when its positions are in the lake: from then on the group goes its own way in the log, so
  that a second run sends nothing, and never takes the group back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from penstock.ids import TopicPartition
from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.lake.delta import Change, Lake
from penstock.pipeline.lake.recordtable import offset_key
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.lake.storedrows import Stored, by_partition, count_wanted
from penstock.pipeline.replay.task import Replayed, ReplayPlan, ReplayTask, replay
from penstock.pipeline.topics.kafka import Brokers, Topic
from penstock.pipeline.topics.marked import mark_of
from penstock.pipeline.topics.options import ISOLATION
from penstock.pipeline.topics.ranges import Range
from penstock.pipeline.workers import Workers


@dataclass(frozen=True, slots=True)
class ReplayWish:
    """What is replayed, and where to."""

    kafka: Mapping[str, str]
    selection: Selection
    target: str
    replay_id: str | None = None
    keeps_time: bool = False
    group: str | None = None
    """A group that goes on in the log itself: the live part is replayed too, and it is told where."""


@dataclass(frozen=True, slots=True)
class Source:
    """What of one partition is to be replayed, counted."""

    topic_id: str
    partition: int
    rows: int


class Replay:
    """One replay: planned when it is made, done by `run`, again and again if need be."""

    def __init__(self, wish: ReplayWish, lake: Lake, workers: Workers) -> None:
        self._wish = wish
        self._kafka = dict(wish.kafka) | {ISOLATION: "read_committed"}
        self._brokers = Brokers(self._kafka)
        self._lake = lake
        self._workers = workers
        lake.refresh()
        self._stored = by_partition(
            workers, lake.place, wish.selection, [file.path for file in wish.selection.of_files(lake.files())]
        )
        self.replay_id = wish.replay_id or replay_id_of(
            lake.place.uri, wish.selection, wish.target, group=wish.group, keeps_time=wish.keeps_time
        )
        self._tasks: list[ReplayTask] = []
        self._ends: Mapping[TopicPartition, int] = {}

    def count(self) -> list[Source]:
        """How many records of each partition of the lake are wanted; nothing is sent."""
        keys = list(self._stored)
        work = partial(count_wanted, self._lake.place, self._wish.selection)
        counts = self._workers.run(work, [self._stored[key] for key in keys]) if keys else []
        return [Source(*key, rows) for key, rows in zip(keys, counts, strict=True)]

    def run(self) -> list[Replayed]:
        """Sends what has not been sent."""
        target = self._target()
        self._tasks = self._live_tasks() if self._wish.group is not None else self._lake_tasks()
        plan = ReplayPlan(
            self._kafka,
            self._lake.place,
            self._wish.selection,
            target.name,
            len(target.partitions),
            self._wish.keeps_time,
        )
        done = self._workers.run(partial(replay, plan), self._tasks) if self._tasks else []
        marks = {each.name: each.position for each in done}
        self._lake.commit(Change(marks=marks), lambda: bool(marks))
        if self._wish.group is not None:
            self._hand_over(self._wish.group)
        return done

    def progress(self) -> tuple[int, int]:
        """Offsets that were looked at, and all, of the run that is on."""
        total = sum(max(0, task.end - task.start) for task in self._tasks)
        done = 0
        for task in self._tasks:
            mark = mark_of(self._kafka, task.name)
            done += min(max(0, (mark.number if mark else task.start) - task.start), max(0, task.end - task.start))
        return done, total

    def _target(self) -> Topic:
        if self._wish.target == self._wish.selection.topic:
            raise PipelineError(f"{self._wish.target}: a topic cannot be replayed to itself")
        found = self._brokers.topics([self._wish.target]).get(self._wish.target)
        if found is None:
            raise PipelineError(f"there is no topic {self._wish.target} to replay to")
        return found

    def _lake_tasks(self) -> list[ReplayTask]:
        first = self._wish.selection.first or 0
        return [self._task(*key, stored, first) for key, stored in self._stored.items()]

    def _live_tasks(self) -> list[ReplayTask]:
        """The lake's part of each partition of the topic as it is now, and what its log has behind that."""
        name = self._wish.selection.topic
        topic = self._brokers.topics([name]).get(name)
        if topic is None:
            raise PipelineError(f"there is no topic {name} whose log a group could go on with")
        partitions = [TopicPartition(name, number) for number in topic.partitions]
        firsts = self._brokers.first_offsets(partitions)
        ends = self._brokers.end_offsets(partitions, committed=True)
        tasks = []
        for at in partitions:
            done = self._lake.mark(self._name(topic.topic_id, at.partition))
            if done is not None:
                ends[at] = done
                continue
            watermark = self._lake.mark(offset_key(topic.topic_id, at.partition)) or 0
            start = max(self._wish.selection.first or 0, 0)
            if firsts[at] > max(watermark, start):
                raise DataLossError(
                    f"{at}: the lake ends at {watermark} and the log begins at {firsts[at]}: what is between is lost"
                )
            stored = self._stored.get((topic.topic_id, at.partition), [])
            live = Range(name, topic.topic_id, at.partition, max(watermark, firsts[at], start), ends[at])
            tasks.append(self._task(topic.topic_id, at.partition, stored, start, live if live.length > 0 else None))
        self._ends = ends
        return tasks

    def _task(
        self, topic_id: str, partition: int, stored: Iterable[Stored], first: int, live: Range | None = None
    ) -> ReplayTask:
        name = self._name(topic_id, partition)
        return ReplayTask(name, partition, tuple(stored), max(first, self._lake.mark(name) or 0), live)

    def _name(self, topic_id: str, partition: int) -> str:
        return f"penstock-replay.{self.replay_id}.{topic_id}.{partition}"

    def _hand_over(self, group: str) -> None:
        """The group goes on in the topic itself, behind what was replayed, unless it is there or further already."""
        has = self._brokers.committed_offsets(group, self._ends)
        self._brokers.commit_offsets(group, {at: end for at, end in self._ends.items() if has.get(at, -1) < end})


def replay_id_of(
    uri: str,
    selection: Selection,
    target: str,
    *,
    group: str | None = None,
    keeps_time: bool = False,
    window: tuple[str | None, str | None] | None = None,
) -> str:
    """The same for the same wish, in every process: asked for twice, it is one replay. A window that was given in
    words ("2h ago") counts as these words, since as times it would be another one every time.
    """
    sets = [selection.partitions, selection.keys, selection.tags, selection.biz_ids]
    times = window or (selection.since_ms, selection.until_ms)
    told = repr(
        (
            uri,
            (selection.topic, selection.first, selection.end, times),
            [None if each is None else sorted(each) for each in sets],
            (target, group, keeps_time),
        )
    )
    return hashlib.sha256(told.encode()).hexdigest()[:16]
