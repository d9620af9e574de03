"""What becomes of a log when a write fails: it is as it was before, or it goes offline."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.errors import DiskFullError, StorageError
from penstock.logs import fields
from penstock.storage.segmented.flusher import NO_ROOM

if TYPE_CHECKING:
    from penstock.storage.segmented.log import SegmentedLog
    from penstock.storage.segmented.segment import Segment

logger = logging.getLogger(__name__)


def write_failed(log: SegmentedLog, segment: Segment, error: OSError) -> StorageError:
    """A write that did not happen leaves the log as it was; if that cannot be made sure, the log goes offline."""
    name = log.topic_partition
    try:
        segment.file.truncate(segment.size)
    except OSError as second:
        return log.fail(StorageError(f"writing {name} failed ({error}) and could not be undone ({second})"))
    if error.errno in NO_ROOM:
        if not log.disk_is_full:
            logger.error("no room to write", extra=fields(log=str(name), error=str(error)))
        log.disk_is_full = True
        return DiskFullError(f"no room on the disk for {name}: {error.strerror}")
    return log.fail(StorageError(f"writing {name} failed: {error}"))
