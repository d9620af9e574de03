"""Partitions in shared storage: each is on one broker, which leads it, and moves to another without its records.

Pure, on a draft of the next image. Rules (`docs/internals/sql.md`):
- `replicas`, the in-sync set and the leader of a partition change together, and every change begins a new epoch.
- A leader is alive and reaches the storage. If no broker does, no broker leads; the first that comes leads everything.
- No broker leads more than one partition more than another. One that is being drained leads none, if others can.
- A retired partition is led by the leader of its successor, if that broker can lead it.
- What is in another database group than the default one is led by a broker that has the key to its password.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from penstock.cluster.decisions import retired_partitions
from penstock.cluster.decisions.database_groups import DatabaseLoads
from penstock.cluster.metadata import DEFAULT_DATABASE, NO_LEADER, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId


def able(draft: MetadataDraft) -> frozenset[BrokerId]:
    """The brokers that can lead partitions in shared storage; without a key, only those in the default database."""
    return frozenset(broker.id for broker in draft.brokers.values() if broker.is_alive and broker.has_shared_storage)


def able_to_lead(draft: MetadataDraft, partition: PartitionImage) -> frozenset[BrokerId]:
    """The brokers that can lead this partition: they reach the database that has it, and the one that it moves to."""
    return able(draft) & draft.with_database_key if partition.needs_database_key else able(draft)


NO_BROKER_YET = BrokerId(0)
"""The replica of a partition that no broker has led yet: readers of the metadata expect a broker there."""


def place(
    draft: MetadataDraft, topic: TopicImage, count: int, epoch: int = 0, *, needs_leader: bool = True
) -> list[PartitionImage]:
    """More partitions of a topic: evenly on all brokers, and the rest on those that lead the fewest.

    If no broker can lead they are refused, or, without `needs_leader`, wait for the first one that comes.
    """
    fit = able(draft)
    if not fit and not needs_leader:
        databases = DatabaseLoads(draft)
        return [
            PartitionImage(index, NO_LEADER, epoch, (NO_BROKER_YET,), (), database=databases.take(topic))
            for index in range(len(topic.partitions), len(topic.partitions) + count)
        ]
    if not fit:
        raise ApiError(Code.INVALID_CONFIG, "penstock.storage = 'sql': no broker that is alive has SQL storage")
    counts = _counts(draft, fit)
    takers = _Takers(draft, fit)
    databases = DatabaseLoads(draft)
    placed: list[PartitionImage] = []
    of_topic: Counter[BrokerId] = Counter()
    for index in range(len(topic.partitions), len(topic.partitions) + count):
        database = databases.take(topic) if takers.with_key else DEFAULT_DATABASE
        brokers = takers.all if database == DEFAULT_DATABASE else takers.with_key
        broker = min(brokers, key=lambda each: (of_topic[each], counts[each], each))
        of_topic[broker] += 1
        counts[broker] += 1
        placed.append(PartitionImage(index, broker, epoch, (broker,), (broker,), database=database))
    return placed


def in_databases(draft: MetadataDraft, topic: TopicImage, placed: Sequence[PartitionImage]) -> list[PartitionImage]:
    """More partitions of a topic, on brokers that were chosen by hand, each in a database that its broker reaches."""
    databases, with_key = DatabaseLoads(draft), draft.with_database_key
    return [replace(each, database=databases.take(topic)) if each.leader in with_key else each for each in placed]


def first_epoch(topic: TopicImage) -> int:
    """The epoch in which new partitions of a topic begin: the log of one that is gone may still be there, under the
    same number, and is taken over only in a later epoch.
    """
    return 1 + max(partition.leader_epoch for partition in topic.partitions)


def check_assignment(
    draft: MetadataDraft, brokers: Sequence[BrokerId], partition: PartitionImage | None = None
) -> str | None:
    """Why a partition cannot be on these brokers, as the end of a sentence; None if it can. None is for a new one."""
    if len(brokers) != 1:
        return f"names {len(brokers)} brokers for a partition in shared storage, which is on one broker at a time"
    if brokers[0] not in able(draft):
        return f"includes broker {brokers[0]}, which has no SQL storage or is not alive"
    if partition is not None and brokers[0] not in able_to_lead(draft, partition):
        return f"includes broker {brokers[0]}, which has no sql.key_file for the database group '{partition.database}'"
    return None


def settle(draft: MetadataDraft, without: Collection[BrokerId] = ()) -> None:
    """Gives every partition whose leader cannot lead to the broker that leads the fewest; to none of `without`.

    If there is no other, a leader that is about to go stays, and one that is gone is none any more.
    """
    everybody = able(draft)
    fit = everybody - frozenset(without)
    counts = _counts(draft, fit)
    takers = _Takers(draft, fit)
    for topic in _shared_topics(draft):
        of_topic = Counter(partition.leader for partition in topic.partitions)
        changed: list[PartitionImage] = []
        for partition in topic.partitions:
            if partition.leader in fit and takers.reach(partition.leader, partition):
                continue
            brokers = takers.of(partition)
            if not brokers:
                stays = partition.leader in everybody and takers.reach(partition.leader, partition)
                if partition.leader != NO_LEADER and not stays:
                    changed.append(replace(partition, leader=NO_LEADER, leader_epoch=partition.leader_epoch + 1))
            elif not _follows_successor(topic, partition):
                broker = min(brokers, key=lambda each: (counts[each], of_topic[each], each))
                counts[broker] += 1
                of_topic[broker] += 1
                changed.append(partition.handed_to(broker))
        if changed:
            draft.put_partition(topic.name, *changed)


def renew(draft: MetadataDraft, who: BrokerId) -> None:
    """A broker that leads partitions has come back: it goes on in new epochs, which end what its former self began."""
    if who not in able(draft):
        return
    with_key = who in draft.with_database_key
    for topic in _shared_topics(draft):
        changed = [
            partition.handed_to(who)
            for partition in topic.partitions
            if partition.leader == who and (with_key or not partition.needs_database_key)
        ]
        if changed:
            draft.put_partition(topic.name, *changed)


def even_out(draft: MetadataDraft, at_most: int) -> int:
    """Moves partitions off brokers that are being drained, and from those that lead more than others; how many."""
    takers = _Takers(draft, able(draft))
    counts = _counts(draft, takers.all)
    # What can be moved, by leader and topic. A retired partition goes with its successor, and one that is being copied
    # to another database would have to begin anew.
    movable: dict[BrokerId, dict[str, list[PartitionImage]]] = {}
    led: Counter[tuple[BrokerId, str]] = Counter()
    for topic in _shared_topics(draft):
        is_left_alone = retired_partitions.has_retired(topic)
        for partition in topic.partitions:
            led[partition.leader, topic.name] += 1
            drains = partition.leader not in counts
            if (
                partition.leader != NO_LEADER
                and (drains or not (is_left_alone or partition.database_to is not None))
                and not (is_left_alone and _follows_successor(topic, partition))
            ):
                movable.setdefault(partition.leader, {}).setdefault(topic.name, []).append(partition)
    changed: dict[str, list[PartitionImage]] = {}
    moved = 0

    def move_one() -> bool:
        for empty in sorted(counts, key=lambda each: (counts[each], each)):
            drained = [broker for broker in movable if broker not in counts]
            others = [broker for broker in counts if counts[broker] - counts[empty] >= 2]
            others.sort(key=lambda each: (counts[each], each), reverse=True)
            for full in (*drained, *others):
                found = _movable_to(empty, takers, movable.get(full, {}))
                if not found:
                    continue
                name = max(found, key=lambda each: _unevenness(led[full, each], led[empty, each]))
                partition = found[name]
                movable[full][name].remove(partition)
                if full in counts:
                    counts[full] -= 1
                counts[empty] += 1
                led[full, name] -= 1
                led[empty, name] += 1
                changed.setdefault(name, []).append(partition.handed_to(empty))
                return True
        return False

    while moved < at_most and move_one():
        moved += 1
    for name, partitions in changed.items():
        draft.put_partition(name, *partitions)
    return moved


def _movable_to(
    broker: BrokerId, takers: _Takers, by_topic: Mapping[str, Sequence[PartitionImage]]
) -> dict[str, PartitionImage]:
    """The last partition of each topic that the broker can lead."""
    found = {}
    for name, partitions in by_topic.items():
        last = next((each for each in reversed(partitions) if takers.reach(broker, each)), None)
        if last is not None:
            found[name] = last
    return found


def _unevenness(full: int, empty: int) -> tuple[float, int]:
    """How badly a topic is spread over two brokers: small topics count as much as large ones."""
    return (full - empty) / (full + empty), full


class _Takers:
    """The brokers that get partitions: of those that can lead, the ones that are not being drained, or all if all are.

    Without the key to passwords of database groups, they get only what is in the default one.
    """

    def __init__(self, draft: MetadataDraft, fit: Collection[BrokerId]) -> None:
        self._reaches_all = draft.with_database_key
        undrained = [broker for broker in fit if not draft.is_draining(broker)]
        self.all: Collection[BrokerId] = undrained or fit
        keyed = [broker for broker in fit if broker in self._reaches_all]
        self.with_key: Collection[BrokerId] = [broker for broker in undrained if broker in self._reaches_all] or keyed

    def reach(self, broker: BrokerId, partition: PartitionImage) -> bool:
        return not partition.needs_database_key or broker in self._reaches_all

    def of(self, partition: PartitionImage) -> Collection[BrokerId]:
        return self.with_key if partition.needs_database_key else self.all


def _follows_successor(topic: TopicImage, partition: PartitionImage) -> bool:
    """Whether it is retired, and the leader of its successor can lead it: the draft puts it there."""
    successor = retired_partitions.successors(topic).get(partition.index)
    if successor is None:
        return False
    return not partition.needs_database_key or topic.partitions[successor].needs_database_key


def _counts(draft: MetadataDraft, brokers: Collection[BrokerId]) -> dict[BrokerId, int]:
    """How many partitions in shared storage each of these brokers leads."""
    counts = dict.fromkeys(brokers, 0)
    for topic in _shared_topics(draft):
        for partition in topic.partitions:
            if partition.leader in counts:
                counts[partition.leader] += 1
    return counts


def _shared_topics(draft: MetadataDraft) -> Iterator[TopicImage]:
    """In the order of their names in the draft; the caller may change the draft while it goes through them."""
    return iter([topic for topic in draft.topics.values() if topic.is_shared])
