"""What an alert rule watches, and whether it fires for a snapshot. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.console.polling.snapshot import ClusterSnapshot
from penstock.sdk.topic_names import DEAD


class AlertKind(Enum):
    """What is watched; `threshold` means what stands beside it."""

    LAG = "lag"
    """Messages that a group is behind."""
    REPLICATION = "replication_lag"
    """Seconds that replicas are out of sync."""
    UNDER_REPLICATED = "under_replicated"
    """Partitions of a topic that lack a replica in sync."""
    DEAD_LETTERS = "dead_letters"
    """Messages in a dead-letter topic."""
    NO_CONSUMER = "no_active_consumer"
    """Messages that wait for a group without members."""
    DISK = "disk"
    """Per cent of a disk that are used."""
    DATABASE_LAG = "database_lag"
    """Seconds that a replica of a database group is behind its primary."""
    LATE_TIMERS = "late_timers"
    """Seconds that a delayed message still waits after it was due."""
    UNREACHABLE = "unreachable"
    """The cluster does not answer."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Fires for each thing that is over the threshold for `for_ms`."""

    name: str
    kind: AlertKind
    threshold: float = 0
    for_ms: int = 0
    cluster: str | None = None
    """None: all."""
    prefix: str = ""
    """Of topics, groups or database groups."""
    webhook: str = ""
    email: tuple[str, ...] = ()
    is_enabled: bool = True
    id: str = ""

    def body(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "threshold": self.threshold,
            "for_ms": self.for_ms,
            "cluster": self.cluster,
            "prefix": self.prefix,
            "webhook": self.webhook,
            "email": list(self.email),
            "is_enabled": self.is_enabled,
        }

    @classmethod
    def parse(cls, id: str, name: str, body: dict[str, Any]) -> AlertRule:
        return cls(
            name=name,
            kind=AlertKind(body["kind"]),
            threshold=body["threshold"],
            for_ms=body["for_ms"],
            cluster=body["cluster"],
            prefix=body["prefix"],
            webhook=body["webhook"],
            email=tuple(body["email"]),
            is_enabled=body["is_enabled"],
            id=id,
        )


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that is over a rule's threshold now."""

    resource: str
    value: float
    text: str


def breaches(rule: AlertRule, snapshot: ClusterSnapshot) -> Iterator[Breach]:
    """Everything in a snapshot that is over the threshold."""
    if rule.kind is AlertKind.UNREACHABLE:
        if not snapshot.is_reachable and snapshot.round:
            yield Breach(snapshot.cluster, 1, snapshot.problem)
        return
    if not snapshot.is_reachable:
        return
    groups = [group for group in snapshot.groups.values() if group.name.startswith(rule.prefix)]
    topics = [topic for topic in snapshot.topics.values() if topic.name.startswith(rule.prefix)]
    match rule.kind:
        case AlertKind.LAG:
            for group in groups:
                if group.lag is not None and group.lag > rule.threshold:
                    yield Breach(group.name, group.lag, f"group {group.name} is {group.lag} messages behind")
        case AlertKind.NO_CONSUMER:
            for group in groups:
                if group.members == 0 and (group.lag or 0) > rule.threshold:
                    text = f"group {group.name} has no active consumer, and {group.lag} messages wait"
                    yield Breach(group.name, group.lag or 0, text)
        case AlertKind.UNDER_REPLICATED | AlertKind.REPLICATION:
            least = rule.threshold if rule.kind is AlertKind.UNDER_REPLICATED else 0
            for topic in topics:
                if topic.under_replicated > least:
                    text = f"{topic.under_replicated} partitions of {topic.name} are under-replicated"
                    yield Breach(topic.name, topic.under_replicated, text)
        case AlertKind.DEAD_LETTERS:
            for topic in topics:
                if topic.name.endswith(DEAD) and (topic.messages or 0) > rule.threshold:
                    yield Breach(topic.name, topic.messages or 0, f"{topic.messages} dead letters are in {topic.name}")
        case AlertKind.DATABASE_LAG:
            for server in snapshot.databases:
                lag_s = (server.lag_ms or 0) / 1000
                if server.group.startswith(rule.prefix) and lag_s > rule.threshold:
                    text = f"database {server.server} of group {server.group} is {lag_s:.0f} s behind its primary"
                    yield Breach(f"database {server.group} {server.server}", round(lag_s, 1), text)
        case AlertKind.LATE_TIMERS:
            for name, late_ms in snapshot.late_timers.items():
                late_s = late_ms / 1000
                if name.startswith(rule.prefix) and late_s > rule.threshold:
                    text = f"a delayed message waits in {name} that was due {late_s:.0f} s ago"
                    yield Breach(name, round(late_s, 1), text)
        case AlertKind.DISK:
            for broker in snapshot.brokers:
                for disk in broker.disks:
                    if disk.total_bytes and disk.usable_bytes is not None:
                        used = 100 * (1 - disk.usable_bytes / disk.total_bytes)
                        if used > rule.threshold:
                            text = f"{used:.0f} % of the disk of broker {broker.id} at {disk.path} are used"
                            yield Breach(f"broker {broker.id} {disk.path}", round(used, 1), text)


def least_duration_ms(rule: AlertRule) -> int:
    """How long a breach lasts before it fires; a rule on replication counts its threshold in seconds."""
    return int(rule.threshold * 1000) if rule.kind is AlertKind.REPLICATION else rule.for_ms


def time_text(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))
