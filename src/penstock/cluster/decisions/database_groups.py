"""Decisions about database groups: their servers, which one is the primary, and which partitions are where.

Pure, on a draft of the next image; `ApiError` for a refusal. Rules (`docs/internals/database-groups.md`):
- The default group is always there. It is not in the metadata, is never drained, and has all internal topics.
- New partitions go to the group that has the fewest of the topic, then the fewest of all; never to one that is drained.
- A change of primary begins a new leader epoch for every partition that is in the group, or on its way there.
- A partition moves only from a group that is being drained to one that is not. Its leader copies it; the move ends with
  a commit by that leader in its epoch, which begins a new one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.cluster.metadata import (
    DEFAULT_DATABASE,
    NO_LEADER,
    DatabaseGroupInfo,
    DatabaseServer,
    PartitionImage,
    TopicImage,
)
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.database_address import DatabaseAddress
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicId, TopicPartition

MAX_GROUPS = 100
MAX_SERVERS = 16
"""Of one group: every broker asks each of them once a second."""
MOVES_AT_ONCE = 8
"""Partitions that are copied from one group to another at a time."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What a request wants of one group; None leaves it as it is."""

    servers: tuple[DatabaseServer, ...] | None = None
    """The first is the primary of a new group. In one that exists the primary must be among them."""
    key: str = ""
    """The fingerprint of the key that the passwords of `servers` are encrypted with."""
    primary: str | None = None
    """HOST:PORT of one of the servers."""
    is_draining: bool | None = None
    is_removal: bool = False


class DatabaseLoads:
    """Which group gets the next partition of a topic. A partition counts where it is going to be."""

    def __init__(self, draft: MetadataDraft) -> None:
        self._takers = [DEFAULT_DATABASE, *(each.name for each in draft.databases.values() if not each.is_draining)]
        self._counts: Counter[str] = Counter()
        self._of_topic: dict[str, Counter[str]] = {}
        for topic in draft.topics.values():
            if topic.is_shared:
                self._counts.update(map(_destination, topic.partitions))

    def take(self, topic: TopicImage) -> str:
        """The group with the fewest partitions of the topic, then of all; it has one more from now on."""
        if topic.is_internal:
            return DEFAULT_DATABASE
        of_topic = self._of_topic.get(topic.name)
        if of_topic is None:
            of_topic = self._of_topic[topic.name] = Counter(map(_destination, topic.partitions))
        group = min(self._takers, key=lambda each: (of_topic[each], self._counts[each]))
        of_topic[group] += 1
        self._counts[group] += 1
        return group


def alter(draft: MetadataDraft, name: str, change: GroupChange) -> None:
    """Makes, changes or removes a group."""
    if name == DEFAULT_DATABASE:
        raise ApiError(
            Code.INVALID_REQUEST,
            f"The group '{name}' is the database of sql.url, which is set at the start of a broker.",
        )
    if change.is_removal:
        remove(draft, name)
        return
    if change.servers is not None:
        put_servers(draft, name, change.servers, change.key)
    if change.primary is not None:
        promote(draft, name, server_index(_group(draft, name), change.primary))
    if change.is_draining is not None:
        drain(draft, name, is_draining=change.is_draining)


def put_servers(draft: MetadataDraft, name: str, servers: Sequence[DatabaseServer], key: str) -> None:
    """Makes a group of these servers, or gives them to one that exists."""
    addresses = [DatabaseAddress.parse(server.address) for server in servers]
    _check_servers(draft, name, addresses)
    _check_keys(draft, key)
    group = draft.databases.get(name)
    if group is None:
        _check_new(draft, name)
        draft.put_database(DatabaseGroupInfo(name, tuple(servers)))
        return
    former = DatabaseAddress.parse(group.servers[group.primary].address)
    primary = next((index for index, each in enumerate(addresses) if each.place == former.place), None)
    if primary is None:
        raise ApiError(
            Code.INVALID_CONFIG,
            f"The servers of the group '{name}' have to include its primary, {former}; make another one the primary "
            "first.",
        )
    changed = replace(group, servers=tuple(servers), primary=primary)
    if changed != group:
        draft.put_database(changed)


