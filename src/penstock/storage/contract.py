"""What an engine promises: logs that are appended to, read, trimmed and flushed.

Rules every engine keeps, and `tests/contract` checks:
- Offsets grow by one a record and never change. A read returns whole batches, the first of which holds the offset asked
  for.
- An append is seen by readers as a whole or not at all, and is in order: awaiting `append` one after the other is
  enough.
- A batch handed to `append` is only borrowed: the caller may reuse its memory once `append` has returned.
- Errors: `ApiError` for what a client did wrong, `StorageError` when the log cannot go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from penstock.config.topic import TopicConfig
from penstock.ids import TopicId, TopicPartition
from penstock.storage.epochs import EpochHistory
from penstock.storage.producers import ProducerState


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

    @abstractmethod
    async def append(self, batch: memoryview, leader_epoch: int) -> Appended:
        """Checks a producer's batch, gives it offsets and stores it; stamps `batch` in place.

        On return the batch is as safe as the topic's flush settings ask for.
        """

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
    async def apply_retention(self) -> None:
        """Drops what is older or larger than the topic's settings allow."""

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
        """Brings back what is stored of the wanted logs, creating those that are missing.

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
