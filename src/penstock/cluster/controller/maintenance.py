"""What the controller does for the cluster without being asked, as decisions on a draft of the next image.

Pure; the shell with the clock is `controller.py`. In the order of urgency: mark brokers without a lease as dead, elect
leaders, finish moves, move replicas off brokers that are gone or drained, move retired partitions to where their
successors are, give leadership back to preferred replicas, move partitions off database groups that are drained, even
out who leads what is in shared storage, and even out the load. Each decision takes the image as it is, so it does not
matter which controller began what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from penstock.cluster.coordination.contract import Create, Delete
from penstock.cluster.decisions import (
    database_groups,
    elections,
    placement,
    reassignment,
    retired_partitions,
    shared_storage,
)
from penstock.cluster.decisions.elections import IsUnclean
from penstock.cluster.metadata import NO_LEADER, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.cluster.nodes import lease_path
from penstock.errors import ApiError
from penstock.ids import BrokerId


@dataclass(frozen=True, slots=True)
class MaintenanceLimits:
    """How much is done at once."""

    moves: int
    """Partitions that move at a time."""
    leaders: int
    """Partitions whose leadership goes home in one step, and of those in shared storage that get another leader: their
    clients have to find the new one.
    """


def bury_missing(draft: MetadataDraft, missing: Collection[BrokerId], is_unclean: IsUnclean) -> list[BrokerId]:
    """Marks brokers without a lease as dead; the commit expects that they still have none."""
    dead = sorted(draft.alive.intersection(missing))
    for broker in dead:
        # First all of them: none of them may be elected for what another one led.
        draft.put_broker(replace(draft.brokers[broker], is_alive=False))
    for broker in dead:
        elections.bury(draft, broker, is_unclean)
        path = lease_path(broker)
        draft.conditions.extend((Create(path, b""), Delete(path, 0)))
    return dead


def note_absences(draft: MetadataDraft, now_ms: int) -> None:
    """Records since when each broker has been away, for the controllers after this one."""
    for broker in list(draft.brokers.values()):
        if not broker.is_alive and broker.away_since_ms is None:
            draft.put_broker(replace(broker, away_since_ms=now_ms))


def tidy(
    draft: MetadataDraft,
    gone: Collection[BrokerId],
    limits: MaintenanceLimits,
    is_unclean: IsUnclean,
    *,
    may_even: bool,
) -> None:
    """One step of everything that can wait; `gone` are brokers that have been away for too long."""
    _settle(draft, is_unclean)
    moving = [partition for _, partition in _partitions(draft) if partition.is_moving]
    room = limits.moves - sum(_goes_on(partition, draft.alive) for partition in moving)
    room -= _leave(draft, gone, room)
    room -= _follow_successors(draft, room)
    _go_home(draft, limits.leaders)
    database_groups.cancel_moves(draft)
    database_groups.begin_moves(draft)
    if limits.moves:
        shared_storage.even_out(draft, limits.leaders)
    if may_even:
        even_out(draft, room)


def even_out(draft: MetadataDraft, room: int) -> int:
    """Moves partitions to where they are better off; how many."""
    takers = [broker.id for broker in draft.takers]
    begun = 0
    # A retired partition goes with its successor, so neither is moved for the sake of balance.
    topics = {name: topic for name, topic in draft.topics.items() if not retired_partitions.has_retired(topic)}
    for step in placement.STEPS:
        while begun < room and (move := step(topics, draft.loads, takers)) is not None:
            partition = draft.topics[move.topic].partitions[move.partition]
            draft.put_partition(move.topic, reassignment.reassign(partition, move.target, draft.alive))
            topics[move.topic] = draft.topics[move.topic]
            begun += 1
    return begun


def _settle(draft: MetadataDraft, is_unclean: IsUnclean) -> None:
    """Elects leaders where a replica can lead, and completes moves that are done."""
    alive = draft.alive

    def settled(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        if partition.leader == NO_LEADER:
            partition = elections.elect(partition, alive, is_unclean=is_unclean(topic))
        return reassignment.finish(partition, alive) if partition.is_moving else partition

    for topic in _with_replicas(draft):
        partitions = tuple(settled(topic, partition) for partition in topic.partitions)
        if partitions != topic.partitions:
            draft.put_topic(replace(topic, partitions=partitions))
    shared_storage.settle(draft)


def _leave(draft: MetadataDraft, gone: Collection[BrokerId], room: int) -> int:
    """Replicas of brokers that are gone or drained are placed elsewhere; how many partitions begin to move."""
    left = {broker for broker in gone if broker not in draft.alive}
    left |= {broker for broker in draft.brokers if draft.is_draining(broker)}
    if not left:
        return 0
    takers = [broker.id for broker in draft.takers]
    # Without a leader there is no source for the records. Retired partitions go with their successors.
    affected = [
        (topic, partition)
        for topic, partition in _partitions(draft)
        if partition.leader != NO_LEADER
        and not left.isdisjoint(partition.target)
        and partition.index not in retired_partitions.successors(topic)
    ]
    # Those that are nearest to being lost first.
    affected.sort(key=lambda each: len(each[1].in_sync))
    begun = 0
    for topic, partition in affected:
        if not partition.is_moving and begun >= room:
            continue
        target = placement.without(partition, left, draft.loads, takers)
        if target is not None:
            begun += _move(draft, topic.name, partition, target)
    return begun


def _follow_successors(draft: MetadataDraft, room: int) -> int:
    """Retired partitions go where their successors are; how many begin to move."""
    begun = 0
    for topic in _with_replicas(draft):
        for index, target in retired_partitions.apart(topic).items():
            partition = draft.topics[topic.name].partitions[index]
            if partition.leader != NO_LEADER and (partition.is_moving or begun < room):
                begun += _move(draft, topic.name, partition, target)
    return begun


def _move(draft: MetadataDraft, topic: str, partition: PartitionImage, target: tuple[BrokerId, ...]) -> bool:
    """Whether one more partition moves than before."""
    try:
        moved = reassignment.reassign(partition, target, draft.alive)
    except ApiError:
        return False
    draft.put_partition(topic, moved)
    return not partition.is_moving


def _go_home(draft: MetadataDraft, at_most: int) -> None:
    """Leadership goes back to the preferred replicas that are in sync."""
    homes = {broker.id for broker in draft.takers}
    changed = 0
    away = [each for each in _partitions(draft) if each[1].leader != each[1].replicas[0]]
    for topic, partition in away:
        if changed >= at_most:
            return
        after = elections.prefer(partition, homes)
        if after != partition:
            draft.put_partition(topic.name, after)
            changed += 1


def _goes_on(partition: PartitionImage, alive: Collection[BrokerId]) -> bool:
    """Whether a move that is under way gets anywhere: one that does not leaves its room to others."""
    return partition.leader != NO_LEADER and all(broker in alive for broker in partition.adding)


def _with_replicas(draft: MetadataDraft) -> list[TopicImage]:
    """The topics whose records are on brokers; those in shared storage have nothing that could be moved."""
    return [topic for topic in draft.topics.values() if not topic.is_shared]


def _partitions(draft: MetadataDraft) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic in _with_replicas(draft):
        for partition in topic.partitions:
            yield topic, partition
