"""Partitions that this broker leads, on their way to another database group.

The image says which (`database_to`). One task copies each of them, as long as this broker leads it in the same epoch
and the image wants it there; whether it has arrived is for the metadata to say (`docs/internals/database-groups.md`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.cluster.metadata import MetadataImage
from penstock.errors import ApiError, CoordinationError, StorageError
from penstock.ids import BrokerId, TopicId, TopicPartition
from penstock.logs import fields
from penstock.storage.contract import Engine

logger = logging.getLogger(__name__)

Finish = Callable[[TopicPartition, TopicId, int, str], Awaitable[bool]]
"""Has the metadata say that a partition, led here in an epoch, is in its new group; whether it is there."""

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.2, 10.0


class _Move(NamedTuple):
    at: TopicPartition
    topic_id: TopicId
    epoch: int
    target: str


class DatabaseMoves:
    """Follows the image; `close` ends all copying."""

    def __init__(self, broker: BrokerId, engine: Engine, finish: Finish) -> None:
        self._broker = broker
        self._engine = engine
        self._finish = finish
        self._tasks: dict[_Move, asyncio.Task[None]] = {}
        self._is_closing = False

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Begins the moves of this image. Those that it does not want any more are given up."""
        wanted = self._wanted(new)
        for move in self._tasks.keys() - wanted:
            self._tasks[move].cancel()
        for move in wanted - self._tasks.keys():
            task = asyncio.get_running_loop().create_task(self._run(move), name=f"move {move.at} to {move.target}")
            self._tasks[move] = task
            task.add_done_callback(lambda _, move=move: self._tasks.pop(move))  # type: ignore[misc]

    async def close(self) -> None:
        self._is_closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _wanted(self, image: MetadataImage) -> set[_Move]:
        if self._is_closing or not image.databases:
            return set()
        return {
            _Move(TopicPartition(topic.name, each.index), topic.id, each.leader_epoch, each.database_to)
            for topic in image.topics.values()
            if topic.is_shared
            for each in topic.partitions
            if each.database_to is not None and each.leader == self._broker
        }

    async def _run(self, move: _Move) -> None:
        pause_s = _FIRST_PAUSE_S
        while not await self._attempt(move):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _attempt(self, move: _Move) -> bool:
        """Whether the partition is in its new group."""
        log = self._engine.logs.get(move.at)
        if log is None or log.topic_id != move.topic_id:
            return False  # not taken over yet
        try:
            is_moved = await self._engine.move(move.at, move.target, lambda: self._committed(move))
        except (StorageError, ApiError) as error:
            logger.warning(
                "could not move a partition to another database group, will retry",
                extra=fields(log=str(move.at), group=move.target, error=str(error)),
            )
            return False
        if is_moved:
            logger.info("moved a partition to another database group", extra=fields(log=str(move.at), to=move.target))
        return is_moved

    async def _committed(self, move: _Move) -> bool:
        """Does not end before it is known: nothing can be appended meanwhile, here or there."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._finish(*move)
            except CoordinationError as error:
                if self._is_closing:
                    raise
                logger.warning(
                    "cannot commit that a partition has moved to another database group, will retry",
                    extra=fields(log=str(move.at), group=move.target, error=str(error)),
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
