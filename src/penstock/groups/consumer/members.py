"""A member of a consumer group: its subscription, and its progress towards its target assignment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from penstock.groups.classic.members import Protocol, size_of
from penstock.groups.consumer.assignment import NOTHING, Assignment
from penstock.protocol.messages import group_records


class MemberState(IntEnum):
    """Numbered as the records number them."""

    STABLE = group_records.STABLE
    UNREVOKED_PARTITIONS = group_records.UNREVOKED_PARTITIONS
    UNRELEASED_PARTITIONS = group_records.UNRELEASED_PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    """What a member that speaks the classic protocol has said of itself."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """What a member has said of itself."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Names, in order."""
    pattern: str | None = None
    """An expression that further topics are found by."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSide | None = None

    @property
    def size(self) -> int:
        """Bytes that its client makes us hold, near enough."""
        protocols = () if self.classic is None else self.classic.protocols
        said = (self.rack_id or "", self.pattern or "", *self.topics)
        return size_of(self.instance_id, self.client_id, protocols) + sum(len(text) for text in said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The current assignment of a member."""

    epoch: int = 0
    previous_epoch: int = 0
    """The epoch before: a member that comes with it has missed an answer."""
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    """It has to let go of these, and has not said yet that it has."""

    def moved(self, epoch: int, state: MemberState, assigned: Assignment, revoking: Assignment = NOTHING) -> Current:
        previous = self.previous_epoch if epoch == self.epoch else self.epoch
        return Current(epoch=epoch, previous_epoch=previous, state=state, assigned=assigned, revoking=revoking)

    def left_for_now(self, epoch: int) -> Current:
        """A static member is away: what it had to let go of, it has."""
        return replace(self, epoch=epoch, revoking=NOTHING)

    def has_reached(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch


NEWCOMER = Current()
