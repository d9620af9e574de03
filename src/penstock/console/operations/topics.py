"""Operations on topics: list, describe, create, configure, grow, retire partitions, empty, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.admin import (
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ReplicaLog,
    Results,
    SettingDescription,
    TopicDescription,
    TopicPartition,
    topic_setting_descriptions,
)
from penstock.config.view import VIEW_OF_SETTING, VIEW_TAGS_SETTING
from penstock.console.errors import ConflictError, InvalidError, MissingError
from penstock.console.operations.clusters import Clusters, ManagedCluster, seen_by
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.operations.paging import ItemResult, RowPage, RowQuery, row_page
from penstock.console.polling.snapshot import PartitionRow, TopicRow
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog

_COLUMNS = (
    "name",
    "partition_count",
    "replication_factor",
    "under_replicated",
    "offline",
    "messages",
    "rate_per_s",
    "size_bytes",
    "group_count",
    "lag",
)
_REPLICA_COLUMNS = ("partition", "broker")
_PARTITION_COLUMNS = ("index", "leader", "start", "end", "size_bytes", "is_under_replicated")


@dataclass(frozen=True, slots=True)
class TopicReader:
    """A group that reads a topic."""

    group: str
    state: str
    members: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """A topic, its readers, and what it is a view of."""

    topic: TopicRow
    readers: tuple[TopicReader, ...]
    view_of: str
    view_tags: str
    successors: Mapping[int, int]
    """The partition that takes the place of each retired one."""
    unread_by: Mapping[int, tuple[str, ...]]
    """For each retired partition that still exists: groups that have records left to read in it."""


@dataclass(frozen=True, slots=True)
class ReplicaSegments:
    """The log of a replica and its segments; what its broker does not tell is None."""

    partition: int
    broker: int
    is_leader: bool
    is_in_sync: bool
    size_bytes: int | None = None
    """Delayed messages included, which are in segments of their own."""
    segments: int | None = None
    """None also if nothing was ever appended."""
    first_offset: int | None = None
    end_offset: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A log segment of a replica."""

    broker: int
    base_offset: int
    end_offset: int
    size_bytes: int
    first_ms: int | None
    newest_ms: int | None
    """Retention by time counts from it."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic with its meaning."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    description: SettingDescription | None


class TopicOperations(Service):
    """Topics of a cluster."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("topics.list", Role.VIEWER, Scope.ANY)
    async def list(
        self, caller: Caller, cluster: str, rows: RowQuery, include_internal: bool = False
    ) -> RowPage[TopicRow]:
        """The topics that the caller sees."""
        snapshot = seen_by(caller, self._clusters[cluster].snapshot)
        found = [row for row in snapshot.topics.values() if include_internal or not row.is_internal]
        return row_page(found, rows, snapshot.at_ms, _COLUMNS, lambda row: row.name)

    @query("topics.describe", Role.VIEWER, Scope.TOPIC)
    async def describe(self, caller: Caller, cluster: str, topic: str) -> TopicDetail:
        row = await self._row(cluster, topic)
        managed = self._clusters[cluster]
        settings, retired = await asyncio.gather(
            managed.link.detail(("settings", topic), lambda admin: admin.topics.configs([topic])),
            managed.link.detail(("retired", topic), lambda admin: admin.retirement.describe(topic)),
        )
        readers = [
            TopicReader(group.name, group.state, group.members, group.lag_by_topic.get(topic, 0))
            for group in managed.snapshot.groups.values()
            if topic in group.topics and caller.sees_group(cluster, group.name)
        ]
        entries = settings[topic]
        return TopicDetail(
            topic=row,
            readers=tuple(sorted(readers, key=lambda reader: -reader.lag)),
            view_of=_value(entries, VIEW_OF_SETTING),
            view_tags=_value(entries, VIEW_TAGS_SETTING),
            successors=dict(retired.successors),
            unread_by={
                index: tuple(name for name in groups if caller.sees_group(cluster, name))
                for index, groups in retired.unread_by.items()
            },
        )

    @query("topics.partitions", Role.VIEWER, Scope.TOPIC)
    async def partitions(self, caller: Caller, cluster: str, topic: str, rows: RowQuery) -> RowPage[PartitionRow]:
        await self._row(cluster, topic)
        snapshot = self._clusters[cluster].snapshot
        found = snapshot.partitions.get(topic, ())
        return row_page(found, rows, snapshot.at_ms, _PARTITION_COLUMNS, lambda row: str(row.index))

    @query("topics.segments", Role.VIEWER, Scope.TOPIC)
    async def segments(self, caller: Caller, cluster: str, topic: str, rows: RowQuery) -> RowPage[ReplicaSegments]:
        """The replicas of a topic with the segments of their logs; reads only those of the page from the brokers."""
        await self._row(cluster, topic)
        managed = self._clusters[cluster]
        snapshot = managed.snapshot
        every = [
            ReplicaSegments(row.index, broker, row.leader == broker, broker in row.isr)
            for row in snapshot.partitions.get(topic, ())
            for broker in row.replicas
        ]
        page = row_page(every, rows, snapshot.at_ms, _REPLICA_COLUMNS, lambda row: str(row.partition))
        told = await _replica_logs(managed, topic, sorted({row.partition for row in page.items}))
        items = tuple(_with_segments(row, told, topic) for row in page.items)
        return RowPage(items, page.total, page.at_ms)

    @query("topics.partition_segments", Role.VIEWER, Scope.TOPIC)
    async def partition_segments(
        self, caller: Caller, cluster: str, topic: str, partition: int
    ) -> tuple[SegmentRow, ...]:
        """The segments of each replica of a partition, the oldest first."""
        row = await self._row(cluster, topic)
        if partition >= row.partition_count:
            raise MissingError(f"{topic} has no partition {partition}: the last is {row.partition_count - 1}")
        told = await _replica_logs(self._clusters[cluster], topic, [partition])
        if told.errors and not told.values:
            raise next(iter(told.errors.values()))
        return tuple(
            SegmentRow(broker, each.base_offset, each.end_offset, each.size_bytes, each.first_ms, each.newest_ms)
            for broker, logs in sorted(told.values.items())
            for log in logs
            for each in log.segments
        )

    @query("topics.settings", Role.VIEWER, Scope.TOPIC)
    async def settings(self, caller: Caller, cluster: str, topic: str) -> tuple[TopicSetting, ...]:
        """All settings with their meaning."""
        link = self._clusters[cluster].link
        found = await link.detail(("settings", topic), lambda admin: admin.topics.configs([topic]))
        meanings = {each.name: each for each in topic_setting_descriptions()}
        return tuple(
            TopicSetting(
                entry.name,
                entry.value,
                entry.source,
                entry.is_default,
                entry.is_read_only,
                entry.is_sensitive,
                meanings.get(entry.name),
            )
            for entry in found[topic].values()
        )

    @query("topics.setting_meanings", Role.VIEWER, Scope.ANY)
    async def setting_meanings(self, caller: Caller) -> tuple[SettingDescription, ...]:
        """What can be set when a topic is created."""
        return topic_setting_descriptions()

    @change("topics.create", Role.ADMIN, Scope.TOPIC)
    async def create(
        self,
        caller: Caller,
        cluster: str,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Changed[TopicRow]:
        wanted = NewTopic(
            name=topic, partitions=partitions, replication_factor=replication_factor, configs=dict(settings or {})
        )
        managed = self._clusters[cluster]
        # Another broker may not know the topic yet, so none is asked for what was created.
        row = _new_row(await managed.link.run(lambda admin: admin.topics.create([wanted])[topic]))
        managed.changed()
        return Changed(row, None, {"partitions": row.partition_count, "settings": dict(settings or {})})

    @change("topics.create_view", Role.ADMIN, Scope.TOPIC)
    async def create_view(self, caller: Caller, cluster: str, topic: str, view_of: str, tags: str) -> Changed[TopicRow]:
        """A topic that shows the messages of another one that have certain tags; the caller must see that one."""
        if not caller.sees_topic(cluster, view_of):
            raise MissingError(f"there is no topic {view_of}; no view was made")
        managed = self._clusters[cluster]
        wanted = NewTopic(name=topic, configs={VIEW_OF_SETTING: view_of, VIEW_TAGS_SETTING: tags})
        row = _new_row(await managed.link.run(lambda admin: admin.topics.create([wanted])[topic]))
        managed.changed()
        return Changed(row, None, {"view_of": view_of, "tags": tags})

    @change("topics.alter_settings", Role.ADMIN, Scope.TOPIC)
    async def alter_settings(
        self,
        caller: Caller,
        cluster: str,
        topic: str,
        set: Mapping[str, str],
        delete: Sequence[str] = (),
        validate_only: bool = False,
    ) -> Changed[tuple[TopicSetting, ...]]:
        """Sets some settings and returns others to their defaults: all of it, or nothing."""
        if twice := [name for name in delete if name in set]:
            raise InvalidError(f"{twice[0]} is both set and deleted; nothing was changed")
        managed = self._clusters[cluster]
        before = (await managed.link.run(lambda admin: admin.topics.configs([topic])))[topic]
        changes = [ConfigChange.set(name, value) for name, value in set.items()]
        changes += [ConfigChange.delete(name) for name in delete]
        resource = ConfigResource.topic(topic)
        await managed.link.run(
            lambda admin: admin.configs.alter({resource: changes}, validate_only=validate_only).all()
        )
        managed.changed()
        named = {*set, *delete}
        after = await self.settings(caller, cluster, topic)
        return Changed(
            after,
            {name: _value(before, name) for name in named},
            None if validate_only else {each.name: each.value for each in after if each.name in named},
        )

    @change("topics.add_partitions", Role.ADMIN, Scope.TOPIC)
    async def add_partitions(self, caller: Caller, cluster: str, topic: str, total: int) -> Changed[None]:
        """Messages of one key may go to another partition from then on."""
        before = await self._row(cluster, topic)
        managed = self._clusters[cluster]
        await managed.link.run(lambda admin: admin.topics.add_partitions({topic: total})[topic])
        managed.changed()
        return Changed(None, {"partitions": before.partition_count}, {"partitions": total})

    @change("topics.retire_partitions", Role.ADMIN, Scope.TOPIC)
    async def retire_partitions(
        self, caller: Caller, cluster: str, topic: str, partitions: Sequence[int], validate_only: bool = False
    ) -> Changed[Mapping[int, int]]:
        """The topic's last partitions take no new messages; gives their successors."""
        managed = self._clusters[cluster]
        successors = await managed.link.run(
            lambda admin: admin.retirement.retire(topic, partitions, validate_only=validate_only)
        )
        managed.changed()
        return Changed(dict(successors), None, None if validate_only else {"retired": sorted(successors)})

    @change("topics.delete_records", Role.ADMIN, Scope.TOPIC)
    async def delete_records(
        self, caller: Caller, cluster: str, topic: str, before: Mapping[int, int], confirm: str
    ) -> Changed[tuple[ItemResult, ...]]:
        """Deletes the messages of partitions before an offset, for good."""
        _check_confirmation(topic, confirm)
        managed = self._clusters[cluster]
        wanted = {TopicPartition(topic, index): offset for index, offset in before.items()}
        done = await managed.link.run(lambda admin: admin.topics.delete_records(wanted))
        managed.changed()
        results = [ItemResult(str(at.partition), True) for at in done.values]
        results += [ItemResult(str(at.partition), False, each.code, each.message) for at, each in done.errors.items()]
        failed = "; ".join(f"partition {each.item}: {each.error}" for each in results if not each.is_done)
        starts = {at.partition: start for at, start in done.values.items()}
        return Changed(tuple(results), None, {"starts": starts}, failed)

    @change("topics.delete", Role.ADMIN, Scope.TOPIC)
    async def delete(self, caller: Caller, cluster: str, topic: str, confirm: str) -> Changed[None]:
        """Deletes a topic and everything in it; `confirm` is its name once more."""
        _check_confirmation(topic, confirm)
        managed = self._clusters[cluster]
        before = await self._row(cluster, topic)
        await managed.link.run(lambda admin: admin.topics.delete([topic])[topic])
        managed.changed()
        return Changed(None, {"partitions": before.partition_count, "messages": before.messages}, None)

    async def _row(self, cluster: str, topic: str) -> TopicRow:
        """From the snapshot, or from the cluster for a topic that was created a moment ago."""
        managed = self._clusters[cluster]
        row = managed.snapshot.topics.get(topic)
        if row is not None:
            return row
        found = await managed.link.detail(("topic", topic), lambda admin: admin.topics.describe([topic]))
        return _new_row(found[topic])


async def _replica_logs(
    managed: ManagedCluster, topic: str, partitions: Sequence[int]
) -> Results[int, tuple[ReplicaLog, ...]]:
    wanted = [TopicPartition(topic, each) for each in partitions]
    return await managed.link.detail(
        ("segments", topic, tuple(partitions)), lambda admin: admin.log_dirs.segments(wanted)
    )


def _with_segments(row: ReplicaSegments, told: Results[int, tuple[ReplicaLog, ...]], topic: str) -> ReplicaSegments:
    at = TopicPartition(topic, row.partition)
    found = next((log for log in told.values.get(row.broker, ()) if log.partition == at), None)
    if found is None:
        error = told.errors.get(row.broker)
        return replace(row, problem="the broker has no log of it" if error is None else error.message)
    segments = found.segments
    return replace(
        row,
        size_bytes=found.size_bytes,
        segments=len(segments) or None,
        first_offset=segments[0].base_offset if segments else None,
        end_offset=segments[-1].end_offset if segments else None,
        oldest_ms=next((each.first_ms for each in segments if each.first_ms is not None), None),
        newest_ms=max((each.newest_ms for each in segments if each.newest_ms is not None), default=None),
    )


def _check_confirmation(name: str, confirm: str) -> None:
    if confirm != name:
        raise ConflictError(f"type the name {name} to confirm; nothing was deleted")


def _value(entries: Mapping[str, ConfigEntry], name: str) -> str:
    entry = entries.get(name)
    return "" if entry is None or entry.value is None else entry.value


def _new_row(found: TopicDescription) -> TopicRow:
    """Of a topic that the poller has not seen yet."""
    return TopicRow(
        name=found.name,
        is_internal=found.is_internal,
        partition_count=len(found.partitions),
        replication_factor=found.replication_factor,
        under_replicated=sum(each.is_under_replicated for each in found.partitions),
        offline=sum(each.is_unavailable for each in found.partitions),
        messages=None,
        end_total=0,
        rate_per_s=None,
        size_bytes=None,
        group_count=0,
        lag=0,
    )
