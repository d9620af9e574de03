"""Logs that were set aside at the start, and go when the metadata says that they are nobody's here.

A broker that was away finds out only when it comes back that topics were deleted, or that its replicas were placed
elsewhere. What is left of them takes up room that nobody asks for any more. Rules:

- Only for a broker whose data folder belongs to the cluster that the metadata is of: one tree that was lost or changed
  by mistake must not take the records with it.
- Not at once: until `log.stray_keep_ms` after the start the operator can stop the broker and save what he wants.
- It is decided when the time is over, on the image of then. What this image has on this broker stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.cluster.metadata import MetadataImage
from penstock.ids import BrokerId
from penstock.logs import fields
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.storage.segmented.identity import Identity

logger = logging.getLogger(__name__)


def is_gone(image: MetadataImage, broker: BrokerId, owner: Identity) -> bool:
    """Whether the broker has no replica of what this log was of."""
    topic, index = image.topic_by_id(owner.topic_id), owner.topic_partition.partition
    return topic is None or index >= len(topic.partitions) or broker not in topic.partitions[index].replicas


class StrayRemoval:
    """One look, some time after the start."""

    def __init__(
        self, engine: SegmentedEngine, broker: BrokerId, image: Callable[[], MetadataImage], keep_ms: int
    ) -> None:
        self._engine = engine
        self._broker = broker
        self._image = image
        self._keep_s = keep_ms / 1000
        self._stop = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._waiting = asyncio.get_running_loop().create_task(self._wait(), name="stray logs")

    async def close(self) -> None:
        self._stop.set()
        if self._waiting is not None:
            await self._waiting

    async def look(self) -> None:
        """Removes what is nobody's here by now."""
        try:
            strays = await self._engine.find_strays()
        except OSError as error:
            logger.error("stray logs not found", extra=fields(error=str(error)))
            return
        for stray in strays:
            if self._stop.is_set():
                return
            if not is_gone(self._image(), self._broker, stray.owner):
                continue
            try:
                await self._engine.discard(stray)
                logger.info("stray log removed", extra=fields(folder=stray.folder.name))
            except OSError as error:
                logger.error("stray log not removed", extra=fields(folder=stray.folder.name, error=str(error)))

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), self._keep_s)
        except TimeoutError:
            await self.look()
