"""A group of the classic protocol as the broker sees it: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The first member in the leader's list gets the first share, and so on; shares are encoded before the clock starts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise

from bench.client.driver import DriverError
from bench.client.lines import RETRY_S, Exchange, Line, answer, request
from penstock.protocol import apis
from penstock.protocol.messages.consumer_protocol import (
    ASSIGNMENT,
    PROTOCOL_TYPE,
    SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

JOIN, SYNC, HEARTBEAT, LEAVE = 9, 5, 4, 5  # versions, those of current Java clients
ASSIGNOR = "range"
_ILLEGAL_GENERATION, _REBALANCE_IN_PROGRESS, _MEMBER_ID_REQUIRED = 22, 27, 79
_AGAIN = (_ILLEGAL_GENERATION, _REBALANCE_IN_PROGRESS)
_UNSET = 0x5A5B5C5D  # stands for the generation in a frame made before it is known


class Blank:
    """A frame whose generation is filled in when it is sent."""

    def __init__(self, frame: bytes) -> None:
        self._before, mark, self._after = frame.partition(struct.pack(">i", _UNSET))
        if not mark:
            raise ValueError("the frame has no generation")

    def filled(self, generation: int) -> bytes:
        return b"%b%b%b" % (self._before, struct.pack(">i", generation), self._after)


class ClassicGroup:
    """The members and the plan they agree on."""

    def __init__(self, exchange: Exchange, name: str, topics: Sequence[str], partitions: int, members: int) -> None:
        self.name = name
        self.exchange = exchange
        self._topics = tuple(topics)
        self._partitions = partitions
        self.spare = [ClassicMember(exchange.open(), self) for _ in range(members)]
        self.present: list[ClassicMember] = []
        self.generation = 0
        self._listed = 0  # members in the leader's list of that generation
        self._shares = {count: self._shared(count) for count in range(1, members + 1)}
        self.subscription = SUBSCRIPTION.encode(ConsumerProtocolSubscription(topics=self._topics))

    def shares(self, members: int) -> list[bytes]:
        return self._shares[members]

    def _shared(self, members: int) -> list[bytes]:
        """Each topic's partitions in equal ranges, encoded as the members will get them."""
        edges = [number * self._partitions // members for number in range(members + 1)]
        found = []
        for low, high in pairwise(edges):
            share = tuple(TopicPartition(topic=topic, partitions=tuple(range(low, high))) for topic in self._topics)
            found.append(ASSIGNMENT.encode(ConsumerProtocolAssignment(assigned_partitions=share)))
        return found

    def join(self, count: int) -> None:
        joining = [self.spare.pop() for _ in range(count)]
        self.present += joining
        for member in joining:
            member.join()

    def leave(self) -> None:
        gone = self.present.pop()
        gone.leave(self.wake)

    def wake(self) -> None:
        """Something has changed that members learn of by a heartbeat."""
        for member in self.present:
            member.wake()

    def settled(self) -> bool:
        return self._listed == len(self.present) and all(
            member.generation == self.generation for member in self.present
        )

    def planned(self, generation: int, members: int) -> None:
        if generation > self.generation:
            self.generation, self._listed = generation, members

    def dissolve(self) -> None:
        """Everybody leaves, so that no session ends while something else is measured."""
        leaving = tuple(MemberIdentity(member_id=member.member_id) for member in self.present)
        line = self.exchange.open()
        told = self.exchange.ask(line, apis.LEAVE_GROUP, LEAVE, LeaveGroupRequest(group_id=self.name, members=leaving))
        if told.error_code:
            raise DriverError(f"LeaveGroup answered {told.error_code}")


class ClassicMember:
    """One member; it is at rest or has one request on the way."""

    def __init__(self, line: Line, group: ClassicGroup) -> None:
        self.line = line
        self._group = group
        self.member_id = ""
        self.generation = -1  # of the assignment it has
        self._resting = True
        self._gone = False

    def join(self) -> None:
        frame = self._join_frame() if not self.member_id else self._rejoin
        self._send(frame, self._joined)

    def leave(self, left: Callable[[], None]) -> None:
        message = LeaveGroupRequest(group_id=self._group.name, members=(MemberIdentity(member_id=self.member_id),))

        def answered(frame: memoryview) -> None:
            if code := answer(apis.LEAVE_GROUP, LEAVE, frame).error_code:
                raise DriverError(f"LeaveGroup answered {code}")
            left()

        self._gone = True
        self._send(request(apis.LEAVE_GROUP, LEAVE, message), answered)

    def wake(self) -> None:
        if self._resting and self.generation >= 0:
            self._send(self._heartbeat.filled(self.generation), self._heard)

    def _send(self, frame: bytes, answered: Callable[[memoryview], None]) -> None:
        self._resting = False
        self.line.send(frame, answered)

    def _joined(self, frame: memoryview) -> None:
        told: JoinGroupResponse = answer(apis.JOIN_GROUP, JOIN, frame)
        if told.error_code == _MEMBER_ID_REQUIRED:
            self._name(told.member_id)
            self.join()
            self._group.wake()
        elif told.error_code == _REBALANCE_IN_PROGRESS:
            self.join()
        elif told.error_code:
            raise DriverError(f"JoinGroup answered {told.error_code}")
        elif told.leader == self.member_id:
            self._group.planned(told.generation_id, len(told.members))
            self._sync(told.generation_id, self._plan(told))
        else:
            self._sync(told.generation_id, self._follow.filled(told.generation_id))

    def _sync(self, generation: int, frame: bytes) -> None:
        def answered(frame: memoryview) -> None:
            told = answer(apis.SYNC_GROUP, SYNC, frame)
            if told.error_code in _AGAIN:
                self.join()
            elif told.error_code:
                raise DriverError(f"SyncGroup answered {told.error_code}")
            else:
                self.generation = generation
                self._rest()

        self._send(frame, answered)

    def _heard(self, frame: memoryview) -> None:
        code = answer(apis.HEARTBEAT, HEARTBEAT, frame).error_code
        if self._gone:
            return  # the last one, answered before the farewell
        if code in _AGAIN:
            self.join()
        elif code:
            raise DriverError(f"Heartbeat answered {code}")
        else:
            self._rest()

    def _rest(self) -> None:
        self._resting = True
        if not self._group.settled():
            self._group.exchange.later(RETRY_S, self._look)

    def _look(self) -> None:
        if not self._group.settled():
            self.wake()

    def _plan(self, told: JoinGroupResponse) -> bytes:
        shares = self._group.shares(len(told.members))
        return self._sync_frame(
            told.generation_id,
            tuple(
                SyncGroupRequestAssignment(member_id=member.member_id, assignment=share)
                for member, share in zip(told.members, shares, strict=True)
            ),
        )

    def _name(self, member_id: str) -> None:
        self.member_id = member_id
        self._rejoin = self._join_frame()
        self._follow = Blank(self._sync_frame(_UNSET, ()))
        message = HeartbeatRequest(group_id=self._group.name, generation_id=_UNSET, member_id=member_id)
        self._heartbeat = Blank(request(apis.HEARTBEAT, HEARTBEAT, message))

    def _join_frame(self) -> bytes:
        message = JoinGroupRequest(
            group_id=self._group.name,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=(JoinGroupRequestProtocol(name=ASSIGNOR, metadata=self._group.subscription),),
        )
        return request(apis.JOIN_GROUP, JOIN, message)

    def _sync_frame(self, generation: int, assignments: tuple[SyncGroupRequestAssignment, ...]) -> bytes:
        message = SyncGroupRequest(
            group_id=self._group.name,
            generation_id=generation,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=ASSIGNOR,
            assignments=assignments,
        )
        return request(apis.SYNC_GROUP, SYNC, message)
