"""What a broker has on its disk: the logs of its replicas, and how much of them outlives a power loss.

As in the real log, an epoch is noted with its first record and not before, and cutting back is synced at once.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.storage.epochs import EpochHistory


class Record(NamedTuple):
    id: int
    """Different for each record that a producer ever makes."""
    epoch: int
    producer: int
    sequence: int
    written_ms: float
    """By the wall clock of the leader that appended it."""


class ReplicaLog:
    """One replica of one partition."""

    def __init__(self) -> None:
        self.start = 0
        self.records: list[Record] = []
        self.epochs = EpochHistory()
        self.high_watermark = 0
        self.producers: dict[int, tuple[int, int]] = {}
        """Of each producer the last sequence number and where it is."""
        self._synced_end = 0
        self._kept_watermark = 0

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def append(self, record: Record) -> int:
        offset = self.end
        self.records.append(record)
        if self.epochs.latest != record.epoch:
            self.epochs.begin(record.epoch, offset)
        self.producers[record.producer] = (record.sequence, offset)
        return offset

    def read(self, offset: int, end: int) -> list[Record]:
        return self.records[offset - self.start : end - self.start]

    def cut(self, end: int) -> list[Record]:
        """Drops everything from `end` on, and gives what was dropped."""
        kept = max(end - self.start, 0)
        dropped = self.records[kept:]
        del self.records[kept:]
        self.start = min(self.start, end)
        self.epochs.cut(end)
        self._synced_end = min(self._synced_end, end)
        self.high_watermark = min(self.high_watermark, end)
        self._kept_watermark = min(self._kept_watermark, end)
        self._recall(end)
        return dropped

    def begin_at(self, start: int) -> None:
        self.records.clear()
        self.epochs.cut(0)
        self.producers.clear()
        self.start = self._synced_end = self.high_watermark = self._kept_watermark = start

    def trim(self, start: int) -> None:
        start = min(start, self.end)
        if start > self.start:
            del self.records[: start - self.start]
            self.start = start
            self.epochs.trim(start)
            self.high_watermark = max(self.high_watermark, start)
            self._kept_watermark = max(self._kept_watermark, start)
            self._synced_end = max(self._synced_end, start)

    def sync(self) -> None:
        self._synced_end = self.end

    def keep_watermark(self) -> None:
        self._kept_watermark = self.high_watermark

    def restart(self) -> None:
        """The process is gone; the kernel has everything."""
        self.high_watermark = min(self._kept_watermark, self.end)

    def lose_power(self, share: float) -> int:
        """Of what was not synced, only a share is left; gives how many records are gone."""
        end = self._synced_end + int((self.end - self._synced_end) * share)
        lost = len(self.cut(end))
        self.restart()
        return lost

    def _recall(self, end: int) -> None:
        """What is known of the producers whose last record is gone."""
        for producer in [who for who, (_, offset) in self.producers.items() if offset >= end]:
            del self.producers[producer]
            for at in range(len(self.records) - 1, -1, -1):
                if self.records[at].producer == producer:
                    self.producers[producer] = (self.records[at].sequence, self.start + at)
                    break
