"""What retention leaves of topics that are archived: everything that their archive does not have yet, within bounds.

A topic names a group that stands for its archive (`penstock.archive.group`). Whoever archives commits to it, after the
archive has them, the offsets up to which it has the records: an ordinary commit. What cannot be found out is taken for
not archived; an old answer is a safe one, since these offsets only rise.
"""

from __future__ import annotations

import logging

from penstock.broker.readers import Readers
from penstock.logs import fields
from penstock.replication.partition import Partition
from penstock.storage.retention import Hold

logger = logging.getLogger(__name__)


class ArchiveHold:
    """Retention of one broker's partitions, with what is held for archives."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self.lost_bytes = 0
        """Went although no archive has it."""

    async def retain(self, partition: Partition) -> None:
        """Drops what is old. Of an archived topic only the leader does; followers begin where it begins."""
        log = partition.log
        group = log.config.archive_group
        if not group:
            await log.apply_retention()
            return
        if partition.leadership is None:
            return
        archived = await self._readers.committed_by(group, partition.topic_partition)
        hold = Hold(archived or 0, log.config.archive_max_bytes, log.config.archive_max_ms)
        lost = await log.apply_retention(hold)
        if lost:
            self.lost_bytes += lost
            logger.error(
                "records are gone that are not archived",
                extra=fields(log=str(partition.topic_partition), group=group, archived=hold.offset, bytes=lost),
            )