def promote(draft: MetadataDraft, name: str, server: int, *, generation: int | None = None) -> bool:
    """Makes a server the primary; whether it is one now. With `generation`, only if it is still that of the group."""
    group = _group(draft, name)
    if group.primary == server:
        return True
    if not 0 <= server < len(group.servers) or generation not in (None, group.generation):
        return False
    draft.put_database(replace(group, primary=server, generation=group.generation + 1))
    _change_partitions(
        draft,
        lambda partition: (
            replace(partition, leader_epoch=partition.leader_epoch + 1)
            if name in (partition.database, partition.database_to)
            else partition
        ),
    )
    return True


def drain(draft: MetadataDraft, name: str, *, is_draining: bool) -> None:
    """Has the partitions of a group moved to others, or lets it have partitions again."""
    group = _group(draft, name)
    if group.is_draining != is_draining:
        draft.put_database(replace(group, is_draining=is_draining))
    cancel_moves(draft)


def remove(draft: MetadataDraft, name: str) -> None:
    """Forgets a group that has no partitions."""
    _group(draft, name)
    here = [
        f"{topic.name}-{partition.index}"
        for topic, partition in _partitions(draft)
        if name in (partition.database, partition.database_to)
    ]
    if here:
        count = f"{len(here)} partition{'' if len(here) == 1 else 's'}"
        raise ApiError(
            Code.INVALID_REQUEST,
            f"The group '{name}' has {count} ({', '.join(here[:3])}{', …' if len(here) > 3 else ''}); drain it first: "
            f"penstock dbnode drain {name}",
        )
    draft.remove_database(name)


def cancel_moves(draft: MetadataDraft) -> None:
    """Ends moves that have lost their reason: the source is not drained any more, or the target is."""

    def kept(partition: PartitionImage) -> PartitionImage:
        target = partition.database_to
        if target is None or (_is_left(draft, partition.database) and _takes(draft, target)):
            return partition
        return replace(partition, database_to=None)

    if draft.databases:
        _change_partitions(draft, kept)


def begin_moves(draft: MetadataDraft, at_most: int = MOVES_AT_ONCE) -> int:
    """Begins to move partitions off groups that are being drained, so that `at_most` are on their way; how many begin.

    A partition without a leader does not move, because the leader copies. Those of different leaders go first.
    """
    if not any(group.is_draining for group in draft.databases.values()):
        return 0
    waiting: dict[BrokerId, list[tuple[TopicImage, PartitionImage]]] = {}
    under_way: Counter[BrokerId] = Counter()
    for topic, partition in _partitions(draft):
        if partition.leader == NO_LEADER:
            continue
        if partition.database_to is not None:
            under_way[partition.leader] += 1
        elif _is_left(draft, partition.database):
            waiting.setdefault(partition.leader, []).append((topic, partition))
    loads, begun = DatabaseLoads(draft), 0
    while waiting and under_way.total() < at_most:
        leader = min(waiting, key=lambda each: (under_way[each], each))
        topic, partition = waiting[leader].pop(0)
        if not waiting[leader]:
            del waiting[leader]
        draft.put_partition(topic.name, replace(partition, database_to=loads.take(topic)))
        under_way[leader] += 1
        begun += 1
    return begun


def finish_move(
    draft: MetadataDraft, at: TopicPartition, topic_id: TopicId, leader: BrokerId, epoch: int, target: str
) -> bool:
    """Says that a partition is in its new group, if its leader in this epoch has copied it there; whether it is.

    If not, the source is still the truth.
    """
    topic = draft.topics.get(at.topic)
    if topic is None or topic.id != topic_id or not 0 <= at.partition < len(topic.partitions):
        return False
    partition = topic.partitions[at.partition]
    if partition.leader != leader:
        return False
    if partition.leader_epoch == epoch + 1 and partition.database_to is None:
        # Decided again: the commit had taken place.
        return partition.database == target
    if partition.leader_epoch != epoch or partition.database_to != target:
        return False
    moved = replace(partition, database=target, database_to=None, leader_epoch=epoch + 1)
    draft.put_partition(topic.name, moved)
    return True


