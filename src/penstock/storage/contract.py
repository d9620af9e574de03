"""What an engine promises: logs that are appended to, read, trimmed and flushed.

Rules every engine keeps, and `tests/contract` checks:
- Offsets grow by one a record and never change, unless the end of the log is cut. A read returns whole batches, the
  first of which holds the requested offset.
- An append has three steps: `check` compares a batch with the state of the log, `write` gives it an offset and makes
  it part of the log, `secure` waits until it is as safe as the topic asks for. Readers see a written batch as a whole
  or not at all.
- Writes are serialised. From `check` to the end of `write` the caller must be alone with the log, or two batches would
  get the same offset, or pass the same sequence check. On an engine whose `write` never suspends, a caller that awaits
  nothing else in between is alone. An engine whose `write` suspends sets `write_suspends`; its callers then hold one
  lock per log from `check` to the end of `write` (`replication.partition` does). `secure` needs no lock.
- A `secure` that waits ends when its log is closed or deleted, at the latest.
- A `write` that was begun ends before it returns or raises, even if its caller is cancelled: the caller holds the lock
  until then. Only when it has ended do `end_offset` and `producers` include the batch.
- A batch handed to `write` is only borrowed: the caller may reuse its memory once `write` has returned.
- Errors: `ApiError` for what a client did wrong, `StorageError` when the log cannot go on.

A *shared* engine keeps its logs where every broker reaches them (`docs/internals/sql.md`). More rules for those:
- The broker that leads a partition is the only one that has its log open, and takes it over before it does anything
  else with it. From then on an earlier leader can change nothing of it, however late its appends and trims come.
- What a broker lets go because another one leads is released, not deleted.
- A log is known by its topic's id: what is stored under the same name with another id is another log, and stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.parts import Part, read_part, read_parts, size_of
from penstock.records.batch import HEADER_BYTES, BatchHeader, read_header
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.admission import Checked, Inspected
from penstock.storage.epochs import EpochHistory
from penstock.storage.files import Files
from penstock.storage.producers import ProducerState
from penstock.storage.retention import Hold
from penstock.storage.tags import TagIndex


class ReplicaBehindError(ApiError):
    """The log has the requested records, but not yet where it can read them now. A later read gets them."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.OFFSET_NOT_AVAILABLE, message)


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
    """The aborted transactions that overlap it, if the reader wants only what is committed."""
    position: int = 0
    """Where parts that were read lie in their file; 0 if they are not from one."""

    def read(self) -> bytes:
        """All of its bytes."""
        return read_parts(self.parts)

    def headers(self) -> Iterator[BatchHeader]:
        """The headers of its batches, without reading their records."""
        for part in self.parts:
            position, size = 0, size_of((part,))
            while size - position >= HEADER_BYTES:
                header = read_header(read_part(part, position, HEADER_BYTES))
                yield header
                position += header.size

    def batches(self) -> Iterator[tuple[memoryview, BatchHeader, int]]:
        """Its batches, and where each lies in its file."""
        for part in self.parts:
            content, position = memoryview(read_part(part)), 0
            file_position = self.position if isinstance(part, bytes) else part.position
            while len(content) - position >= HEADER_BYTES:
                header = read_header(content, position)
                yield content[position : position + header.size], header, file_position + position
                position += header.size


class Piece(NamedTuple):
    """Bytes inside a batch of a log: where the batch begins, and where they lie in what a read gives a part of."""

    base_offset: int
    position: int
    size: int


class SideFolder(NamedTuple):
    """A folder that comes and goes with its log, for files that others make from the log."""

    path: Path
    files: Files


class StrayLog(NamedTuple):
    """Something stored of a log that the broker did not ask for when it opened the engine."""

    name: str
    topic_id: TopicId
    topic_partition: TopicPartition
    database: str = "default"
    """Of a shared engine: the database group that has it."""


class LogSegment(NamedTuple):
    """A part of a log that is stored, and removed, as one."""

    base_offset: int
    end_offset: int
    """One past its last offset."""
    size_bytes: int
    first_timestamp_ms: int
    """Of its first batch; -1 if that has none."""
    max_timestamp_ms: int
    """Retention by time counts from it; -1 if it is not known."""


