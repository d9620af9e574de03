"""The brokers of a cluster: which are alive, what each holds, and how to drain one."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from confluent_kafka.admin import BrokerMetadata, ClusterMetadata

from penstock.admin.configs import ConfigChange, ConfigOperations, ConfigResource
from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError, UnreachableError
from penstock.admin.results import Results
from penstock.config.address import Address
from penstock.config.draining import DRAINING

_TRUE = "true"


class BrokerState(Enum):
    """Whether a broker takes part in the cluster."""

    ALIVE = "alive"
    DRAINING = "draining"
    """Everything is moved off it, and nothing new is placed on it."""
    SILENT = "silent"
    """It does not answer, and its lease has not ended yet."""
    AWAY = "away"
    """It is not in the cluster, but partitions have replicas on it."""


_NOT_AVAILABLE = {
    BrokerState.SILENT: "does not answer, and nothing can be changed on it until it does",
    BrokerState.AWAY: "is away: the controller places its replicas elsewhere after cluster.heal_after_ms",
}


@dataclass(frozen=True, slots=True)
class HostedReplica:
    """One replica on a broker."""

    topic: str
    partition: int
    is_leader: bool
    is_in_sync: bool


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """What a broker is and holds."""

    id: int
    state: BrokerState
    address: str | None
    """None while it is away."""
    rack: str | None
    is_controller: bool
    replicas: tuple[HostedReplica, ...]

    @property
    def leader_count(self) -> int:
        return sum(replica.is_leader for replica in self.replicas)


class BrokerOperations:
    """Operations on brokers."""

    def __init__(self, connection: AdminConnection, configs: ConfigOperations) -> None:
        self._connection = connection
        self._configs = configs

    def list(self) -> tuple[BrokerDescription, ...]:
        """The brokers of the cluster by id, and those that are away but still have replicas."""
        deadline = self._connection.deadline()
        cluster = self._connection.metadata(deadline)
        racks = self._racks(cluster, deadline)
        hosted = _hosted(cluster)
        draining = self._draining(cluster.brokers.values())
        found = []
        for id in sorted({*cluster.brokers, *hosted}):
            there = cluster.brokers.get(id)
            found.append(
                BrokerDescription(
                    id=id,
                    state=BrokerState.AWAY if there is None else _state(draining.get(id)),
                    address=None if there is None else str(Address(str(there.host), there.port)),
                    rack=racks.get(id),
                    is_controller=id == cluster.controller_id,
                    replicas=tuple(hosted.get(id, ())),
                )
            )
        return tuple(found)

    def describe(self, ids: Iterable[int]) -> Results[int, BrokerDescription]:
        """These brokers."""
        known = {broker.id: broker for broker in self.list()}
        wanted = list(dict.fromkeys(ids))
        return Results(
            {id: known[id] for id in wanted if id in known},
            {id: _no_broker(id, known) for id in wanted if id not in known},
        )

    def drain(self, ids: Iterable[int]) -> Results[int, BrokerDescription]:
        """Has everything moved off these brokers; gives each as it was before. The moving takes its time: `describe`
        shows what is left.
        """
        return self._alter(ids, ConfigChange.set(DRAINING.name, _TRUE))

    def undrain(self, ids: Iterable[int]) -> Results[int, BrokerDescription]:
        """Lets these brokers have partitions again; gives each as it was before."""
        return self._alter(ids, ConfigChange.delete(DRAINING.name))

    def _alter(self, ids: Iterable[int], change: ConfigChange) -> Results[int, BrokerDescription]:
        before = self.describe(ids)
        absent = {id: _not_available(broker) for id, broker in before.values.items() if broker.state in _NOT_AVAILABLE}
        resources = {ConfigResource.broker(id): id for id in before.values if id not in absent}
        done = self._configs.alter({resource: [change] for resource in resources})
        errors = {
            **before.errors,
            **absent,
            **{resources[resource]: error for resource, error in done.errors.items()},
        }
        return Results({resources[resource]: before.values[resources[resource]] for resource in done.values}, errors)

    def _racks(self, cluster: ClusterMetadata, deadline: Deadline) -> dict[int, str | None]:
        """The library asks the controller for racks: they are unknown while the controller does not answer."""
        controller = cluster.brokers.get(cluster.controller_id)
        if controller is not None and self._listens(controller):
            with suppress(UnreachableError):
                asked = self._connection.client.describe_cluster(request_timeout=deadline.left_s)
                described = self._connection.result(asked, deadline)
                return {node.id: node.rack for node in described.nodes}
        return {}

    def _draining(self, brokers: Iterable[BrokerMetadata]) -> dict[int, bool]:
        """Asks each broker for its own settings; brokers that do not answer are left out."""
        listening = {ConfigResource.broker(broker.id): broker.id for broker in brokers if self._listens(broker)}
        asked = self._configs.describe(listening)
        for error in asked.errors.values():
            if not isinstance(error, UnreachableError):
                raise error
        found = {}
        for resource, configs in asked.values.items():
            entry = configs.get(DRAINING.name)
            found[listening[resource]] = entry is not None and entry.value == _TRUE
        return found

    def _listens(self, broker: BrokerMetadata) -> bool:
        """A refused connection is known at once; the library would retry until the call times out."""
        try:
            with socket.create_connection((str(broker.host), broker.port), timeout=self._connection.timeout_s):
                return True
        except OSError:
            return False


def _state(is_draining: bool | None) -> BrokerState:
    if is_draining is None:
        return BrokerState.SILENT
    return BrokerState.DRAINING if is_draining else BrokerState.ALIVE


def _hosted(cluster: ClusterMetadata) -> dict[int, list[HostedReplica]]:
    hosted: dict[int, list[HostedReplica]] = {}
    for name, topic in sorted(cluster.topics.items()):
        for index, partition in sorted(topic.partitions.items()):
            for id in partition.replicas:
                replica = HostedReplica(name, index, partition.leader == id, id in partition.isrs)
                hosted.setdefault(id, []).append(replica)
    return hosted


def _no_broker(id: int, known: Iterable[int]) -> AdminError:
    ids = ", ".join(map(str, sorted(known)))
    return AdminError("BROKER_ID_NOT_REGISTERED", f"there is no broker {id}; there are {ids}")


def _not_available(broker: BrokerDescription) -> AdminError:
    return AdminError("BROKER_NOT_AVAILABLE", f"broker {broker.id} {_NOT_AVAILABLE[broker.state]}")