@dataclass(frozen=True, slots=True)
class PrimaryWatch:
    """What a controller has seen of the servers of a group, as far as it counts for a change of primary. Servers are
    numbered by their place in the group, so it begins anew when they change.
    """

    suspects: frozenset[int] = frozenset()
    """Servers that took writes while the primary was well: they are set up wrongly, or are former primaries."""

    def seen(self, group: DatabaseGroupInfo, takes_writes: Mapping[int, bool | None]) -> PrimaryWatch:
        """After another look: for each server whether it takes writes, None if it is down."""
        suspects = {server for server in self.suspects if takes_writes.get(server) is not False}
        if takes_writes.get(group.primary):
            suspects.update(server for server, writable in takes_writes.items() if writable)
        return PrimaryWatch(frozenset(suspects - {group.primary}))

    def successor(self, group: DatabaseGroupInfo, takes_writes: Mapping[int, bool | None]) -> int | None:
        """The server that an operator has made the primary; None if the primary is well, or it is not clear which."""
        if takes_writes.get(group.primary):
            return None
        writable = [server for server, writes in takes_writes.items() if writes and server != group.primary]
        if len(writable) != 1 or writable[0] in self.suspects:
            return None
        return writable[0]


def server_index(group: DatabaseGroupInfo, text: str) -> int:
    """The place of the server that is called HOST:PORT, or, for a file, by its path."""
    names = [DatabaseAddress.parse(server.address).server for server in group.servers]
    if text not in names:
        raise ApiError(
            Code.INVALID_CONFIG, f"The group '{group.name}' has no server {text}; it has {', '.join(names)}."
        )
    return names.index(text)


def _group(draft: MetadataDraft, name: str) -> DatabaseGroupInfo:
    group = draft.databases.get(name)
    if group is None:
        raise ApiError(Code.INVALID_REQUEST, f"There is no database group '{name}'.")
    return group


def _check_new(draft: MetadataDraft, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ApiError(
            Code.INVALID_REQUEST,
            f"'{name}' cannot be the name of a database group: allowed are 1 to 32 of a-z, 0-9, - and _, the first a "
            "letter or a digit.",
        )
    if len(draft.databases) >= MAX_GROUPS:
        raise ApiError(Code.POLICY_VIOLATION, f"No more than {MAX_GROUPS} database groups are allowed.")
    old = [broker.id for broker in draft.brokers.values() if broker.is_alive and not broker.endpoints]
    if old:
        raise ApiError(
            Code.POLICY_VIOLATION, f"Broker {old[0]} is of a version that knows no database groups; upgrade it first."
        )


def _check_servers(draft: MetadataDraft, name: str, addresses: Sequence[DatabaseAddress]) -> None:
    if not 1 <= len(addresses) <= MAX_SERVERS:
        raise ApiError(
            Code.INVALID_CONFIG, f"{len(addresses)} servers are named; a group has 1 to {MAX_SERVERS} of them."
        )
    places = {
        DatabaseAddress.parse(each.address).place: group.name
        for group in draft.databases.values()
        for each in group.servers
        if group.name != name
    }
    seen = set()
    for address in addresses:
        if address.place in places:
            raise ApiError(
                Code.INVALID_CONFIG, f"{address} is a server of the group '{places[address.place]}' already."
            )
        if address.server in seen:
            raise ApiError(Code.INVALID_CONFIG, f"The server {address.server} is named twice.")
        if address.dialect != addresses[0].dialect:
            raise ApiError(
                Code.INVALID_CONFIG,
                f"{address} is another kind of database than {addresses[0]}, which it is to be a replica of.",
            )
        seen.add(address.server)


def _check_keys(draft: MetadataDraft, key: str) -> None:
    """Brokers with different keys could not read each other's passwords."""
    for broker in draft.brokers.values():
        if broker.is_alive and broker.has_database_key and broker.database_key != key:
            raise ApiError(
                Code.INVALID_CONFIG,
                f"Broker {broker.id} has another key in its sql.key_file; all brokers have to have the same one.",
            )


def _is_left(draft: MetadataDraft, name: str) -> bool:
    group = draft.databases.get(name)
    return group is not None and group.is_draining


def _takes(draft: MetadataDraft, name: str) -> bool:
    group = draft.databases.get(name)
    return name == DEFAULT_DATABASE or (group is not None and not group.is_draining)


def _destination(partition: PartitionImage) -> str:
    return partition.database_to or partition.database


def _partitions(draft: MetadataDraft) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic in list(draft.topics.values()):
        if topic.is_shared:
            for partition in topic.partitions:
                yield topic, partition


def _change_partitions(draft: MetadataDraft, change: Callable[[PartitionImage], PartitionImage]) -> None:
    for topic in list(draft.topics.values()):
        if not topic.is_shared:
            continue
        partitions = tuple(map(change, topic.partitions))
        if partitions != topic.partitions:
            draft.put_topic(replace(topic, partitions=partitions))
