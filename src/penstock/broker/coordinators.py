"""The coordinators of this broker, made when there is something to coordinate: most brokers are ready, and many live,
without.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.broker.elsewhere import Elsewhere
from penstock.broker.markers import write_marker
from penstock.broker.peers import Peers
from penstock.clock import Clock
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.cluster.retiring import is_writable
from penstock.config.broker import Config
from penstock.errors import ApiError, Code
from penstock.ids import TopicPartition
from penstock.replication.partition import Partition
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

    def look(self) -> None: ...


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
            self._made.look()
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

    def __init__(self, controller: Controller, replicas: Replicas, peers: Peers, config: Config, clock: Clock) -> None:
        self._controller = controller
        self.elsewhere = Elsewhere(replicas.broker, self, controller, peers)
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self.groups: OnDemand[GroupCoordinator] = OnDemand(OFFSETS_TOPIC, controller, self._make_groups)
        self.transactions: OnDemand[TransactionCoordinator] = OnDemand(
            TRANSACTIONS_TOPIC, controller, self._make_transactions
        )

    async def start(self) -> None:
        self._replicas.on_role(self._role_changed)
        await self.groups.start()
        await self.transactions.start()

    def release(self) -> None:
        self.transactions.release()
        self.groups.release()

    async def close(self) -> None:
        await self.transactions.close()
        await self.groups.close()

    async def write_marker(self, at: TopicPartition, marker: Marker) -> None:
        """Ends a transaction in one of the logs that it touched and that this broker leads."""
        topic = self._controller.image.topics.get(at.topic)
        if topic is None or not is_writable(topic, at.partition):
            raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if at.topic == OFFSETS_TOPIC:
            await self.groups.coordinator().end_transaction(at, marker)
        else:
            await write_marker(self._replicas, self._controller.image, at, marker)

    def _role_changed(self, partition: Partition) -> None:
        """A broker that leads a part of the state looks after it, whether or not somebody asks: what was decided
        elsewhere is completed here.
        """
        if partition.leadership is not None:
            if partition.topic_partition.topic == OFFSETS_TOPIC:
                self.groups.coordinator()
            elif partition.topic_partition.topic == TRANSACTIONS_TOPIC:
                self.transactions.coordinator()

    def _make_groups(self) -> GroupCoordinator:
        from penstock.groups.coordinator import GroupCoordinator

        made = GroupCoordinator(self._controller, self._replicas, self._config.groups, self._clock, _new_member_id)
        self._controller.subscribe(made.topics_changed)
        return made

    def _make_transactions(self) -> TransactionCoordinator:
        from penstock.transactions.coordinator import TransactionCoordinator
        from penstock.transactions.producer_ids import ProducerIds

        return TransactionCoordinator(
            self._controller,
            self._replicas,
            self._config.transactions,
            self._clock,
            ProducerIds(self._controller),
            self.elsewhere.write_marker,
        )


def _new_member_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"
