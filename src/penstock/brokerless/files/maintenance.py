"""What one of the processes that use a folder does for it: deliver messages that are due, complete what killed
processes had decided, remove old segments.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from penstock.brokerless.files.segments import base_offsets, segment_path
from penstock.brokerless.files.store import FileStore
from penstock.brokerless.maintenance import IDLE_MS, LEASE_MS, Maintenance
from penstock.brokerless.store import StoreAwayError
from penstock.brokerless.topic_entries import RETENTION_BYTES, RETENTION_MS, TopicEntry
from penstock.clock import Clock
from penstock.ids import TopicPartition

log = logging.getLogger(__name__)

_BATCH = 500
_COMPLETE_MS = 1_000
_RETAIN_MS = 10_000
DEFAULT_RETENTION_BYTES = 1024 * 1024 * 1024
DEFAULT_RETENTION_MS = 7 * 24 * 3600 * 1000
_UNLIMITED = -1


class FolderMaintenance(Maintenance):
    """That of one folder; it works from the beginning."""

    def __init__(self, store: FileStore, clock: Clock | None = None) -> None:
        super().__init__(store.address, store.timers_changed, clock)
        self._store = store
        self._complete_at_ms = self._retain_at_ms = float("-inf")
        self.start()

    def work(self, steady_ms: float) -> float:
        if steady_ms >= self._complete_at_ms:
            self._store.complete_decided()
            self._complete_at_ms = steady_ms + _COMPLETE_MS
        if steady_ms >= self._retain_at_ms:
            self._store.forget_sequences()
            self._remove_old()
            self._retain_at_ms = steady_ms + _RETAIN_MS
        return self._deliver()

    def _deliver(self) -> float:
        now_ms = self.clock.now_ms()
        due = self._store.timers.due(now_ms, _BATCH)
        if due:
            self._store.deliver(due)
            return 0
        following_ms = self._store.timers.next_due_ms()
        return IDLE_MS if following_ms is None else max(1, min(IDLE_MS, following_ms - now_ms))

    def take_lease(self) -> bool:
        now_ms = self.clock.now_ms()
        rows = self._store.database.read("select owner, ends_ms from leases where name = 'delivery'")
        # An end further away than a lease is long: the clock was set back.
        if rows and rows[0][0] != self.owner and now_ms < rows[0][1] <= now_ms + LEASE_MS:
            return False
        with self._store.database.writing() as db:
            taken = db.execute(
                "insert into leases values ('delivery', ?, ?) on conflict do update"
                " set owner = excluded.owner, ends_ms = excluded.ends_ms"
                " where owner = excluded.owner or ends_ms <= ? or ends_ms > ?",
                (self.owner, now_ms + LEASE_MS, now_ms, now_ms + LEASE_MS),
            )
            return taken.rowcount == 1

    def release_lease(self) -> None:
        with self._store.database.writing() as db:
            db.execute("delete from leases where name = 'delivery' and owner = ?", (self.owner,))

    def _remove_old(self) -> None:
        for topic, entry in self._store.topics.all().items():
            if entry.view_of is not None:
                continue
            for number in range(entry.partitions):
                try:
                    self._remove_old_segments(TopicPartition(topic, number), entry)
                except (OSError, StoreAwayError) as error:
                    log.warning("could not remove old segments of %s: %s", TopicPartition(topic, number), error)

    def _remove_old_segments(self, tp: TopicPartition, entry: TopicEntry) -> None:
        most = entry.number(RETENTION_BYTES, DEFAULT_RETENTION_BYTES)
        age_ms = entry.number(RETENTION_MS, DEFAULT_RETENTION_MS)
        folder = self._store.folder_of(tp)
        bases = base_offsets(folder)
        if not bases:
            return
        oldest_ms = None if age_ms == _UNLIMITED else self.clock.now_ms() - age_ms
        sizes = [segment_path(folder, base).stat() for base in bases]
        is_last_old = oldest_ms is not None and sizes[-1].st_size > 0 and _written_ms(sizes[-1]) < oldest_ms
        total = sum(each.st_size for each in sizes)
        gone: list[Path] = []
        for base, status in zip(bases[:-1], sizes, strict=False):
            is_old = oldest_ms is not None and _written_ms(status) < oldest_ms
            if not is_old and (most == _UNLIMITED or total <= most):
                break
            gone.append(segment_path(folder, base))
            total -= status.st_size
        if not gone and not is_last_old:
            return
        appender = self._store.appender(tp)
        with appender.locked():
            if is_last_old:
                # It is removed next time, unless it was written to meanwhile.
                appender.roll()
            for path in gone:
                path.unlink(missing_ok=True)


def _written_ms(status: os.stat_result) -> float:
    return status.st_mtime_ns / 1e6
