"""Operations on clusters as wholes: the list of them, the overview, live samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.console.errors import MissingError
from penstock.console.operations.operation import Scope, Service, query
from penstock.console.pipeline.lake_view import LakeView
from penstock.console.polling.cluster_link import ClusterLink
from penstock.console.polling.poller import Poller
from penstock.console.polling.samples import Samples, SampleSeries
from penstock.console.polling.snapshot import BrokerRow, ClusterSnapshot, Finding, GroupRow, Severity, TopicRow
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog

_TOP = 10
_FINDINGS = 100
_WORST = (Severity.ERROR, Severity.WARNING, Severity.NOTICE)


@dataclass(frozen=True, slots=True)
class ManagedCluster:
    """A cluster with its poller."""

    link: ClusterLink
    poller: Poller
    samples: Samples
    lake: LakeView | None = None

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self.poller.snapshot

    def changed(self) -> None:
        """After a change, so that the user who made it sees it soon."""
        self.link.forget_details()
        self.poller.hasten()


class Clusters:
    """The clusters by name."""

    def __init__(self, managed: Mapping[str, ManagedCluster]) -> None:
        self._managed = managed

    def __getitem__(self, name: str) -> ManagedCluster:
        found = self._managed.get(name)
        if found is None:
            raise MissingError(f"there is no cluster {name}; there are {', '.join(self._managed)}")
        return found

    def all(self) -> list[ManagedCluster]:
        return list(self._managed.values())


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """A cluster as a list shows it."""

    name: str
    bootstrap: str
    is_reachable: bool
    is_healthy: bool
    problem: str
    at_ms: int
    brokers: int
    topics: int
    partitions: int
    groups: int
    lag: int
    rate_per_s: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What an operator sees first."""

    summary: ClusterSummary
    under_replicated: int
    offline: int
    findings: tuple[Finding, ...]
    busiest_topics: tuple[TopicRow, ...]
    most_behind: tuple[GroupRow, ...]
    brokers: tuple[BrokerRow, ...]


class ClusterOperations(Service):
    """Clusters as wholes."""

    def __init__(
        self, audit: AuditLog, clusters: Clusters, alerts: Callable[[str], Sequence[Finding]] = lambda _: ()
    ) -> None:
        super().__init__(audit)
        self._clusters = clusters
        self._alerts = alerts

    @query("clusters.list", Role.VIEWER, Scope.ANY)
    async def list(self, caller: Caller) -> tuple[ClusterSummary, ...]:
        return tuple(_summary(each, seen_by(caller, each.snapshot)) for each in self._clusters.all())

    @query("clusters.overview", Role.VIEWER, Scope.ANY)
    async def overview(self, caller: Caller, cluster: str) -> Overview:
        managed = self._clusters[cluster]
        seen = seen_by(caller, managed.snapshot)
        topics = [topic for topic in seen.topics.values() if not topic.is_internal]
        alerts = self._alerts(cluster) if caller.role.covers(Role.VIEWER) else ()
        return Overview(
            summary=_summary(managed, seen),
            under_replicated=sum(topic.under_replicated for topic in seen.topics.values()),
            offline=sum(topic.offline for topic in seen.topics.values()),
            findings=tuple(sorted((*seen.findings, *alerts), key=lambda each: _WORST.index(each.severity))[:_FINDINGS]),
            busiest_topics=tuple(sorted(topics, key=lambda topic: -(topic.rate_per_s or 0))[:_TOP]),
            most_behind=tuple(sorted(seen.groups.values(), key=lambda group: -(group.lag or 0))[:_TOP]),
            brokers=seen.brokers,
        )

    @query("clusters.snapshot", Role.VIEWER, Scope.ANY)
    async def snapshot(self, caller: Caller, cluster: str) -> ClusterSnapshot:
        """All that is known, without what the caller does not see; for pages."""
        return seen_by(caller, self._clusters[cluster].snapshot)

    @query("clusters.samples", Role.VIEWER, Scope.ANY)
    async def samples(
        self,
        caller: Caller,
        cluster: str,
        names: Sequence[str],
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> tuple[SampleSeries, ...]:
        """Points of series: the last minutes, or a time of the past. What the caller does not see is empty."""
        managed = self._clusters[cluster]
        found: list[SampleSeries] = []
        for name in names:
            if not _sees_series(caller, cluster, name):
                found.append(SampleSeries(name, (), ()))
            elif from_ms is None:
                found.append(managed.samples.recent(name))
            else:
                found.append(await managed.samples.history(name, from_ms, until_ms or 2**62))
        return tuple(found)


def _sees_series(caller: Caller, cluster: str, name: str) -> bool:
    kind, _, of = name.partition(".")
    if kind == "topic":
        return caller.sees_topic(cluster, of)
    return caller.sees_group(cluster, of) if kind == "group" else caller.role.covers(Role.VIEWER)


def seen_by(caller: Caller, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Without the topics and groups that a caller does not see."""
    if caller.role.covers(Role.VIEWER):
        return snapshot
    name = snapshot.cluster
    topics = {key: row for key, row in snapshot.topics.items() if caller.sees_topic(name, key)}
    groups = {key: row for key, row in snapshot.groups.items() if caller.sees_group(name, key)}
    rates = [row.rate_per_s for row in topics.values() if row.rate_per_s is not None]
    seen = {"topic": topics.keys(), "group": groups.keys()}
    return replace(
        snapshot,
        topics=topics,
        groups=groups,
        partitions={key: rows for key, rows in snapshot.partitions.items() if key in topics},
        findings=tuple(each for each in snapshot.findings if each.kind in seen and each.name in seen[each.kind]),
        brokers=(),
        databases=(),
        late_timers={name: late_ms for name, late_ms in snapshot.late_timers.items() if name in topics},
        rate_per_s=sum(rates) if rates else None,
    )


def _summary(managed: ManagedCluster, seen: ClusterSnapshot) -> ClusterSummary:
    return ClusterSummary(
        name=managed.link.name,
        bootstrap=managed.link.bootstrap,
        is_reachable=seen.is_reachable,
        is_healthy=seen.is_healthy,
        problem=seen.problem,
        at_ms=seen.at_ms,
        brokers=len(seen.brokers),
        topics=sum(not topic.is_internal for topic in seen.topics.values()),
        partitions=seen.partition_count,
        groups=len(seen.groups),
        lag=seen.lag,
        rate_per_s=seen.rate_per_s,
    )
