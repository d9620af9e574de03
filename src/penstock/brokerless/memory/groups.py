"""Groups in memory: members with sessions, claims with epochs, committed offsets. Pure: the caller passes the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.brokerless.store import Claim, FencedClaimError, Granted, GroupClaims, GroupMember, GroupOffsets
from penstock.ids import TopicPartition


@dataclass(slots=True)
class _Session:
    member: GroupMember
    ends_ms: float


@dataclass(slots=True)
class MemoryGroup:
    """One group."""

    name: str
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    _sessions: dict[str, _Session] = field(default_factory=dict)
    _claims: dict[TopicPartition, Claim] = field(default_factory=dict)
    _epochs: dict[TopicPartition, int] = field(default_factory=dict)

    def heartbeat(self, member: GroupMember, session_ms: int, now_ms: float) -> GroupClaims:
        self._expire(now_ms)
        self._sessions[member.name] = _Session(member, now_ms + session_ms)
        return GroupClaims([session.member for session in self._sessions.values()], dict(self._claims))

    def claim(self, member: str, wanted: Sequence[TopicPartition], now_ms: float) -> Mapping[TopicPartition, Granted]:
        self._expire(now_ms)
        granted: dict[TopicPartition, Granted] = {}
        for tp in wanted if member in self._sessions else ():
            if tp not in self._claims:
                epoch = self._epochs[tp] = self._epochs.get(tp, 0) + 1
                self._claims[tp] = Claim(member, epoch)
                granted[tp] = Granted(epoch, self.committed.get(tp))
        return granted

    def release(self, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        for tp, epoch in epochs.items():
            if self._claims.get(tp) == Claim(member, epoch):
                del self._claims[tp]

    def leave(self, member: str) -> None:
        self._sessions.pop(member, None)
        for tp in [tp for tp, claim in self._claims.items() if claim.member == member]:
            del self._claims[tp]

    def check(self, offsets: GroupOffsets) -> None:
        """Raises `FencedClaimError` if a claim is not the member's any more."""
        for tp in offsets.positions:
            if self._claims.get(tp) != Claim(offsets.member, offsets.epochs[tp]):
                raise FencedClaimError(f"{tp} was taken from this member of group {self.name}; nothing was committed")

    def commit(self, offsets: GroupOffsets) -> None:
        self.check(offsets)
        self.committed.update(offsets.positions)

    def reads(self, topic: str) -> bool:
        """Whether the group has to do with a topic."""
        is_read = any(topic in session.member.topics for session in self._sessions.values())
        return is_read or any(tp.topic == topic for tp in self.committed)

    def _expire(self, now_ms: float) -> None:
        for name in [name for name, session in self._sessions.items() if session.ends_ms <= now_ms]:
            self.leave(name)


@dataclass(slots=True)
class MemoryGroups:
    """All groups."""

    _groups: dict[str, MemoryGroup] = field(default_factory=dict)

    def group(self, name: str) -> MemoryGroup:
        if name not in self._groups:
            self._groups[name] = MemoryGroup(name)
        return self._groups[name]

    def floor(self, topics: Iterable[str], partition: int, start: int) -> int | None:
        """The offset before which every group that reads one of the topics has committed; None if no group does."""
        floors = [
            group.committed.get(TopicPartition(topic, partition), start)
            for topic in topics
            for group in self._groups.values()
            if group.reads(topic)
        ]
        return min(floors, default=None)
