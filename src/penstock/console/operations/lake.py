"""Operations on the lake of a cluster: what is in it, and how far behind the archive is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.admin import TopicPartition
from penstock.console.errors import MissingError
from penstock.console.operations.clusters import Clusters, ManagedCluster
from penstock.console.operations.operation import Scope, Service, query
from penstock.console.operations.paging import RowPage, RowQuery, row_page
from penstock.console.pipeline.lake_view import ArchivedTopic, LakeLook, require_lake
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog
from penstock.errors import PenstockError

_LAG_COLUMNS = ("topic", "partitions", "archived_partitions", "behind", "lost", "rows", "size_bytes", "newest_ms")


@dataclass(frozen=True, slots=True)
class LakeSummary:
    """A lake as a whole, as far as the caller sees it."""

    uri: str
    """Empty: the console knows no lake of this cluster."""
    problem: str
    """Why it cannot be read; empty if it can."""
    version: int | None = None
    changed_ms: int | None = None
    """When its last version was made."""
    topics: int = 0
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    behind: int = 0
    """Offsets of all partitions that are not archived yet."""
    lost: int = 0
    """Offsets that were deleted before they were archived."""
    not_archived: tuple[str, ...] = ()
    """Topics that have messages of which the lake has none; the first of them."""
    not_archived_count: int = 0


@dataclass(frozen=True, slots=True)
class ArchiveLag:
    """A topic in the lake, and what of it is not there yet."""

    topic: str
    is_live: bool
    """False: the cluster has no such topic any more; the lake keeps what it had."""
    partitions: int
    archived_partitions: int
    behind: int | None
    """Offsets that are not archived yet; None if the partitions' ends are not known."""
    lost: int
    """Offsets that were deleted before they were archived."""
    rows: int
    size_bytes: int
    files: int
    first_day: str
    last_day: str
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionArchiveLag:
    """A partition: what brokers have, and up to where it is archived."""

    index: int
    start: int | None
    end: int | None
    archived: int | None
    """The first offset that is not archived; None if nothing of it ever was."""
    behind: int | None
    lost: int


