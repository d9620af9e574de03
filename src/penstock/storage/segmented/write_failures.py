"""What happens to a log whose write fails or finds no room: the write is undone, or the log goes offline."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.errors import ApiError, Code, DiskFullError, StorageError
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
            logger.error("no disk space left for a write", extra=fields(log=str(name), error=str(error)))
        log.disk_is_full = True
        return DiskFullError(f"no room on the disk for {name}: {error.strerror}")
    return log.fail(StorageError(f"writing {name} failed: {error}"))


def check_room(log: SegmentedLog, error: ApiError) -> None:
    """A batch was refused as out of order: if the one before it found no room, raises that instead. Clients would begin
    a new epoch.
    """
    if log.disk_is_full and error.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        raise DiskFullError(f"no room on the disk for {log.topic_partition}") from error
