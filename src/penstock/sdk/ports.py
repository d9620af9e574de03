"""Values and protocols that connect the parts of the SDK, so that each works with a cluster and with the stub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from penstock.ids import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]
"""Names and values in order; a name may occur more than once."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as it goes to a broker; delays, tags and ids are already headers."""

    topic: str
    """The topic to send to."""
    value: bytes | None
    """The payload."""
    key: bytes | None = None
    """The key."""
    headers: Headers = ()
    """All headers, including those of Penstock."""
    partition: int | None = None
    """None: the key decides, or any partition if there is no key."""
    timestamp_ms: int | None = None
    """None: now."""

    @property
    def size_bytes(self) -> int:
        """The bytes that count towards the bound of a buffer."""
        return len(self.value or b"") + len(self.key or b"")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a durable message is stored."""

    topic: str
    """The topic of the message."""
    partition: int | None
    """None while the message waits in a spill folder."""
    offset: int | None
    """None for a delayed message, which gets its offset on delivery, and with at-most-once."""
    is_spilled: bool = False
    """The message is stored on this machine (`Spill`) and goes to the cluster when that is reachable."""


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
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class MessageProducer(Protocol):
    """Sends messages."""

    def send_soon(self, outgoing: Outgoing) -> Future[Receipt]:
        """Return at once; the future holds the receipt once the message is durable, or a `SendError`."""
        ...


class RebalanceListener(Protocol):
    """Learns, inside `GroupConsumer.poll` and `GroupConsumer.close`, which partitions this member owns."""

    def assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """This member now owns the partitions."""

    def revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """This member gives the partitions away on return; offsets stored before are committed."""

    def lost(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """The partitions already belong to another member."""


class GroupConsumer(Protocol):
    """Receives messages as a member of a group. One thread calls everything but `group_metadata`."""

    def join(self, topics: Sequence[str], listener: RebalanceListener, *, from_end: Sequence[str] = ()) -> None:
        """Join the group. Without committed offsets it reads from the beginning, or from the end for topics in
        `from_end`.
        """

    def poll(self, max_count: int, timeout_s: float) -> Sequence[Received]:
        """Return up to `max_count` messages. Call it continuously, also while all partitions are paused."""
        ...

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Return no messages of these partitions until they are resumed."""

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None: ...

    def position(self, tp: TopicPartition) -> int | None:
        """The offset behind the last message returned and the records that are never returned (markers, aborted)."""

    def store_offsets(self, positions: Mapping[TopicPartition, int]) -> None:
        """Everything before these offsets is settled: commit them soon, and before the partitions are revoked."""

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        """Commit now; a later `poll` calls `done` with whether it succeeded."""

    def seek_to_committed(self) -> bool:
        """Seek all partitions to their committed offsets; False if these could not be read yet."""
        ...

    def group_metadata(self) -> object:
        """What a transaction needs to commit offsets of this group."""

    def close(self) -> None:
        """Commit stored offsets and leave the group."""
