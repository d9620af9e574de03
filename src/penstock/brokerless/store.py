"""What a form of queue without a broker provides: topics of partitions, groups that share them, and delayed messages.

Rules for every store:

- Calls block, and come from any thread. Each has a time limit.
- Offsets of a partition rise, and become visible in order: a reader that has seen an offset has seen all before it.
- A message whose headers ask for a delay waits in the store, which delivers it by itself while some process has the
  store open. It is never early.
- A partition is read by one member of a group at a time, the one that has its *claim*. A claim has an epoch: a member
  that lost it can no longer commit, even if it has not heard of the loss.
- `StoreAwayError` says that a later try may succeed; nothing else is tried again.

`StoreProducer`, `StoreGroupConsumer` and `StoreBackend` make a client of the SDK of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.ids import TopicPartition
from penstock.sdk.backend import Topics
from penstock.sdk.errors import ClientError
from penstock.sdk.ports import Outgoing, Received
from penstock.sdk.timers import TimerQuery, WaitingMessage


class StoreAwayError(ClientError):
    """The store does not answer, or has no room now. The text says why."""

    def __init__(self, message: str, *, is_outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_outcome_unknown = is_outcome_unknown
        """The store may have carried the call out: repeat the same call, with the same sequence."""


class StoreRefusedError(ClientError):
    """The store does not take this, now or later: a message that is too large, a delay that cannot be read."""

    def __init__(self, message: str, *, place: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.place = place
        """Which batch of a transaction, and which message in it; None if the store does not know."""


class FencedClaimError(ClientError):
    """Another member has a partition by now, or another client the transactional id; nothing was done."""


@dataclass(frozen=True, slots=True)
class Sequenced:
    """Tells a repeated append from a new one: the store takes each number of a producer and partition once."""

    producer_id: int
    first: int
    """The number of the first message; the others count on from it."""


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Messages for one partition, in order."""

    topic_partition: TopicPartition
    messages: Sequence[Outgoing]
    sequence: Sequenced


@dataclass(frozen=True, slots=True)
class ReadPage:
    """What was read of a partition."""

    messages: Sequence[Received]
    next_offset: int
    """Where to go on: behind the last message, and behind what is not shown."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, as all members see it."""

    name: str
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Claim:
    """That a member reads a partition."""

    member: str
    epoch: int
    """Rises with every new claim of the partition by the group."""


@dataclass(frozen=True, slots=True)
class GroupClaims:
    """The members of a group and the partitions that each reads, without members whose session is over."""

    members: Sequence[GroupMember]
    claims: Mapping[TopicPartition, Claim]


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim that a member got."""

    epoch: int
    committed: int | None
    """Where the group goes on; None if it has committed nothing."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets that a member commits, with the epochs of its claims."""

    group: str
    member: str
    positions: Mapping[TopicPartition, int]
    epochs: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class IdFence:
    """Which use of a transactional id this is; a later one fences it."""

    transactional_id: str
    epoch: int


class QueueStore(Protocol):
    """Topics, groups and delayed messages. All methods but those of `topics` raise `StoreAwayError`."""

    @property
    def address(self) -> str:
        """For log lines and errors; without a password."""
        ...

    @property
    def incarnation(self) -> str:
        """Another one when everything that was stored is gone: offsets and claims of the one before mean nothing."""
        ...

    @property
    def topics(self) -> Topics:
        """Topics with `penstock.view.of` and `penstock.view.tags` in their settings are views."""
        ...

    def settings(self, topic: str) -> Mapping[str, str]:
        """What a topic was created with. Raises `TopicError` if it does not exist."""
        ...

    # Messages

    def append(self, batch: SendBatch) -> Sequence[int | None]:
        """The offset of each message, None for one that is delayed. All or nothing; what was appended with the same
        sequence is not appended again. Raises `StoreRefusedError` and `TopicError`.
        """
        ...

    def is_writable(self, topic_partition: TopicPartition) -> bool:
        """False while its part of the store is known to be away: messages without a key go elsewhere."""
        ...

    def read(self, topic_partition: TopicPartition, offset: int, max_count: int) -> ReadPage:
        """Messages from an offset on; none if there are none yet. An offset that retention has passed reads from the
        oldest message.
        """
        ...

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int]:
        """The offset of the oldest message, and the one that the next message gets."""
        ...

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> None:
        """Return when there may be something at one of the positions, or when the time is over."""
        ...

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        """Delayed messages, by due time."""
        ...

    # Groups

    def heartbeat(self, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
        """Join the group, or stay in it for another session time. Members whose time is over lose their claims."""
        ...

    def claim(self, group: str, member: str, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, Granted]:
        """Claim partitions that no member has; those that another one has are not in the result."""
        ...

    def release(self, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        """Give claims back, except those that another member has by now."""
        ...

    def leave(self, group: str, member: str) -> None:
        """Leave the group, with all claims."""
        ...

    def committed(self, group: str, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Committed offsets; partitions without one are left out."""
        ...

    def commit(self, offsets: GroupOffsets) -> None:
        """All or nothing. Raises `FencedClaimError`."""
        ...

    def commit_initial(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of partitions in which the group has none, and leave the others."""
        ...

    # Transactions

    def fence(self, transactional_id: str) -> IdFence:
        """Begin to use a transactional id; earlier users of it can commit no more."""
        ...

    def commit_transaction(
        self, batches: Sequence[SendBatch], offsets: GroupOffsets | None, fence: IdFence | None
    ) -> Sequence[Sequence[int | None]]:
        """Append all batches and commit the offsets, all or nothing. Raises `FencedClaimError`, `StoreRefusedError` and
        `TopicError`; a store without transactions raises `StoreRefusedError`.
        """
        ...

    def close(self) -> None: ...
