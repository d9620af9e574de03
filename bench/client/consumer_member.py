"""A group of the new protocol (KIP-848) as the broker sees it: ConsumerGroupHeartbeat and nothing else.

A member gives up what it is asked to at once and says so with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from bench.client.driver import DriverError
from bench.client.lines import RETRY_S, Exchange, Line, answer, request
from penstock.protocol import apis
from penstock.protocol.messages.consumer_group_heartbeat import (
    JOIN,
    LEAVE,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

VERSION = 1
ASSIGNOR = "uniform"
LEAVE_LIMIT_S = 30.0


class ConsumerGroup:
    """The members; the broker makes the plan."""

    def __init__(self, exchange: Exchange, name: str, topics: Sequence[str], partitions: int, members: int) -> None:
        self.name = name
        self.exchange = exchange
        self.topics = tuple(topics)
        self._total = partitions * len(topics)
        self._spare = [ConsumerMember(exchange.open(), self) for _ in range(members)]
        self._present: list[ConsumerMember] = []

    def join(self, count: int) -> None:
        joining = [self._spare.pop() for _ in range(count)]
        self._present += joining
        for member in joining:
            member.join()

    def leave(self) -> None:
        self._present.pop().leave()

    def wake(self) -> None:
        """Something has changed that members learn of by a heartbeat."""
        for member in self._present:
            member.wake()

    def settled(self) -> bool:
        """Everybody has come to the same epoch, and every partition is with somebody, shared evenly."""
        if not self._present:
            return True
        sizes = [member.owned for member in self._present]
        return (
            sum(sizes) == self._total
            and max(sizes) - min(sizes) <= 1
            and len({member.epoch for member in self._present}) == 1
        )

    def dissolve(self) -> None:
        """Everybody leaves, so that no session ends while something else is measured."""
        leaving, self._present = self._present, []
        self.exchange.run_until(lambda: all(member.resting for member in leaving), LEAVE_LIMIT_S)
        for member in leaving:
            member.leave()
        self.exchange.run_until(lambda: all(member.epoch == LEAVE for member in leaving), LEAVE_LIMIT_S)


class ConsumerMember:
    """One member; it is at rest or has one heartbeat on the way."""

    def __init__(self, line: Line, group: ConsumerGroup) -> None:
        self.line = line
        self._group = group
        self._member_id = str(uuid4())
        self.epoch = JOIN
        self.owned = 0
        self.resting = True
        self._gone = False

    def join(self) -> None:
        self._beat(
            member_epoch=JOIN,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=self._group.topics,
            server_assignor=ASSIGNOR,
            topic_partitions=(),
        )
        self._group.wake()

    def leave(self) -> None:
        self._gone = True
        self._beat(member_epoch=LEAVE)

    def wake(self) -> None:
        if self.resting and self.epoch > JOIN:
            self._beat(member_epoch=self.epoch)

    def _beat(self, **fields: object) -> None:
        self.resting = False
        message = ConsumerGroupHeartbeatRequest(group_id=self._group.name, member_id=self._member_id, **fields)  # type: ignore[arg-type]
        self.line.send(request(apis.CONSUMER_GROUP_HEARTBEAT, VERSION, message), self._heard)

    def _heard(self, frame: memoryview) -> None:
        told: ConsumerGroupHeartbeatResponse = answer(apis.CONSUMER_GROUP_HEARTBEAT, VERSION, frame)
        if told.error_code:
            raise DriverError(f"ConsumerGroupHeartbeat answered {told.error_code}: {told.error_message}")
        if self._gone and told.member_epoch != LEAVE:
            return  # the heartbeat before the last
        self.epoch = told.member_epoch
        self.resting = True
        if self.epoch == LEAVE:
            self._group.wake()
        elif told.assignment is not None:
            self._take(told.assignment.topic_partitions)
        elif not self._group.settled():
            self._group.exchange.later(RETRY_S, self._look)

    def _take(self, share: tuple[TopicPartitions, ...]) -> None:
        self.owned = sum(len(topic.partitions) for topic in share)
        self._beat(member_epoch=self.epoch, topic_partitions=share)

    def _look(self) -> None:
        if not self._group.settled():
            self.wake()
