"""What the parts of the SDK ask of each other, so that each can stand on the real client and on a stub.

Pure: values and protocols only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from penstock.ids import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]
"""In order; a name may be there more than once."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as it goes to a broker: our extras are in its headers already."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    """None: chosen by the key, or spread if there is none."""
    timestamp_ms: int | None = None
    """None: now."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message is, once it is durable."""

    topic: str
    partition: int | None
    """None while it waits in a spill folder."""
    offset: int | None
    """None if there is none yet (the message is for later: its offset is made when it is due), or if nobody was asked
    (at-most-once)."""
    is_spilled: bool = False
    """It is durable on this machine only, and goes to the cluster once that is back (`Spill`)."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it came from a broker."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    base: str | None = None
    """If `topic` is a view: the topic that it shows."""

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Outbox(Protocol):
    """Sends messages."""

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """Returns at once; the future has the receipt once the message is durable, or a `SendError`."""
        ...


class Assignment(Protocol):
    """Whoever is told, inside `Inbox.poll` and `Inbox.close`, which partitions this member of the group has."""

    def assigned(self, places: Sequence[TopicPartition]) -> None:
        """They are ours from now on."""

    def revoked(self, places: Sequence[TopicPartition]) -> None:
        """They are given away when this returns; what was given to `Inbox.settled` before is committed."""

    def lost(self, places: Sequence[TopicPartition]) -> None:
        """They belong to somebody else already."""


class Inbox(Protocol):
    """Receives messages as a member of a group. One thread calls everything but `group_metadata`."""

    def join(self, topics: Sequence[str], assignment: Assignment, *, from_end: Sequence[str] = ()) -> None:
        """Becomes a member. What the group has never read is read from its beginning, or from where its end is now."""

    def poll(self, most: int, timeout_s: float) -> Sequence[Received]:
        """Up to so many messages. Has to be called all the time, also when everything is paused."""
        ...

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Gives nothing more from these, until they are resumed."""

    def resume(self, places: Iterable[TopicPartition]) -> None: ...

    def position(self, place: TopicPartition) -> int | None:
        """Behind what was given out, and behind what lies there that nobody is given (markers, aborted records)."""

    def settled(self, positions: Mapping[TopicPartition, int]) -> None:
        """Everything before these offsets is done: commits it soon, and before the partition is given away."""

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        """Commits now; `done` is called inside a later `poll` and says whether it was."""

    def rewind(self) -> bool:
        """Goes back to what is committed, everywhere; false if that could not be found out yet."""
        ...

    def group_metadata(self) -> object:
        """What a transaction needs that commits offsets of this group."""

    def close(self) -> None:
        """Commits what is settled and leaves the group."""
