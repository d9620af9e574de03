"""Replay: sends history from a lake to a topic, or to one consumer group up to the live log.

Rules:
- A replay has an id. Each transaction records how far its partition got (marked_producer.py). When a run ends, it also
  writes those offsets into the lake, where they do not expire. The next run starts at the higher of the two.
- Running a replay twice sends nothing twice; an interrupted replay resumes.
- A replay to a group is complete once its positions are in the lake. From then on the group reads the log by itself: a
  second run sends nothing and never moves the group back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from penstock.ids import TopicPartition
from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.lake.delta import Change, Lake
from penstock.pipeline.lake.record_table import offset_key
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.lake.stored_rows import Stored, by_partition, count_wanted
from penstock.pipeline.replay.task import Replayed, ReplayPlan, ReplayTask, replay
from penstock.pipeline.topics.kafka import Brokers, Topic
from penstock.pipeline.topics.marked_producer import mark_of
from penstock.pipeline.topics.options import ISOLATION
from penstock.pipeline.topics.ranges import Range
from penstock.pipeline.workers import Workers


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is replayed, and where to."""

    kafka: Mapping[str, str]
    selection: Selection
    target: str
    replay_id: str | None = None
    keeps_time: bool = False
    group: str | None = None
    """A group that goes on in the log itself: the replay sends the live part too, and sets the group's offsets."""


@dataclass(frozen=True, slots=True)
class Source:
    """What of one partition is to be replayed, counted."""

    topic_id: str
    partition: int
    rows: int


class Replay:
    """One replay: planned when it is made, done by `run`, again and again if need be."""

    def __init__(self, options: ReplayOptions, lake: Lake, workers: Workers) -> None:
        self._options = options
        self._kafka = dict(options.kafka) | {ISOLATION: "read_committed"}
        self._brokers = Brokers(self._kafka)
        self._lake = lake
        self._workers = workers
        lake.refresh()
        self._stored = by_partition(
            workers, lake.location, options.selection, [file.path for file in options.selection.of_files(lake.files())]
        )
        self.replay_id = options.replay_id or replay_id_of(
            lake.location.uri, options.selection, options.target, group=options.group, keeps_time=options.keeps_time
        )
        self._tasks: list[ReplayTask] = []
        self._ends: Mapping[TopicPartition, int] = {}

    def count(self) -> list[Source]:
        """How many records of each partition of the lake are wanted; nothing is sent."""
        keys = list(self._stored)
        work = partial(count_wanted, self._lake.location, self._options.selection)
        counts = self._workers.run(work, [self._stored[key] for key in keys]) if keys else []
        return [Source(*key, rows) for key, rows in zip(keys, counts, strict=True)]

    def run(self) -> list[Replayed]:
        """Sends what has not been sent."""
        target = self._target()
        self._tasks = self._live_tasks() if self._options.group is not None else self._lake_tasks()
        plan = ReplayPlan(
            self._kafka,
            self._lake.location,
            self._options.selection,
            target.name,
            len(target.partitions),
            self._options.keeps_time,
        )
        done = self._workers.run(partial(replay, plan), self._tasks) if self._tasks else []
        marks = {each.name: each.position for each in done}
        self._lake.commit(Change(marks=marks), lambda: bool(marks))
        if self._options.group is not None:
            self._hand_over(self._options.group)
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
        if self._options.target == self._options.selection.topic:
            raise PipelineError(f"{self._options.target}: a topic cannot be replayed to itself")
        found = self._brokers.topics([self._options.target]).get(self._options.target)
        if found is None:
            raise PipelineError(f"there is no topic {self._options.target} to replay to")
        return found

    def _lake_tasks(self) -> list[ReplayTask]:
        first = self._options.selection.first or 0
        return [self._task(*key, stored, first) for key, stored in self._stored.items()]

    def _live_tasks(self) -> list[ReplayTask]:
        """The lake's part of each partition of the topic as it is now, and what its log has behind that."""
        name = self._options.selection.topic
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
            start = max(self._options.selection.first or 0, 0)
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
    """The same name for the same options, in every process: a replay that is started twice is one replay. A window that
    was given in words ("2h ago") counts as these words, since as times it would be another one every time.
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
