"""Removal of retired partitions: their records, once retention and every group are done with them, then the partition.

The broker that leads a retired partition does it; the rules are in `cluster/decisions/retired_partitions.py`.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.background.reader_groups import ReaderGroups
from penstock.cluster.decisions.retired_partitions import Remains, may_go, without_last
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import PenstockError
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.records.batch import HEADER_BYTES, read_header
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.storage.retention import Hold
from penstock.views.catalogue import Catalogue

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


class PartitionRetirement:
    """One loop, with a name and a stop."""

    def __init__(
        self, metadata: MetadataChanges, replicas: Replicas, catalogue: Catalogue, readers: ReaderGroups, every_ms: int
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._catalogue = catalogue
        self._readers = readers
        self._every_s = every_ms / 1000
        self._stop = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop().create_task(self._run(), name="retired partitions")

    async def close(self) -> None:
        self._stop.set()
        if self._loop is not None:
            await self._loop

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(self._every_s):
                    await self._stop.wait()
            except TimeoutError:
                # The last of a topic first: then the one before it is the last.
                for partition in sorted(self._retired(), key=lambda found: -found.topic_partition.partition):
                    if not self._stop.is_set():
                        await self._look_after(partition)

    def _retired(self) -> list[Partition]:
        return [found for found in self._replicas if found.log.successor is not None and found.leadership is not None]

    async def _look_after(self, partition: Partition) -> None:
        try:
            await self._look_at(partition)
        except (PenstockError, OSError) as error:
            logger.error(
                "cannot clean up a retired partition",
                extra=fields(log=str(partition.topic_partition), error=str(error)),
            )

    async def _look_at(self, partition: Partition) -> None:
        at, log = partition.topic_partition, partition.log
        if not partition.knows_watermark:
            return  # there may be more to read than can be seen
        unread = await self._unread(partition)
        if unread is None:
            return
        await log.apply_retention(Hold(min(unread.values())) if unread else None)
        companion = partition.pair.companion
        if companion is not None and companion.start_offset < companion.end_offset:
            return  # messages wait here for their time, and come to this log
        remains = Remains(log.start_offset, log.end_offset, log.first_unstable_offset is not None, unread)

        def decide(draft: MetadataDraft) -> bool:
            topic = draft.topics.get(at.topic)
            if topic is None or topic.id != log.topic_id or not may_go(topic, at.partition, remains):
                return False
            draft.put_topic(without_last(topic))
            return True

        topic = self._metadata.image.topics.get(at.topic)
        if topic is not None and may_go(topic, at.partition, remains) and await self._metadata.change(decide):
            logger.info("removed a retired partition", extra=fields(log=str(at)))

    async def _unread(self, partition: Partition) -> dict[str, int] | None:
        """The groups that have something left to read, in the topic or in a view of it, and where they go on; None
        while that cannot be said.
        """
        at = partition.topic_partition
        unread: dict[str, int] = {}
        for view in (None, *self._catalogue.of_base(at.topic)):
            name = at.topic if view is None else view.name
            committed = await self._readers.committed(TopicPartition(name, at.partition))
            if committed is None:
                return None
            if view is None and (archive := partition.log.config.archive_group):
                committed = {archive: 0, **committed}
            for group, offset in committed.items():
                if view is None:
                    is_behind = await has_unread(partition, offset)
                else:
                    start = max(offset, partition.log.start_offset)
                    search = self._catalogue.search(view, partition, start, committed_only=True)
                    is_behind = await search.finds_any()
                if is_behind:
                    unread[group] = min(offset, unread.get(group, offset))
        return unread


async def has_unread(partition: Partition, offset: int) -> bool:
    """Whether a reader that goes on at `offset` would be given a record.

    Markers and aborted records do not count, because no consumer gets them: a client that has read everything may have
    committed an offset before them.
    """
    position = max(offset, partition.log.start_offset)
    while position < partition.high_watermark:
        found = await partition.read(position, _READ_BYTES)
        data = memoryview(found.read())
        aborted = sorted(partition.log.aborted_transactions(position, found.end_offset), key=lambda each: -each[1])
        leaving_out: set[int] = set()
        at = 0
        while at + HEADER_BYTES <= len(data):
            header = read_header(data, at)
            while aborted and aborted[-1].first_offset <= header.last_offset:
                leaving_out.add(aborted.pop().producer_id)
            if header.is_control:
                leaving_out.discard(header.producer_id)
            elif (
                header.last_offset >= position
                and header.record_count  # of a batch that waits elsewhere nothing is left here
                and not (header.is_transactional and header.producer_id in leaving_out)
            ):
                return True
            position = max(position, header.next_offset)
            at += header.size
        if at == 0:
            break
    return False
