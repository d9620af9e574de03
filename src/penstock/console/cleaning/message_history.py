"""Deletes messages of a cluster that are older than a time, whatever their topics keep.

What stays however old it is:
- what a group has not read: the messages behind its committed offset, or all if a member reads a partition without one;
- what is not archived yet, in topics that the cluster's lake has;
- internal and compacted topics, views (they show another topic), and dead letters, which are resent or purged;
- delayed messages, which brokers keep until they are delivered.

If the groups or the lake cannot be asked, nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.admin import AdminError, Cluster, OffsetBounds, TopicPartition
from penstock.config.view import VIEW_OF_SETTING
from penstock.console.cleaning.removed import Removed
from penstock.console.operations.clusters import ManagedCluster
from penstock.sdk.topic_names import DEAD

T = TypeVar("T")

_TOPICS_AT_ONCE = 100
_GROUPS_AT_ONCE = 100
_PARTITIONS_AT_ONCE = 1000
_CLEANUP = "cleanup.policy"
_COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class Unread:
    """How far groups are, by partition."""

    committed: Mapping[TopicPartition, int]
    """The lowest committed offset."""
    never_read: frozenset[TopicPartition]
    """Partitions that a member reads whose group has committed nothing there."""

    def bound(self, at: TopicPartition, until: int) -> int:
        """Up to where messages may go."""
        return 0 if at in self.never_read else min(until, self.committed.get(at, until))


_ALL_READ = Unread({}, frozenset())


async def delete_history(managed: ManagedCluster, before_ms: int, *, keeps_unread: bool) -> Removed:
    """Deletes what is older than `before_ms` in one cluster."""
    snapshot = managed.snapshot
    if not snapshot.round or not snapshot.is_reachable:
        return Removed(problems=(f"{snapshot.cluster} does not answer; nothing was deleted there",))
    names = [row.name for row in snapshot.topics.values() if not row.is_internal and not row.name.endswith(DEAD)]
    archived: dict[TopicPartition, int] = {}
    if managed.lake is not None:
        for name, topic in (await managed.lake.look()).topics.items():
            archived |= {TopicPartition(name, index): mark or 0 for index, mark in enumerate(topic.watermarks)}
    wanted = [
        TopicPartition(name, row.index)
        for name in await managed.link.run(lambda admin: _cleanable(admin, names))
        for row in snapshot.partitions.get(name, ())
        if not row.is_offline and row.start != row.end
    ]
    unread = await managed.link.run(_unread) if keeps_unread and wanted else _ALL_READ
    counts: dict[str, int] = {}
    problems: list[str] = []
    for chosen in _slices(wanted, _PARTITIONS_AT_ONCE):

        def delete(admin: Cluster, chosen: Sequence[TopicPartition] = chosen) -> None:
            bounds = deletable(admin, chosen, before_ms, unread, archived)
            done = admin.topics.delete_records({at: held.end for at, held in bounds.items()})
            for at, start in done.values.items():
                counts[at.topic] = counts.get(at.topic, 0) + max(0, start - bounds[at].start)
            problems.extend(f"{at}: {error.message}" for at, error in done.errors.items())

        await managed.link.run(delete)
    what = tuple(f"{name}: {count:,} messages" for name, count in sorted(counts.items()) if count)
    return Removed(sum(counts.values()), what, tuple(problems))


def _cleanable(admin: Cluster, names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for chosen in _slices(names, _TOPICS_AT_ONCE):
        for name, settings in admin.topics.configs(chosen).values.items():
            policy, view_of = settings.get(_CLEANUP), settings.get(VIEW_OF_SETTING)
            is_compacted = policy is None or _COMPACT in (policy.value or "")
            if not is_compacted and not (view_of is not None and view_of.value):
                found.append(name)
    return found


def _unread(admin: Cluster) -> Unread:
    """AdminError if the offsets of one group cannot be read: the job could not tell what that group has not read."""
    committed: dict[TopicPartition, int] = {}
    never_read: set[TopicPartition] = set()
    listed = admin.groups.list()
    for error in listed.errors:
        raise AdminError(error.code, f"not all groups are known: {error.message}; nothing was deleted")
    for chosen in _slices([group.name for group in listed.groups], _GROUPS_AT_ONCE):
        offsets = admin.groups.committed(chosen).all()
        for held in offsets.values():
            for at, each in held.items():
                committed[at] = min(each.offset, committed.get(at, each.offset))
        for name, described in admin.groups.describe(chosen).values.items():
            never_read.update(at for member in described.members for at in member.partitions if at not in offsets[name])
    return Unread(committed, frozenset(never_read))


def deletable(
    admin: Cluster,
    partitions: Sequence[TopicPartition],
    before_ms: int,
    unread: Unread,
    archived: Mapping[TopicPartition, int],
) -> dict[TopicPartition, OffsetBounds]:
    """From where to where messages go."""
    # Read the ends first: records appended afterwards are young, however late the answer about times comes.
    ranges = admin.offsets.ranges(partitions).values
    first_young = admin.offsets.at_times(dict.fromkeys(ranges, before_ms)).values
    found: dict[TopicPartition, OffsetBounds] = {}
    for at, young in first_young.items():
        held = ranges[at]
        until = unread.bound(at, held.end if young is None else min(young, held.end))
        until = min(until, archived.get(at, until))
        if until > held.start:
            found[at] = OffsetBounds(held.start, until)
    return found


def _slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    every = list(items)
    for first in range(0, len(every), size):
        yield every[first : first + size]
