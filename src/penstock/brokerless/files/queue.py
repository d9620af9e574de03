"""A folder as a client opens it: the store, and the maintenance beside it."""

from __future__ import annotations

from pathlib import Path

from penstock.brokerless.files.maintenance import FolderMaintenance
from penstock.brokerless.files.store import MAX_DELAYED, FileStore
from penstock.brokerless.topic_entries import DEFAULT_PARTITIONS


class FolderQueue(FileStore):
    """A `FileStore` whose delayed messages are delivered while it is open."""

    def __init__(self, folder: Path, *, is_synced: bool, partitions: int, max_delayed: int) -> None:
        super().__init__(folder, is_synced=is_synced, partitions=partitions, max_delayed=max_delayed)
        self._maintenance = FolderMaintenance(self)

    def close(self) -> None:
        self._maintenance.close()
        super().close()


def open_folder(
    folder: Path, *, is_synced: bool = False, partitions: int = DEFAULT_PARTITIONS, max_delayed: int = MAX_DELAYED
) -> FolderQueue:
    """Open a folder, and create it if it does not exist. Raises `StoreRefusedError` and `StoreAwayError`."""
    return FolderQueue(folder, is_synced=is_synced, partitions=partitions, max_delayed=max_delayed)
