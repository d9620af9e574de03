"""What an engine promises: logs that are appended to, read, trimmed and flushed.

Rules every engine keeps, and `tests/contract` checks:
- Offsets grow by one a record and never change, unless the end of the log is cut. A read returns whole batches, the
  first of which holds the offset asked for.
- An append is seen by readers as a whole or not at all, and is in order: awaiting `append` one after the other is
  enough.
- A batch handed to `append` is only borrowed: the caller may reuse its memory once `append` has returned.
- Errors: `ApiError` for what a client did wrong, `StorageError` when the log cannot go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.config.topic import TopicConfig
from penstock.errors import StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.records.batch import BatchHeader
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.epochs import EpochHistory
from penstock.storage.producers import ProducerState
from penstock.storage.retention import Hold
from penstock.storage.tags import TagIndex


class FilePart(Protocol):
    """Bytes that lie in a file and can be sent from there; the file stays open while somebody holds this."""

    position: int
    size: int

    def fileno(self) -> int: ...


Part = bytes | FilePart


class Appended(NamedTuple):
    """Where a batch came to lie."""

    base_offset: int
    last_offset: int
    append_time_ms: int = -1
    """Set if the topic stamps the time of the append."""
    is_repeat: bool = False
    """The batch was there already; the offsets are those of the first time."""


class Slice(NamedTuple):
    """Whole batches out of a log, ready to be sent."""

    parts: tuple[Part, ...]
    size: int
    end_offset: int = 0
    """Every record in it lies below; it may be more than the offset behind the last one."""
    aborted: list[AbortedTransaction] | None = None
    """The aborted transactions that overlap it, where only what is committed was asked for."""
    position: int = 0
    """Where parts that were read lie in their file; 0 if they are not from one."""


class Piece(NamedTuple):
    """Bytes inside a batch of a log: where the batch begins, and where they lie in what a read gives a part of."""

    base_offset: int
    position: int
    size: int


Parting = Callable[[memoryview, BatchHeader, int, int], memoryview]
"""Makes two halves of a checked batch (batch, its header, base offset, leader epoch): puts one aside, gives the other,
at the same offsets, which is written.
"""


class TimedOffset(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


NOTHING = Slice((), 0)


class Log(ABC):
    """One partition's records."""

    topic_partition: TopicPartition
    topic_id: TopicId
    config: TopicConfig
    start_offset: int
    """The lowest offset that can be read."""
    end_offset: int
    """The offset that the next record gets."""
    epochs: EpochHistory
    producers: ProducerState
    tags: TagIndex
    saved_high_watermark: int
    """What the partition last said of its high watermark, after a restart too; -1 if it is not known.

    Retention and compaction stay below it, because what lies above may be cut.
    """
    failure: StorageError | None = None
    """Why the log is offline."""
    disk_is_full: bool = False
    """An append found no room, and there has not been room to speak of since."""

    @property
    def can_write(self) -> bool:
        """Whether the next append has a chance."""
        return self.failure is None and not self.disk_is_full

    def has_room(self) -> bool:
        """Whether there is more room than for a record here and there."""
        return True

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """What the log occupies."""

    @property
    @abstractmethod
    def visible_end(self) -> int:
        """Readers may see what lies below: the end of the log or, where acknowledged means flushed, of the flushed."""

    @abstractmethod
    async def admit(self) -> None:
        """Returns when the log can take a write without falling further behind the disk."""

    @property
    def successor(self) -> int | None:
        """The partition that has taken the place of this one, which is retired: `append` raises RetiredError."""
        retired = self.config.partitions_retired
        return retired.get(self.topic_partition.partition) if retired else None

    @property
    def settled_end(self) -> int:
        """What lies below is not going to be cut."""
        return self.end_offset if self.saved_high_watermark < 0 else self.saved_high_watermark

    @property
    def readable_end(self) -> int:
        """Readers may see what lies below, and it is not going to be cut."""
        return min(self.visible_end, self.settled_end)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open, or whose marker readers may not see yet."""
        first = self.producers.first_unstable(self.readable_end)
        return None if first is None else max(first, self.start_offset)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap `start` to `end`, by the offset at which they began."""
        return self.producers.aborted.overlapping(start, end)

    @abstractmethod
    async def append(
        self,
        batch: memoryview,
        leader_epoch: int,
        *,
        guard: int | None = None,
        is_own: bool = False,
        part: Parting | None = None,
    ) -> Appended:
        """Checks a producer's batch, gives it offsets and stores it; stamps `batch` in place.

        A transactional batch is taken if its transaction is open in this log, or if `guard` is still
        `producers.guard(producer_id)`, which the caller took before it asked the coordinator. One that is our `own` was
        built by a coordinator: it has no sequence numbers and no repeats, and its CRC and its keys are taken as right.
        What is written, if it is neither refused nor a repeat, is what `part` makes of it.

        On return the batch is as safe as the topic's flush settings ask for.
        """

    @abstractmethod
    async def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        leader_epoch: int,
        part: Parting | None = None,
    ) -> Appended:
        """Ends the producer's transaction, if one is open here, and fences its earlier epochs; safe like `append`."""

    @abstractmethod
    async def append_as_is(self, batches: memoryview) -> int:
        """Takes over whole batches as the leader wrote them, offsets and epochs included; gives the new end.

        They are only borrowed, and on return as safe as the topic's flush settings ask for. What the log has already is
        left out, and so is a last batch that is not whole. Their offsets may leave gaps. ApiError if a batch is
        damaged, StorageError if one overlaps the end of the log; of those nothing is appended. But an empty log takes a
        batch that straddles its start.
        """

    @abstractmethod
    def put(self, batch: memoryview) -> None:
        """Writes a batch of no producer that we made, stamped and at or behind the end, and does not wait for the disk;
        `secure` does.
        """

    @abstractmethod
    async def secure(self, messages: int) -> None:
        """Returns when so many messages, which were put, are as safe as the topic's flush settings ask for."""

    @abstractmethod
    async def pieces(self, wanted: Sequence[Piece]) -> list[bytes]:
        """Parts of batches, unchecked; fewer bytes where they are not there."""

    @abstractmethod
    def sync_after(self, companion: Log) -> None:
        """From now on nothing of this log counts as safe from a power loss before all of `companion` is."""

    @abstractmethod
    async def cut(self, end_offset: int) -> None:
        """Drops everything from `end_offset` on, as if it had never been appended; at or above the end, nothing.

        Batches go whole: where one straddles `end_offset`, or compaction has left a gap there, the log ends behind the
        last batch that lies below. A cut below the start drops all and begins at `end_offset`. Nothing may be appended
        meanwhile.
        """

    @abstractmethod
    async def begin_at(self, start_offset: int) -> None:
        """Drops everything, epochs and producers included: the log starts and ends at `start_offset`."""

    @abstractmethod
    async def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        """Whole batches from `offset` on, below `end_offset`: at most `max_bytes`, but at least one batch."""

    @abstractmethod
    async def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        """The first record whose timestamp is not below `timestamp_ms`."""

    @abstractmethod
    async def find_max_timestamp(self) -> TimedOffset | None:
        """The first record that has the largest timestamp of the log."""

    @abstractmethod
    async def trim(self, start_offset: int) -> None:
        """Makes `start_offset` the start of the log: what lies below is gone for good."""

    @abstractmethod
    async def flush(self) -> None:
        """Returns when everything appended so far would survive a power loss, as far as the engine can promise it."""

    @abstractmethod
    def configure(self, config: TopicConfig) -> None:
        """Takes changed topic settings into account from now on."""

    @abstractmethod
    async def apply_retention(self, hold: Hold | None = None) -> int:
        """Drops what is older or larger than the topic's settings allow, but for what is held; gives how many bytes
        went although they were held.
        """

    @abstractmethod
    async def compact(self) -> bool:
        """Removes superseded records if the topic's settings call for it now; False if there was nothing to do."""


class Engine(ABC):
    """All logs of one broker that are stored in one way."""

    @property
    @abstractmethod
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that are open."""

    @abstractmethod
    async def open(self, wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]) -> None:
        """Brings back what is stored of the wanted logs and of their companions, creating the former if missing.

        A log that cannot be brought back stays out of `logs`, with an error in the log; the others come up.
        """

    @abstractmethod
    async def create(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig) -> Log:
        """A new, empty log."""

    @abstractmethod
    async def delete(self, at: TopicPartition) -> None:
        """Closes a log and removes what is stored of it."""

    @abstractmethod
    async def close(self) -> None:
        """Flushes and closes every log."""
