"""Replicas for `penstock topic`: cells of a table, JSON, and the option that places them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from penstock.admin import PartitionDescription

COLUMNS = ("partition", "leader", "replicas", "in sync", "offline", "state")
_NO_LEADER = -1
"""Kafka's number for it."""


def state_of(partition: PartitionDescription) -> str:
    if partition.is_unavailable:
        return "unavailable"
    return "under-replicated" if partition.is_under_replicated else "ok"


def as_json(partition: PartitionDescription) -> dict[str, object]:
    return {
        "leader": _NO_LEADER if partition.leader is None else partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "offline_replicas": list(partition.offline_replicas),
        "state": state_of(partition),
    }


def cells(partition: PartitionDescription) -> tuple[object, ...]:
    """For COLUMNS."""
    leader = "none" if partition.leader is None else partition.leader
    lists = (_listed(brokers) for brokers in (partition.replicas, partition.isr, partition.offline_replicas))
    return partition.index, leader, *lists, state_of(partition)


def parse_assignment(text: str) -> list[list[int]]:
    """`1:2,2:3` as the brokers of partition 0, then those of partition 1; the first of each is the preferred leader."""
    partitions = []
    for number, part in enumerate(text.split(",")):
        brokers = [broker.strip() for broker in part.split(":")]
        if not all(broker.isascii() and broker.isdigit() for broker in brokers):
            raise _refused(f"{part!r} is not a list of brokers such as 1:2:3, for partition {number}")
        partitions.append([int(broker) for broker in brokers])
        if len(set(brokers)) != len(brokers):
            raise _refused(f"partition {number} names a broker twice: {part}")
        if len(brokers) != len(partitions[0]):
            raise _refused(f"partition {number} has {len(brokers)} replicas, partition 0 has {len(partitions[0])}")
    return partitions


def _refused(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint="--replica-assignment")


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers)) or "-"
