"""Moving the replicas of a partition: the new ones are added, catch up, and only then the old ones go.

Pure. While a partition moves, `replicas` holds the old and the new ones, the target first; `adding` and `removing` say
which is which. Every step begins a new leader epoch, so that the leader counts its followers anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId


def reassign(partition: PartitionImage, target: tuple[BrokerId, ...]) -> PartitionImage:
    """Begins to move a partition; a move that is under way is replaced by this one."""
    original = settled_replicas(partition)
    adding = tuple(broker for broker in target if broker not in original)
    removing = tuple(broker for broker in original if broker not in target)
    moving = replace(
        partition,
        replicas=(*target, *removing),
        adding=adding,
        removing=removing,
        in_sync=tuple(broker for broker in (*target, *removing) if broker in partition.in_sync),
        leader_epoch=partition.leader_epoch + 1,
    )
    if moving.in_sync and moving.leader not in moving.replicas:
        # Only a replica of the move that this one replaces can have led.
        return replace(moving, leader=moving.in_sync[0])
    return moving


def cancel(partition: PartitionImage) -> PartitionImage:
    """Gives a move up: the replicas are again what they were."""
    if not partition.is_moving:
        raise ApiError(Code.NO_REASSIGNMENT_IN_PROGRESS)
    original = settled_replicas(partition)
    in_sync = tuple(broker for broker in original if broker in partition.in_sync)
    if not in_sync:
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, "only replicas of the move that is under way are in sync")
    leader = partition.leader if partition.leader in original else in_sync[0]
    return replace(
        partition,
        replicas=original,
        adding=(),
        removing=(),
        in_sync=in_sync,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
    )


def finish(partition: PartitionImage, alive: Collection[BrokerId]) -> PartitionImage:
    """The partition with its new replicas alone, once all of them are in sync; else as it is."""
    target = tuple(broker for broker in partition.replicas if broker not in partition.removing)
    if not partition.is_moving or not all(broker in partition.in_sync for broker in target):
        return partition
    leader = partition.leader
    if leader not in target:
        leader = next((broker for broker in target if broker in alive), NO_LEADER)
    if leader == NO_LEADER:
        return partition
    return replace(
        partition,
        replicas=target,
        adding=(),
        removing=(),
        in_sync=target,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
    )


def settled_replicas(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """The replicas before the move that is under way."""
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)
