"""Committing offsets: one consumer that waits for each commit, and many groups that commit side by side."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from bench.client.classic_member import ClassicGroup
from bench.client.driver import DriverError
from bench.client.job import Job, Window, percentiles
from bench.client.kafka import COMMON
from bench.client.lines import Exchange, answer, request
from bench.client.members import await_coordinator
from penstock.protocol import apis
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

COMMIT = 9  # version of OffsetCommit, the last with topics by name
PATIENCE_S = 30.0


def one_by_one(job: Job) -> dict[str, float]:
    """A librdkafka consumer with assigned partitions commits all of them, waits for the answer, and commits again."""
    consumer = Consumer(
        {
            "bootstrap.servers": job.address,
            "group.id": job.group,
            "enable.auto.commit": "false",
            **COMMON,
        }
    )
    consumer.assign([TopicPartition(job.topic, partition) for partition in range(job.partitions)])
    offset = 0

    def commit() -> None:
        nonlocal offset
        offset += 1
        wanted = [TopicPartition(job.topic, partition, offset) for partition in range(job.partitions)]
        for done in consumer.commit(offsets=wanted, asynchronous=False):
            if done.error:
                raise DriverError(f"a commit was refused: {done.error}")

    commit()
    took: list[int] = []
    window = Window(job.server_pids)
    deadline = time.monotonic() + job.limit_s
    while time.monotonic() < deadline:
        begin = time.monotonic_ns()
        commit()
        took.append(time.monotonic_ns() - begin)
    figures = window.close(len(took))
    consumer.close()
    return {**figures, **percentiles(took)}


def side_by_side(job: Job) -> dict[str, float]:
    """`members` groups of one member each, a connection a group, so many commits on the way on each."""
    exchange = Exchange(job.address)
    committers = [_Committer(exchange, f"{job.group}-{number}", job) for number in range(job.members)]
    for committer in committers:
        committer.join()
    window = Window(job.server_pids)
    deadline = time.monotonic() + job.limit_s
    for committer in committers:
        for _ in range(job.load.in_flight or 1):
            committer.commit()
    exchange.run_until(lambda: time.monotonic() > deadline, job.limit_s + PATIENCE_S)
    for committer in committers:
        committer.going = False
    exchange.run_until(lambda: all(committer.on_the_way == 0 for committer in committers), PATIENCE_S)
    figures = window.close(sum(committer.done for committer in committers))
    for committer in committers:
        committer.group.dissolve()
    return figures


class _Committer:
    """A group of one member that commits again whenever it is answered."""

    def __init__(self, exchange: Exchange, name: str, job: Job) -> None:
        await_coordinator(exchange, name)
        self.group = ClassicGroup(exchange, name, [job.topic], job.partitions, 1)
        self.going = True
        self.done = 0
        self.on_the_way = 0
        self._exchange = exchange
        self._job = job
        self._frame = b""
        self._expected = b""

    def join(self) -> None:
        """Join, and commit once to see what the right answer looks like."""
        self.group.join(1)
        self._exchange.run_until(self.group.settled, PATIENCE_S)
        (self._member,) = self.group.present
        self._frame = request(apis.OFFSET_COMMIT, COMMIT, self._message())
        self._member.line.send(self._frame, self._first)
        self._exchange.run_until(lambda: bool(self._expected), PATIENCE_S)

    def commit(self) -> None:
        self.on_the_way += 1
        self._member.line.send(self._frame, self._answered)

    def _answered(self, frame: memoryview) -> None:
        if frame != self._expected:
            check(frame)
        self.on_the_way -= 1
        self.done += 1
        if self.going:
            self.commit()

    def _first(self, frame: memoryview) -> None:
        check(frame)
        self._expected = bytes(frame)

    def _message(self) -> OffsetCommitRequest:
        partitions = tuple(
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=1, committed_metadata="")
            for partition in range(self._job.partitions)
        )
        return OffsetCommitRequest(
            group_id=self.group.name,
            generation_id_or_member_epoch=self.group.generation,
            member_id=self._member.member_id,
            topics=(OffsetCommitRequestTopic(name=self._job.topic, partitions=partitions),),
        )


def check(frame: memoryview) -> None:
    told: OffsetCommitResponse = answer(apis.OFFSET_COMMIT, COMMIT, frame)
    codes = {partition.error_code for topic in told.topics for partition in topic.partitions}
    if codes != {0}:
        raise DriverError(f"OffsetCommit answered {sorted(codes)}")
