"""Events of a group and their outcomes: plain values, so that scenarios can be written as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.errors import Code
from penstock.groups.classic.members import Protocol, size_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup; `token` identifies the request that is answered when the rebalance is complete."""

    token: object
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    must_know_its_id: bool
    """The client can be told its id first and come again (JoinGroup v4 and above)."""
    can_skip_assignment: bool
    """A returning static leader can be told to keep the plan (JoinGroup v9 and above)."""

    @property
    def size(self) -> int:
        """Bytes that this client makes us hold."""
        return size_of(self.instance_id, self.client_id, self.protocols)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    token: object
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    member_id: str
    instance_id: str | None
    generation: int


class MemberEpoch(NamedTuple):
    """The member, and its epoch, for which an offset commit is made."""

    member_id: str
    instance_id: str | None
    epoch: int
    """The generation that it knows; -1 if it is no member."""

    @property
    def is_no_member(self) -> bool:
        """Whether it names no member: an administrator, or a consumer that assigned its partitions itself."""
        return self.epoch < 0 and not self.member_id and self.instance_id is None


@dataclass(frozen=True, slots=True)
class Leaver:
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a Join."""

    code: Code = Code.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """For the leader: id, instance id and metadata of every member."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a Sync."""

    code: Code = Code.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class Outcome:
    """What a machine wants done: records appended first, then replies sent.

    If the append fails, every client in `replies` gets the error instead.
    """

    records: list[Any] = field(default_factory=list)
    replies: list[tuple[object, Joined | Synced]] = field(default_factory=list)
    is_whole: bool = False
    """The records are one batch whatever their size: after a crash all of them are there or none."""
    expired: int = 0
    """Members that are out because they were not heard from in time."""
    fenced: int = 0
    """Members that were removed on request."""

    def take(self, other: Outcome) -> None:
        """Another one is carried out together with this one."""
        self.records += other.records
        self.replies += other.replies
        self.expired += other.expired
        self.fenced += other.fenced

    def reply(self, token: object | None, answer: Joined | Synced) -> None:
        """Answers a request, if there is one."""
        if token is not None:
            self.replies.append((token, answer))