class TimedOffset(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


NOTHING = Slice((), 0)


class DamagedRange(NamedTuple):
    """Offsets that cannot be read, because the bytes behind them are not what was written."""

    first_offset: int
    resumes_at: int
    """The next offset that can be read."""
    size: int
    """Bytes; 0 where they are missing."""


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
    write_suspends: bool = False
    """Whether other tasks may run before `write` has returned: then callers hold a lock from `check` to its end."""

    reloads: int = 0
    """How many times the log was read again from where it is stored: it may have more since, or less."""
    on_reload: Callable[[], None] | None = None
    """Called after `reloads` has grown and the log is what is stored; the one who has to know puts it here."""
    is_read_only: bool = False
    """Opened by `Engine.open_read_only`: it takes nothing, and others may have seen more than it has."""

    @property
    def secures_later(self) -> bool:
        """Whether `secure` may wait for a disk or a database, so that it is worth while to write more meanwhile."""
        return False

    @property
    def stores_records(self) -> bool:
        """Whether the log stores the records of a batch one by one: then they cost more than the bytes of the batch,
        and one that cannot be read has to be refused before its batch is written.
        """
        return False

    def check_records(self, header: BatchHeader, block: memoryview) -> None:
        """ApiError if the log cannot store a batch with these decompressed records. Pure: it may run in a thread."""
        assert not self.stores_records, "a log that stores records knows which it can store"

    async def take_over(self, leader_epoch: int) -> None:
        """Makes this broker the one that may append, in an epoch, and brings the log to what is stored: start, end,
        epochs and producers may change. Only the logs of a shared engine have something to do.

        ApiError with NOT_LEADER_OR_FOLLOWER if a later epoch has begun; StorageError if it did not succeed and may be
        tried again. What was written here before and is not committed by then is not, and its `secure` raises.
        """
        return

    @property
    def side_folder(self) -> SideFolder | None:
        """Where files that are made from the log can be kept; None if the engine stores logs in another way."""
        return None

    def has_room(self) -> bool:
        """Whether there is more room than for a record here and there."""
        return True

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """What the log occupies."""

    def described_segments(self) -> Sequence[LogSegment]:
        """What the log is divided into, ascending; nothing where the engine does not divide it, or nothing is stored
        yet.
        """
        return ()

    @property
    @abstractmethod
    def visible_end(self) -> int:
        """Readers may see what lies below: the end of the log or, where acknowledged means flushed, of the flushed."""

    @abstractmethod
    async def prepare_write(self) -> None:
        """Returns when the log has what a write needs, and is not too far ahead of the disk."""

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
    def check(
        self,
        batch: memoryview,
        *,
        guard: int | None = None,
        is_own: bool = False,
        inspected: Inspected | None = None,
    ) -> Checked:
        """Checks a producer's batch: its shape, CRC, limits, sequence and transaction. Changes nothing in the log.

        The log takes a transactional batch if its transaction is open here, or if `guard` still equals
        `producers.guard(producer_id)`, which the caller read before it asked the coordinator. A coordinator of this
        broker built a batch that `is_own`: it has no sequence numbers and no repeats, and its CRC and keys are not
        checked. What was `inspected` before is not inspected again.

        ApiError if the batch is refused; RetiredError if this log is retired and the batch is no repeat.
        """

    @abstractmethod
    def check_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int
    ) -> Checked:
        """Builds the marker that ends the producer's transaction, if one is open here, and fences its earlier epochs;
        ApiError if the producer or the coordinator is fenced itself.
        """

    @abstractmethod
    async def write(self, checked: Checked, base_offset: int, leader_epoch: int) -> None:
        """Writes a checked batch, which is no repeat, at `base_offset`, the end of the log; stamps it in place.

        `prepare_write` must have returned before the batch was checked. If it raises, the log is as it was before.
        """

    def _remember_marker(self, checked: Checked, offset: int) -> None:
        """Takes a written marker into account."""
        header, marker = checked.header, checked.marker
        assert marker is not None
        self.producers.remember_marker(header.producer_id, header.producer_epoch, marker, offset, checked.now_ms)
        self.producers.settle(self.readable_end)

    @abstractmethod
    async def write_stamped(self, batch: memoryview) -> None:
        """Writes a batch that a broker built and stamped, at or behind the end of the log; `producers` is not told."""

    @abstractmethod
    async def secure(self, messages: int) -> None:
        """Returns when the log is as safe as the topic's flush settings ask for after `messages` more were written,
        0 for a repeat; UnsyncedError if the sync failed.
        """

    @abstractmethod
    async def append_as_is(self, batches: memoryview) -> int:
        """Takes over whole batches as the leader wrote them, offsets and epochs included; gives the new end.

        They are only borrowed, and on return as safe as the topic's flush settings ask for. What the log has already is
        left out, and so is a last batch that is not whole. Their offsets may leave gaps. ApiError if a batch is
        damaged, StorageError if one overlaps the end of the log; of those nothing is appended. But an empty log takes a
        batch that straddles its start.
        """

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
        """Whole batches from `offset` on, below `end_offset`: at most `max_bytes`, but at least one batch.

        A shared engine may raise ReplicaBehindError, here and where records are looked for.
        """

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

    @property
    def damage(self) -> Sequence[DamagedRange]:
        """What is known to be unreadable; `read` finds out, and raises CORRUPT_MESSAGE."""
        return ()

    def damage_at(self, offset: int) -> DamagedRange | None:
        return next((each for each in self.damage if each.first_offset <= offset < each.resumes_at), None)

    async def damaged_bytes(self, damage: DamagedRange) -> bytes:
        """What lies in the place of a damaged range, to be looked at and not to be believed."""
        return b""

    async def repair(self, damage: DamagedRange, batches: memoryview) -> bool:
        """Puts a copy of what was written in the place of a damaged range; False if it does not fit there, byte by
        byte: then nothing is changed.
        """
        return False