@dataclass(frozen=True, slots=True)
class LakeColumn:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table that queries and Delta readers find."""

    name: str
    kind: str
    """`topic` or `report`."""
    rows: int
    size_bytes: int
    files: int
    from_day: str
    until_day: str


@dataclass(frozen=True, slots=True)
class LakeTables:
    """The tables of a lake, and the columns that those of topics have."""

    tables: tuple[LakeTable, ...]
    columns: tuple[LakeColumn, ...]


class LakeOperations(Service):
    """What a lake has; without Spark."""

    def __init__(self, audit: AuditLog, clusters: Clusters) -> None:
        super().__init__(audit)
        self._clusters = clusters

    @query("lake.summary", Role.VIEWER, Scope.ANY)
    async def summary(self, caller: Caller, cluster: str) -> LakeSummary:
        """Whether there is a lake and what is in it; reports a lake that cannot be read instead of failing."""
        managed = self._clusters[cluster]
        if managed.lake is None:
            return LakeSummary("", "")
        uri = managed.lake.uri if caller.role.covers(Role.VIEWER) else cluster
        try:
            look = await managed.lake.look()
        except PenstockError as error:
            return LakeSummary(uri, str(error))
        lags = _lags(managed, look, caller)
        names = {each.topic for each in lags}
        missing = [
            name
            for name, row in managed.snapshot.topics.items()
            if not row.is_internal and row.end_total and name not in names and caller.sees_topic(cluster, name)
        ]
        return LakeSummary(
            uri=uri,
            problem="",
            version=look.version,
            changed_ms=look.changed_ms,
            topics=len(lags),
            rows=sum(each.rows for each in lags),
            size_bytes=sum(each.size_bytes for each in lags),
            files=sum(each.files for each in lags),
            behind=sum(each.behind or 0 for each in lags),
            lost=sum(each.lost for each in lags),
            not_archived=tuple(sorted(missing)[:20]),
            not_archived_count=len(missing),
        )

    @query("lake.lag", Role.VIEWER, Scope.ANY)
    async def lag(self, caller: Caller, cluster: str, rows: RowQuery) -> RowPage[ArchiveLag]:
        """Each topic that is in the lake: how far behind the archive is."""
        managed = self._clusters[cluster]
        look = await require_lake(managed.lake, cluster).look()
        found = _lags(managed, look, caller)
        return row_page(found, rows, managed.snapshot.at_ms, _LAG_COLUMNS, lambda row: row.topic)

    @query("lake.partition_lag", Role.VIEWER, Scope.TOPIC)
    async def partition_lag(self, caller: Caller, cluster: str, topic: str) -> tuple[PartitionArchiveLag, ...]:
        """The same by partition."""
        managed = self._clusters[cluster]
        look = await require_lake(managed.lake, cluster).look()
        archived = look.topics.get(topic)
        if archived is None:
            raise MissingError(f"the lake has nothing of a topic {topic} that the cluster has")
        # The poller reads first offsets only now and then; a user who opens a topic sees the current ones.
        wanted = [TopicPartition(topic, index) for index in range(len(archived.watermarks))]
        found = await managed.link.detail(("bounds", topic), lambda admin: admin.offsets.ranges(wanted))
        bounds = {at.partition: (held.start, held.end) for at, held in found.values.items()}
        return tuple(_partition_lags(archived, bounds))

    @query("lake.tables", Role.VIEWER, Scope.ANY)
    async def tables(self, caller: Caller, cluster: str) -> LakeTables:
        """Tables by name. Those of reports are about all topics: callers who see only some do not see them."""
        managed = self._clusters[cluster]
        lake = require_lake(managed.lake, cluster)
        look = await lake.look()
        topics = [
            LakeTable(each.topic, "topic", each.rows, each.size_bytes, each.files, each.first_day, each.last_day)
            for each in look.contents
            if caller.sees_topic(cluster, each.topic)
        ]
        reports = await lake.reports() if caller.role.covers(Role.VIEWER) else ()
        told = [LakeTable(each.name, "report", each.rows, each.size_bytes, each.files, "", "") for each in reports]
        # A console that has got here has the libraries for lakes.
        from penstock.pipeline.lake.record_table import SCHEMA

        return LakeTables((*topics, *told), tuple(LakeColumn(each.name, str(each.type)) for each in SCHEMA))


def _lags(managed: ManagedCluster, look: LakeLook, caller: Caller) -> list[ArchiveLag]:
    partitions = managed.snapshot.partitions
    found: list[ArchiveLag] = []
    for each in look.contents:
        if not caller.sees_topic(managed.link.name, each.topic):
            continue
        archived = look.topics.get(each.topic)
        known = {row.index: (row.start, row.end) for row in partitions.get(each.topic, ())}
        rows = [] if archived is None else _partition_lags(archived, known)
        behinds = [row.behind for row in rows if row.behind is not None]
        found.append(
            ArchiveLag(
                topic=each.topic,
                is_live=archived is not None,
                partitions=len(rows),
                archived_partitions=sum(row.archived is not None for row in rows),
                behind=sum(behinds) if behinds or archived is None else None,
                lost=sum(row.lost for row in rows),
                rows=each.rows,
                size_bytes=each.size_bytes,
                files=each.files,
                first_day=each.first_day,
                last_day=each.last_day,
                newest_ms=each.newest_ms,
            )
        )
    return found


def _partition_lags(
    archived: ArchivedTopic, bounds: Mapping[int, tuple[int | None, int | None]]
) -> list[PartitionArchiveLag]:
    """`bounds` are first offset and end by partition; None where they are not known."""
    found: list[PartitionArchiveLag] = []
    for index, watermark in enumerate(archived.watermarks):
        start, end = bounds.get(index, (None, None))
        # What was never archived at all counts from where the log begins: what was deleted before is not known.
        begin = watermark if watermark is not None else start
        behind = None if end is None or begin is None else max(0, end - max(begin, start or 0))
        lost = max(0, start - watermark) if start is not None and watermark is not None else 0
        found.append(PartitionArchiveLag(index, start, end, watermark, behind, lost))
    return found
