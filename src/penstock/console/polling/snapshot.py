"""What the console knows of a cluster at one moment. Values; the poller makes a new one each round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Severity(Enum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs attention, the worst first; `kind` and `name` say where to look."""

    severity: Severity
    kind: str
    """`topic`, `group`, `broker`, `database`, `cluster`, `alert`."""
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition; offsets are None until its leader has answered."""

    index: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    start: int | None
    end: int | None
    size_bytes: int | None

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_offline(self) -> bool:
        return self.leader is None or self.leader in self.offline


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic as lists show it."""

    name: str
    is_internal: bool
    partition_count: int
    replication_factor: int
    under_replicated: int
    offline: int
    messages: int | None
    """Between first offset and end: an upper bound, because offsets have gaps."""
    end_total: int
    rate_per_s: float | None
    """Messages a second that came in lately."""
    size_bytes: int | None
    """Of all replicas."""
    group_count: int
    lag: int
    """Of all groups that read it."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as lists show it; values that the poller has not read yet are None."""

    name: str
    state: str
    members: int | None
    topics: tuple[str, ...]
    lag: int | None
    rate_per_s: float | None
    """Offsets committed a second."""
    eta_s: float | None
    """Until the lag is gone, at this rate and that of the producers; None if it grows or nothing moves."""
    paused: str
    """`all`, names of topics with commas, or empty."""
    read_ms: int | None
    """When the poller read its members and offsets."""
    lag_by_topic: Mapping[str, int] = field(default_factory=dict)
    idle_since_ms: int | None = None
    """Since when it has had no members and committed nothing, as far as this console has seen."""


@dataclass(frozen=True, slots=True)
class DiskRow:
    """A folder of a broker."""

    path: str
    used_bytes: int
    total_bytes: int | None
    usable_bytes: int | None


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker."""

    id: int
    state: str
    address: str | None
    rack: str | None
    is_controller: bool
    replicas: int
    leaders: int
    out_of_sync: int
    rate_per_s: float | None
    """Messages a second into the partitions that it leads."""
    disks: tuple[DiskRow, ...] = ()


@dataclass(frozen=True, slots=True)
class DatabaseServerRow:
    """A server of a database group, as a broker sees it."""

    group: str
    server: str
    """HOST:PORT, or the path of a file."""
    is_primary: bool
    state: str
    """`up`, `down`, `read-only`, `writable` or `unknown`."""
    lag_ms: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All of a cluster at one moment; the same object for every viewer until the next round."""

    cluster: str
    round: int
    """0: no round has ended yet."""
    at_ms: int
    is_reachable: bool
    problem: str
    topics: Mapping[str, TopicRow] = field(default_factory=dict)
    groups: Mapping[str, GroupRow] = field(default_factory=dict)
    brokers: tuple[BrokerRow, ...] = ()
    partitions: Mapping[str, tuple[PartitionRow, ...]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    rate_per_s: float | None = None
    took_ms: int = 0
    databases: tuple[DatabaseServerRow, ...] = ()
    late_timers: Mapping[str, int] = field(default_factory=dict)
    """Of topics that an alert rule watches: for how long, in ms, a message had been due and still waited when the topic
    was last looked at.
    """

    @property
    def partition_count(self) -> int:
        return sum(topic.partition_count for topic in self.topics.values())

    @property
    def lag(self) -> int:
        return sum(group.lag or 0 for group in self.groups.values())

    @property
    def is_healthy(self) -> bool:
        return self.is_reachable and not any(finding.severity is Severity.ERROR for finding in self.findings)


def no_snapshot(cluster: str) -> ClusterSnapshot:
    return ClusterSnapshot(cluster, 0, 0, False, "the cluster was not asked yet")
