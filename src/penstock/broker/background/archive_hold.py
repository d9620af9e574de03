"""What retention keeps of archived topics: every record that the archive does not have yet, within bounds.

A topic names a group that stands for its archive (`penstock.archive.group`). The archiver commits to it, as an ordinary
commit, the offsets up to which the archive has the records. If the broker cannot find out an offset it takes the
records for not archived. An old answer is safe, because these offsets only rise.
"""

from __future__ import annotations

import logging

from penstock.broker.background.reader_groups import ReaderGroups
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.replication.partition import Partition
from penstock.storage.retention import Hold

logger = logging.getLogger(__name__)


class ArchiveHold:
    """Retention of one broker's partitions, with what is held for archives."""

    def __init__(self, readers: ReaderGroups) -> None:
        self._readers = readers
        self.archived: dict[TopicPartition, int] = {}
        """Up to where the archive had each partition that is led here, when that was last asked."""
        self.lost_bytes = 0
        """Went although no archive has it."""

    def role_changed(self, partition: Partition) -> None:
        """A partition has begun to lead or to follow, or has gone: what was known of it is its leader's business."""
        if partition.leadership is None:
            self.archived.pop(partition.topic_partition, None)

    async def retain(self, partition: Partition) -> None:
        """Drops what is old. Of an archived topic only the leader does; followers begin where it begins."""
        log = partition.log
        group = log.config.archive_group
        if not group:
            self.archived.pop(partition.topic_partition, None)
            await log.apply_retention()
            return
        if partition.leadership is None:
            return
        archived = await self._readers.committed_by(group, partition.topic_partition)
        if partition.leadership is not None:
            self.archived[partition.topic_partition] = archived or 0
        hold = Hold(archived or 0, log.config.archive_max_bytes, log.config.archive_max_ms)
        lost = await log.apply_retention(hold)
        if lost:
            self.lost_bytes += lost
            logger.error(
                "retention deleted records that were not archived",
                extra=fields(log=str(partition.topic_partition), group=group, archived=hold.offset, bytes=lost),
            )
