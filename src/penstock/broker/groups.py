"""The group coordinator of this broker, made when there are groups: most brokers are ready, and many live, without."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from penstock.clock import Clock
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import OFFSETS_TOPIC
from penstock.config.broker import GroupSettings
from penstock.replication.replicas import Replicas

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator


class LazyGroups:
    """Owns the coordinator."""

    def __init__(self, controller: Controller, replicas: Replicas, settings: GroupSettings, clock: Clock) -> None:
        self._controller = controller
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._coordinator: GroupCoordinator | None = None

    async def start(self) -> None:
        """Loads the groups of a broker that has had some."""
        if OFFSETS_TOPIC in self._controller.image.topics:
            await self.coordinator().start()

    def coordinator(self) -> GroupCoordinator:
        if self._coordinator is None:
            from penstock.groups.coordinator import GroupCoordinator

            self._coordinator = GroupCoordinator(
                self._controller, self._replicas, self._settings, self._clock, _new_member_id
            )
            self._controller.subscribe(self._coordinator.topics_changed)
        return self._coordinator

    def release(self) -> None:
        """Nobody waits for a rebalance any more; before connections are closed, which would wait for them."""
        if self._coordinator is not None:
            self._coordinator.release()

    async def close(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.close()


def _new_member_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"
