"""What every log of an engine shares: files, threads, bounds and the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.storage.segmented.files import Files
from penstock.storage.segmented.open_segments import OpenSegments
from penstock.storage.segmented.outstanding import Outstanding
from penstock.storage.segmented.tagindex import TagRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every log of an engine shares."""

    files: Files
    open_segments: OpenSegments
    outstanding: Outstanding
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
