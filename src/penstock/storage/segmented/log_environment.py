"""What all logs of one engine share: files, threads, bounds and the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.storage.files import Files
from penstock.storage.segmented.disk.first_files import FolderSync
from penstock.storage.segmented.disk.open_segments import OpenSegments
from penstock.storage.segmented.reading.tag_index import TagRoom
from penstock.storage.segmented.write_backlog import WriteBacklog


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnvironment:
    """What every log of an engine shares."""

    files: Files
    logs_folder: FolderSync
    open_segments: OpenSegments
    outstanding: WriteBacklog
    sync_pool: Executor
    write_back_pool: Executor
    read_pool: Executor
    clean_pool: Executor
    clock: Clock
    max_producers: int
    producer_expiry_ms: int
    compaction_memory_bytes: int
    recovery_bytes: int
    """When so much has been appended to a segment, the next checkpoint saves what a recovery needs to begin there."""
    tag_room: TagRoom
    start_moved: Callable[[], Awaitable[None]]
    """Called when a log's start offset has changed; what it gives is done when the checkpoint on disk says so."""
