"""The coordinators of this broker, made when there is something to coordinate: most brokers are ready, and many live,
without.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.clock import Clock
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, MetadataImage
from penstock.config.broker import Config
from penstock.errors import ApiError, Code
from penstock.ids import TopicPartition
from penstock.replication.replicas import Replicas

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator
    from penstock.replication.marker import Marker
    from penstock.transactions.coordinator import TransactionCoordinator


class Coordinator(Protocol):
    """What is started and stopped with the broker."""

    async def start(self) -> None: ...

    def release(self) -> None: ...

    async def close(self) -> None: ...

    def topics_changed(self, old: MetadataImage, new: MetadataImage) -> None: ...


C = TypeVar("C", bound=Coordinator)


class OnDemand(Generic[C]):
    """Owns a coordinator, and makes it when it is first asked for."""

    def __init__(self, topic: str, controller: Controller, make: Callable[[], C]) -> None:
        self._topic = topic
        self._controller = controller
        self._make = make
        self._made: C | None = None

    @property
    def made(self) -> C | None:
        """The coordinator, if there is one."""
        return self._made

    async def start(self) -> None:
        """Loads the state of a broker that has some."""
        if self._topic in self._controller.image.topics:
            await self.coordinator().start()

    def coordinator(self) -> C:
        if self._made is None:
            self._made = self._make()
            self._controller.subscribe(self._made.topics_changed)
        return self._made

    def release(self) -> None:
        """Nobody waits any more; before connections are closed, which would wait for them."""
        if self._made is not None:
            self._made.release()

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()


class Coordinators:
    """Groups and transactions; a transaction that committed offsets ends in the groups' logs too."""

    def __init__(self, controller: Controller, replicas: Replicas, config: Config, clock: Clock) -> None:
        self._controller = controller
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self.groups: OnDemand[GroupCoordinator] = OnDemand(OFFSETS_TOPIC, controller, self._make_groups)
        self.transactions: OnDemand[TransactionCoordinator] = OnDemand(
            TRANSACTIONS_TOPIC, controller, self._make_transactions
        )

    async def start(self) -> None:
        await self.groups.start()
        await self.transactions.start()

    def release(self) -> None:
        self.transactions.release()
        self.groups.release()

    async def close(self) -> None:
        await self.transactions.close()
        await self.groups.close()

    async def write_marker(self, at: TopicPartition, marker: Marker) -> None:
        """Ends a transaction in one of the logs that it touched."""
        topic = self._controller.image.topics.get(at.topic)
        if topic is None or at.partition >= len(topic.partitions):
            raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if at.topic == OFFSETS_TOPIC:
            await self.groups.coordinator().end_transaction(at, marker)
        else:
            await marker.write_to(self._replicas.find(at.topic, at.partition))

    def _make_groups(self) -> GroupCoordinator:
        from penstock.groups.coordinator import GroupCoordinator

        return GroupCoordinator(self._controller, self._replicas, self._config.groups, self._clock, _new_member_id)

    def _make_transactions(self) -> TransactionCoordinator:
        from penstock.transactions.coordinator import TransactionCoordinator
        from penstock.transactions.producer_ids import ProducerIds

        return TransactionCoordinator(
            self._controller,
            self._replicas,
            self._config.transactions,
            self._clock,
            ProducerIds(self._controller),
            self.write_marker,
        )


def _new_member_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"
