"""Reassignment: new replicas are added and catch up before the old ones go.

Pure. While a partition moves, `replicas` holds the target first and then the replicas that will go; `adding` and
`removing` name them. Every step begins a new leader epoch, so that the leader counts its followers again. The in-sync
set is never empty: a replica in sync stays until all added ones are in sync too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId


def reassign(partition: PartitionImage, target: tuple[BrokerId, ...], alive: Collection[BrokerId]) -> PartitionImage:
    """Begins to move a partition; a move that is under way is replaced by this one."""
    original = settled_replicas(partition)
    adding = tuple(broker for broker in target if broker not in original)
    removing = tuple(broker for broker in original if broker not in target)
    replicas = (*target, *removing)
    in_sync = tuple(broker for broker in replicas if broker in partition.in_sync)
    if not in_sync:
        raise ApiError(
            Code.INVALID_REPLICA_ASSIGNMENT, "Only replicas of the move that is under way, which would go, are in sync."
        )
    moved = replace(
        partition,
        replicas=replicas,
        adding=adding,
        removing=removing,
        in_sync=in_sync,
        # The leader is in sync. It goes only if it was a new replica of the move that is replaced.
        leader=_leader(partition.leader, in_sync, alive),
    )
    return _next_epoch(partition, moved)


def cancel(partition: PartitionImage, alive: Collection[BrokerId]) -> PartitionImage:
    """Gives a move up: the replicas are again what they were."""
    if not partition.is_moving:
        raise ApiError(Code.NO_REASSIGNMENT_IN_PROGRESS, "The partition is not being moved.")
    return reassign(partition, settled_replicas(partition), alive)


def finish(partition: PartitionImage, alive: Collection[BrokerId]) -> PartitionImage:
    """The partition with its target alone, once all that are added are in sync; else as it is."""
    if not partition.is_moving or not all(broker in partition.in_sync for broker in partition.adding):
        return partition
    target = partition.target
    in_sync = tuple(broker for broker in target if broker in partition.in_sync)
    leader = _leader(partition.leader, in_sync, alive)
    if leader == NO_LEADER:
        return partition
    done = replace(partition, replicas=target, adding=(), removing=(), in_sync=in_sync, leader=leader)
    return _next_epoch(partition, done)


def settled_replicas(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """The replicas before the move that is under way."""
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)


def _leader(current: BrokerId, in_sync: tuple[BrokerId, ...], alive: Collection[BrokerId]) -> BrokerId:
    """The current leader if it stays, else the first replica that can lead; none if there was none."""
    if current == NO_LEADER or current in in_sync:
        return current
    return next((broker for broker in in_sync if broker in alive), NO_LEADER)


def _next_epoch(before: PartitionImage, after: PartitionImage) -> PartitionImage:
    return before if after == before else replace(after, leader_epoch=before.leader_epoch + 1)
