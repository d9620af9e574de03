"""Elections: leaders and in-sync sets after a broker's death or return, or on request.

Pure, on a draft of the next image; nothing here writes to the coordination tree. Rules (`docs/internals/cluster.md`):
- A leader is alive and in the in-sync set, unless no broker in the set is alive and the topic allows unclean election.
- Every change of the leader, or of the in-sync set by any broker but the leader, begins a new epoch.
- The in-sync set is never empty. Its last members stay in it when they die, because they have what was acknowledged; if
  several die at once all of them stay, and the first that comes back leads. If there is a leader, the set has only
  brokers that are alive, or were when it last changed.
- None of this is about partitions in shared storage: any broker that is alive can lead them (`shared_storage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from penstock.cluster.decisions import shared_storage
from penstock.cluster.metadata import NO_LEADER, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.ids import BrokerId

IsUnclean = Callable[[TopicImage], bool]
"""Whether a topic would rather lose records than wait for who has them."""


def bury(draft: MetadataDraft, dead: BrokerId, is_unclean: IsUnclean) -> None:
    """A broker is gone: it is not alive, nothing waits for it, and others lead what it led."""
    broker = draft.brokers[dead]
    draft.put_broker(replace(broker, is_alive=False))
    alive = draft.alive

    def without(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        if dead not in partition.replicas:
            return partition
        # While no member is alive nothing is acknowledged, so all of them still have what was.
        in_sync = partition.in_sync if alive.isdisjoint(partition.in_sync) else _without(partition.in_sync, {dead})
        changed = replace(partition, in_sync=in_sync)
        if partition.leader == dead:
            changed = _elected(replace(changed, leader=NO_LEADER), alive, is_unclean(topic))
        return _next_epoch(partition, changed)

    _each_partition(draft, without)
    shared_storage.settle(draft)


def welcome(
    draft: MetadataDraft,
    who: BrokerId,
    *,
    has_all: bool,
    is_unclean: IsUnclean,
    keeps: Callable[[TopicImage], bool] = lambda topic: True,
) -> None:
    """A broker is back, and marked alive. If it does not have all that it had, others in sync go before it.

    `has_all` is said of the topics whose records it `keeps`; of the others it has nothing.
    """
    alive = draft.alive

    def with_it(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        if who not in partition.replicas:
            return partition
        has_it = has_all and keeps(topic)
        if has_it and partition.leader == who and partition.replicas == (who,):
            # No other broker has heard of its epoch.
            return partition
        changed = partition if has_it else replace(partition, in_sync=_without(partition.in_sync, {who}))
        if partition.leader == who:
            changed = replace(changed, leader=NO_LEADER)
        if changed.leader == NO_LEADER:
            changed = _elected(changed, alive, is_unclean(topic))
        # A leader that comes back may have lost records, so it must not continue in its old epoch. And what a leader
        # knows of a follower that has lost records is no longer true: in a new epoch it knows nothing.
        return _next_epoch(partition, changed, force=partition.leader == who or not has_it)

    _each_partition(draft, with_it)
    shared_storage.renew(draft, who)
    shared_storage.settle(draft)


def step_down(draft: MetadataDraft, who: BrokerId) -> None:
    """A broker is about to stop: wherever another replica is alive and in sync, nothing waits for it and it leads no
    more; of shared storage it leads nothing, if another can. It stays alive for the time being, and can tell clients
    where to go.
    """
    alive = draft.alive - {who}

    def without(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
        if who not in partition.in_sync or alive.isdisjoint(partition.in_sync):
            return partition
        changed = replace(partition, in_sync=_without(partition.in_sync, {who}))
        if partition.leader == who:
            changed = _elected(replace(changed, leader=NO_LEADER), alive, False)
        return _next_epoch(partition, changed)

    _each_partition(draft, without)
    shared_storage.settle(draft, without={who})


def resign(draft: MetadataDraft, who: BrokerId) -> None:
    """A broker stops in an orderly way, and leaves to others that are in sync what it still leads."""
    bury(draft, who, lambda topic: False)


def prefer(partition: PartitionImage, alive: Iterable[BrokerId]) -> PartitionImage:
    """The partition led by its preferred replica, if that is alive and in sync; else as it is."""
    first = partition.replicas[0]
    if partition.leader == first or first not in partition.in_sync or first not in set(alive):
        return partition
    return _next_epoch(partition, replace(partition, leader=first))


def with_in_sync(
    partition: PartitionImage,
    leader: BrokerId,
    epoch: int,
    in_sync: Iterable[BrokerId],
    alive: Collection[BrokerId],
) -> PartitionImage:
    """What the leader of an epoch has found out about its followers, or about itself: without it in the set another
    leads from now on. No change if it is no longer the leader.

    A broker that has died since does not come in: its death is already dealt with, so nothing would take it out again.
    """
    wanted = {broker for broker in in_sync if broker in alive or broker in partition.in_sync}
    if partition.leader != leader or partition.leader_epoch != epoch:
        return partition
    if not wanted or not wanted <= set(partition.replicas):
        return partition
    changed = replace(partition, in_sync=tuple(broker for broker in partition.replicas if broker in wanted))
    if leader in wanted:
        return changed
    return _next_epoch(partition, _elected(replace(changed, leader=NO_LEADER), frozenset(alive), False))


def elect(partition: PartitionImage, alive: Iterable[BrokerId], *, is_unclean: bool) -> PartitionImage:
    """A leader for a partition that has none; an unclean one gives up what the in-sync replicas have."""
    if partition.leader != NO_LEADER:
        return partition
    return _next_epoch(partition, _elected(partition, frozenset(alive), is_unclean))


def _elected(partition: PartitionImage, alive: frozenset[BrokerId], is_unclean: bool) -> PartitionImage:
    in_sync = tuple(broker for broker in partition.in_sync if broker in alive)
    for broker in partition.replicas:
        if broker in in_sync:
            return replace(partition, leader=broker, in_sync=in_sync)
    if is_unclean:
        for broker in partition.replicas:
            if broker in alive:
                return replace(partition, leader=broker, in_sync=(broker,))
    return partition


def _without(in_sync: tuple[BrokerId, ...], gone: set[BrokerId]) -> tuple[BrokerId, ...]:
    left = tuple(broker for broker in in_sync if broker not in gone)
    return left or in_sync


def _next_epoch(before: PartitionImage, after: PartitionImage, *, force: bool = False) -> PartitionImage:
    if after == before and not force:
        return before
    return replace(after, leader_epoch=before.leader_epoch + 1)


def _each_partition(draft: MetadataDraft, change: Callable[[TopicImage, PartitionImage], PartitionImage]) -> None:
    for topic in list(draft.topics.values()):
        if topic.is_shared:
            continue
        partitions = tuple(change(topic, partition) for partition in topic.partitions)
        if partitions != topic.partitions:
            draft.put_topic(replace(topic, partitions=partitions))