class Engine(ABC):
    """All logs of one broker that are stored in one way."""

    is_shared: bool = False
    """Whether every broker reaches all logs: see the rules above."""

    @property
    def open_files(self) -> int:
        """How many files of logs are open."""
        return 0

    @property
    def unwritten_bytes(self) -> int:
        """How much of what was written waits for the disk."""
        return 0

    @property
    def lost_records(self) -> int:
        """Of a shared engine: how many records logs have been found without, since the start of this broker."""
        return 0

    @abstractmethod
    async def find_strays(self) -> Sequence[StrayLog]:
        """Stored logs that the broker did not ask for when it opened the engine, and whose topic is known.

        Of a shared engine: every log of this cluster that is stored and not open here, also those of other brokers.
        """

    @abstractmethod
    async def discard(self, stray: StrayLog) -> None:
        """Removes what is stored of a stray log, for good; OSError or StorageError if that fails."""

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
    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = "default"
    ) -> Log:
        """A new, empty log. Nothing need be stored of it before its first append.

        A shared engine, and no other, looks at `database`: the database group that has the log. It brings back what is
        stored of the log and of its companion, and makes the log if there is nothing; StorageError if that fails, and
        then neither is open.
        """

    def takes_writes(self, database: str) -> bool:
        """Of a shared engine: whether, as far as is known, a database group takes writes now."""
        return True

    async def open_read_only(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str) -> Log:
        """Of a shared engine: a log, and its companion, as far as they can be read while the database group takes no
        writes; StorageError if that fails, and then neither is open. `create` replaces it by one that takes writes.
        """
        raise StorageError(f"{at} cannot be opened: this engine reads from one place only")

    @abstractmethod
    async def delete(self, *logs: TopicPartition) -> None:
        """Closes logs and removes what is stored of them; what cannot be removed is said in the broker's log.

        Of a shared engine another broker may do the same: what is gone already is no error.
        """

    async def release(self, *logs: TopicPartition) -> None:
        """Closes logs of a shared engine and removes nothing: another broker leads them, or is about to."""
        raise NotImplementedError("the logs of this engine are on this broker alone: no other broker can open them")

    async def move(self, at: TopicPartition, database: str, commit: Callable[[], Awaitable[bool]]) -> bool:
        """Copies a log of a shared engine, and its companion, to another database group; whether it is there now.

        `commit` is called when the copy is complete, and while nothing can be appended: it says, for all brokers, where
        the log is. If it gives True this log takes nothing any more, and is to be released; what is stored in the
        former group goes then. Else the log goes on where it is, and the copy goes.
        """
        raise NotImplementedError("the logs of this engine are in no database")

    @abstractmethod
    async def close(self) -> None:
        """Flushes and closes every log."""
