"""The coordinators of this broker, for groups and for transactions.

Each is made when there is something to coordinate: most brokers start, and many run, without.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.broker.metrics.registry import LabelledValue
from penstock.broker.peers import Peers
from penstock.broker.remote_groups import RemoteGroups
from penstock.broker.remote_transactions import RemoteTransactions
from penstock.clock import Clock
from penstock.cluster.decisions.retired_partitions import is_writable, successor_of_gone
from penstock.cluster.metadata import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.broker import Config
from penstock.errors import ApiError, Code
from penstock.ids import TopicPartition, stand_in_id
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator
    from penstock.groups.group_tables.tables import GroupTables
    from penstock.groups.offset_tables.tables import OffsetTables
    from penstock.replication.transaction_marker import TransactionMarker
    from penstock.sql.groups import DatabaseGroups
    from penstock.transactions.coordinator import TransactionCoordinator


class CoordinatorLifecycle(Protocol):
    """What is started and stopped with the broker."""

    async def start(self) -> None: ...

    def release(self) -> None: ...

    async def close(self) -> None: ...

    def look(self) -> None: ...


C = TypeVar("C", bound=CoordinatorLifecycle)


class OnDemand(Generic[C]):
    """Owns a coordinator, and creates it at the first request for it."""

    def __init__(self, topic: str, metadata: MetadataChanges, make: Callable[[], C]) -> None:
        self._topic = topic
        self._metadata = metadata
        self._make = make
        self._made: C | None = None

    @property
    def made(self) -> C | None:
        """The coordinator, if there is one."""
        return self._made

    async def start(self) -> None:
        """Loads the state of a broker that has some."""
        if self._topic in self._metadata.image.topics:
            await self.coordinator().start()

    def coordinator(self) -> C:
        if self._made is None:
            self._made = self._make()
            self._made.look()
        return self._made

    def release(self) -> None:
        """Ends all waits; called before connections are closed, which would wait for them."""
        if self._made is not None:
            self._made.release()

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()


class Coordinators:
    """Groups and transactions; a transaction that committed offsets ends in the groups' logs too."""

    def __init__(
        self,
        metadata: MetadataChanges,
        replicas: Replicas,
        peers: Peers,
        repair: DamageRepair,
        config: Config,
        clock: Clock,
        databases: DatabaseGroups | None,
    ) -> None:
        """`databases` are what topics live in, if there are any; groups and their offsets are shown there as tables."""
        self._metadata = metadata
        self._databases = databases
        self._copies: list[OffsetTables | GroupTables] = []
        self.remote_transactions = RemoteTransactions(replicas.broker, self, metadata, peers)
        self.remote_groups = RemoteGroups(replicas.broker, metadata, peers)
        self._replicas = replicas
        self._repair = repair
        self._config = config
        self._clock = clock
        self.groups: OnDemand[GroupCoordinator] = OnDemand(OFFSETS_TOPIC, metadata, self._make_groups)
        self.transactions: OnDemand[TransactionCoordinator] = OnDemand(
            TRANSACTIONS_TOPIC, metadata, self._make_transactions
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
        for copy in self._copies:
            await copy.close()
        await self.groups.close()

    def lost_ranges(self) -> list[LabelledValue]:
        """Damaged parts of the internal topics that shards were loaded without."""
        found: list[LabelledValue] = []
        if self.groups.made is not None:
            found.append(((OFFSETS_TOPIC,), self.groups.made.lost_ranges))
        if self.transactions.made is not None:
            found.append(((TRANSACTIONS_TOPIC,), self.transactions.made.lost_ranges))
        return found

    async def write_marker(self, at: TopicPartition, marker: TransactionMarker) -> None:
        """Ends a transaction in one of the logs that it touched and that this broker leads."""
        topic = self._metadata.image.topics.get(at.topic)
        if topic is None or not is_writable(topic, at.partition):
            raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if at.topic == OFFSETS_TOPIC:
            await self.groups.coordinator().end_transaction(at, marker)
        else:
            await _write_marker(self._replicas, self._metadata.image, at, marker)

    def _role_changed(self, partition: Partition) -> None:
        """A broker that leads a part of the state looks after it without being asked: it completes what the broker
        before it decided.
        """
        if partition.leadership is not None:
            if partition.topic_partition.topic == OFFSETS_TOPIC:
                self.groups.coordinator()
            elif partition.topic_partition.topic == TRANSACTIONS_TOPIC:
                self.transactions.coordinator()

    def _make_groups(self) -> GroupCoordinator:
        from penstock.groups.changes import Changes
        from penstock.groups.coordinator import GroupCoordinator

        changes = None if self._databases is None else Changes()
        made = GroupCoordinator(
            self._metadata, self._replicas, self._config.groups, self._clock, _new_member_id, self._repair, changes
        )
        self._metadata.subscribe(made.topics_changed)
        if self._databases is not None and changes is not None:
            # Not loaded by a broker that has no database.
            from penstock.groups.group_tables.tables import GroupTables
            from penstock.groups.offset_tables.tables import OffsetTables

            def image() -> MetadataImage:
                return self._metadata.image

            database = self._databases.default.primary.database
            self._copies = [
                OffsetTables(made, changes.offsets, self._databases, image, self._clock),
                GroupTables(self._replicas.broker, made, changes.groups, database, image, self._clock),
            ]
            for copy in self._copies:
                copy.start()
        return made

    def _make_transactions(self) -> TransactionCoordinator:
        from penstock.transactions.coordinator import TransactionCoordinator
        from penstock.transactions.producer_ids import ProducerIds

        return TransactionCoordinator(
            self._metadata,
            self._replicas,
            self._config.transactions,
            self._clock,
            ProducerIds(self._metadata),
            self.remote_transactions.write_marker,
            self._repair,
        )


def _new_member_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"


async def _write_marker(
    replicas: Replicas, image: MetadataImage, at: TopicPartition, marker: TransactionMarker
) -> None:
    """Ends a transaction in the log of a partition and, if it is retired, in that of its successor.

    The latter in any case: a batch may be on its way there, and the marker makes its guard void.
    """
    successor = successor_of_gone(image, at)
    if successor is None:
        partition = replicas.find(at.topic, at.partition)
        successor = partition.log.successor
        if successor is None or partition.log.producers.is_open(marker.producer_id):
            await marker.write_to(partition)
    if successor is not None:
        stand_in = marker._replace(producer_id=stand_in_id(marker.producer_id, at.partition))
        await stand_in.write_to(replicas.find(at.topic, successor))
