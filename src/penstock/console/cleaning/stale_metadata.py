"""Removes metadata that no client needs any more, once this console has seen that for some time.

- Committed offsets of a running group in topics that none of its members reads: they show a lag that no member reduces.
  Brokers refuse the deletion if a member reads the topic after all.
- Retry and dead-letter topics without messages whose group is gone.
- Schemas that the console keeps for topics that are gone, and silences that have ended.

What was seen is kept in memory: a console that starts anew begins to count anew.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

from penstock.admin import AdminError, Cluster, TopicPartition
from penstock.clock import Clock
from penstock.console.alerts.alert_engine import SILENCES
from penstock.console.cleaning.removed import Removed, all_removed
from penstock.console.operations.clusters import Clusters, ManagedCluster
from penstock.console.polling.snapshot import ClusterSnapshot
from penstock.console.schemas.topic_schemas import TopicSchemas
from penstock.console.state.rules import RuleStore
from penstock.sdk.topic_names import DEAD, RETRY, dead_topic, is_retry_topic

_RUNNING = "STABLE"
_GROUPS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class StaleOffsets:
    """What a running group has committed in a topic that none of its members reads."""

    group: str
    topic: str
    committed: tuple[tuple[int, int], ...]
    """Partitions and offsets: a group that commits once more is counted anew."""


class SeenSince:
    """Since when something has been seen at every look."""

    def __init__(self) -> None:
        self._since_ms: dict[Hashable, int] = {}

    def look(self, found: Iterable[Hashable], now_ms: int) -> None:
        """What is found now; the rest is forgotten."""
        self._since_ms = {each: self._since_ms.get(each, now_ms) for each in found}

    def is_older(self, each: Hashable, limit_ms: int) -> bool:
        since_ms = self._since_ms.get(each)
        return since_ms is not None and since_ms <= limit_ms


class StaleMetadata:
    """Of all clusters."""

    def __init__(self, clusters: Clusters, schemas: TopicSchemas, rules: RuleStore, clock: Clock) -> None:
        self._clusters = clusters
        self._schemas = schemas
        self._rules = rules
        self._clock = clock
        self._seen: dict[str, SeenSince] = {}

    async def remove(self, age_ms: int) -> Removed:
        """What has been stale for so long."""
        now_ms = self._clock.now_ms()
        done = [await self._clean_cluster(managed, now_ms, now_ms - age_ms) for managed in self._clusters.all()]
        return all_removed([*done, await self._remove_silences(now_ms - age_ms)])

    async def _clean_cluster(self, managed: ManagedCluster, now_ms: int, limit_ms: int) -> Removed:
        snapshot = managed.snapshot
        if not snapshot.round or not snapshot.is_reachable:
            return Removed(problems=(f"{snapshot.cluster} does not answer; nothing was removed there",))
        offsets = await managed.link.run(lambda admin: _stale_offsets(admin, snapshot))
        topics = await managed.link.run(lambda _: _unused_topics(snapshot))
        schemas = [topic for topic in await self._schemas.topics(snapshot.cluster) if topic not in snapshot.topics]
        seen = self._seen.setdefault(snapshot.cluster, SeenSince())
        seen.look([*offsets, *(("topic", name) for name in topics), *(("schema", name) for name in schemas)], now_ms)
        old_offsets = [each for each in offsets if seen.is_older(each, limit_ms)]
        old_topics = [name for name in topics if seen.is_older(("topic", name), limit_ms)]
        old_schemas = [name for name in schemas if seen.is_older(("schema", name), limit_ms)]
        return all_removed(
            [
                await managed.link.run(lambda admin: _delete_offsets(admin, old_offsets)),
                await managed.link.run(lambda admin: _delete_topics(admin, old_topics)),
                *[await self._remove_schemas(snapshot.cluster, name) for name in old_schemas],
            ]
        )

    async def _remove_schemas(self, cluster: str, topic: str) -> Removed:
        found = await self._schemas.list(cluster, topic)
        for each in found:
            await self._schemas.remove(cluster, topic, each.id)
        return Removed(len(found), tuple(f"schema of {topic}" for _ in found))

    async def _remove_silences(self, limit_ms: int) -> Removed:
        ended = [id for id, _, body in await self._rules.list(SILENCES) if body["until_ms"] <= limit_ms]
        for id in ended:
            await self._rules.remove(SILENCES, id)
        return Removed(len(ended), tuple(f"silence {id}" for id in ended))


def _stale_offsets(admin: Cluster, snapshot: ClusterSnapshot) -> list[StaleOffsets]:
    running = [group.name for group in snapshot.groups.values() if group.state == _RUNNING]
    found: list[StaleOffsets] = []
    for first in range(0, len(running), _GROUPS_AT_ONCE):
        chosen = running[first : first + _GROUPS_AT_ONCE]
        # Members first: one that joins later and commits has its topic among those that brokers refuse.
        described = admin.groups.describe(chosen).values
        committed = admin.groups.committed(described).values
        for name, held in committed.items():
            read = {at.topic for member in described[name].members for at in member.partitions}
            by_topic: dict[str, list[tuple[int, int]]] = {}
            for at, each in held.items():
                if at.topic not in read:
                    by_topic.setdefault(at.topic, []).append((at.partition, each.offset))
            found += [StaleOffsets(name, topic, tuple(places)) for topic, places in by_topic.items()]
    return found


def _unused_topics(snapshot: ClusterSnapshot) -> list[str]:
    """Retry and dead-letter topics without messages and without their group."""
    found = [
        row.name
        for row in snapshot.topics.values()
        if row.name.endswith((RETRY, DEAD)) and row.messages == 0 and not row.group_count
    ]
    return [name for name in found if not _has_group(name, snapshot.groups)]


def _has_group(topic: str, groups: Collection[str]) -> bool:
    return any(dead_topic(group) == topic or is_retry_topic(group, topic) for group in groups)


def _delete_offsets(admin: Cluster, stale: Iterable[StaleOffsets]) -> Removed:
    count, what, problems = 0, [], []
    for each in stale:
        partitions = [TopicPartition(each.topic, partition) for partition, _ in each.committed]
        try:
            done = admin.group_offsets.delete(each.group, partitions).all()
        except AdminError as error:
            problems.append(f"offsets of {each.group} in {each.topic}: {error.message}")
            continue
        count += len(done)
        what.append(f"offsets of {each.group} in {each.topic}")
    return Removed(count, tuple(what), tuple(problems))


def _delete_topics(admin: Cluster, names: Iterable[str]) -> Removed:
    # What the poller knows is a moment old: nothing may have come since.
    empty = [name for name in names if _is_empty(admin, name)]
    done = admin.topics.delete(empty)
    problems = tuple(f"topic {name}: {error.message}" for name, error in done.errors.items())
    return Removed(len(done.values), tuple(f"topic {name}" for name in done.values), problems)


def _is_empty(admin: Cluster, name: str) -> bool:
    try:
        partitions = admin.topics.describe([name])[name].topic_partitions
        bounds = admin.offsets.ranges(partitions).all().values()
        return all(held.start == held.end for held in bounds) and not admin.timers.list(name, limit=1).items
    except AdminError:
        return False
