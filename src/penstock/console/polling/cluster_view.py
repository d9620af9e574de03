"""What a poller has learned of a cluster so far, from which each round makes a snapshot. Pure; one thread at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.admin import BrokerDescription, BrokerState, GroupPause, TopicDescription, TopicPartition
from penstock.console.polling.snapshot import (
    BrokerRow,
    ClusterSnapshot,
    DatabaseServerRow,
    DiskRow,
    Finding,
    GroupRow,
    PartitionRow,
    Severity,
    TopicRow,
)

_MOST_FINDINGS = 100
LONG_DATABASE_LAG_MS = 30_000


@dataclass(frozen=True, slots=True)
class Reading:
    """A counter at a moment."""

    at_ms: float
    total: int


class RateMeter:
    """The speed of a counter between its last two readings."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self.per_s: float | None = None

    def read(self, at_ms: float, total: int) -> None:
        last = self._last
        if last is not None and at_ms > last.at_ms:
            self.per_s = max(0, total - last.total) * 1000 / (at_ms - last.at_ms)
        self._last = Reading(at_ms, total)


@dataclass(slots=True)
class GroupReading:
    """What was last learned of a group."""

    read_ms: int
    members: int
    committed: Mapping[TopicPartition, int]
    pause: GroupPause
    rate: RateMeter
    idle_since_ms: int | None = None


class ClusterView:
    """The poller's memory of one cluster."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.topics: Mapping[str, TopicDescription] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.sizes: Mapping[TopicPartition, int] = {}
        self.brokers: Sequence[BrokerDescription] = ()
        self.disks: Mapping[int, tuple[DiskRow, ...]] = {}
        self.states: Mapping[str, str] = {}
        """Of groups."""
        self.readings: dict[str, GroupReading] = {}
        self.databases: tuple[DatabaseServerRow, ...] = ()
        self.late_timers: dict[str, int] = {}
        self.problems: list[str] = []
        """Parts of the last round that failed."""
        self._rates: dict[str, RateMeter] = {}
        self._next_topic = ""
        self._next_timers = ""

    def topics_to_read(self, most_partitions: int) -> list[TopicDescription]:
        """The topics whose ends this round reads: all, or as many as fit, going on where the last round ended."""
        names = sorted(self.topics)
        later = [name for name in names if name >= self._next_topic]
        chosen: list[TopicDescription] = []
        count = 0
        for name in [*later, *names[: len(names) - len(later)]]:
            topic = self.topics[name]
            if chosen and count + len(topic.partitions) > most_partitions:
                self._next_topic = name
                return chosen
            chosen.append(topic)
            count += len(topic.partitions)
        self._next_topic = ""
        return chosen

    def groups_to_read(self, most: int) -> list[str]:
        """New groups first, then the groups that the poller read longest ago."""
        oldest = sorted(self.states, key=lambda name: (self._read_ms(name), name))
        return oldest[:most]

    def timer_topics_to_read(self, prefixes: Sequence[str], most: int) -> list[str]:
        """Topics whose delayed messages are looked at in this round: those that begin with a prefix, in turns."""
        names = sorted(
            name for name, topic in self.topics.items() if not topic.is_internal and name.startswith(tuple(prefixes))
        )
        for name in self.late_timers.keys() - set(names):
            del self.late_timers[name]
        later = [name for name in names if name >= self._next_timers]
        chosen = [*later, *names[: len(names) - len(later)]][:most]
        self._next_timers = f"{chosen[-1]}\0" if chosen else ""
        return chosen

    def take_topics(self, found: Iterable[TopicDescription]) -> None:
        self.topics = {topic.name: topic for topic in found}
        for held in (self.ends, self.starts):
            for at in [each for each in held if self._is_gone(each)]:
                del held[at]
        for name in [name for name in self._rates if name not in self.topics]:
            del self._rates[name]

    def take_ends(self, topics: Iterable[TopicDescription], found: Mapping[TopicPartition, int], at_ms: float) -> None:
        self.ends.update(found)
        for topic in topics:
            total = sum(self.ends.get(at, 0) for at in topic.topic_partitions)
            self._rates.setdefault(topic.name, RateMeter()).read(at_ms, total)

    def take_states(self, states: Mapping[str, str]) -> None:
        self.states = states
        for name in [name for name in self.readings if name not in states]:
            del self.readings[name]

    def take_group(
        self, name: str, at_ms: int, members: int, committed: Mapping[TopicPartition, int], pause: GroupPause
    ) -> None:
        before = self.readings.get(name)
        rate = RateMeter() if before is None else before.rate
        rate.read(at_ms, sum(committed.values()))
        was_idle = before is not None and before.idle_since_ms is not None and before.committed == committed
        idle_since_ms = None if members else before.idle_since_ms if before is not None and was_idle else at_ms
        self.readings[name] = GroupReading(at_ms, members, committed, pause, rate, idle_since_ms)

    def snapshot(self, round: int, at_ms: int, took_ms: int) -> ClusterSnapshot:
        groups = {name: self._group(name, state) for name, state in sorted(self.states.items())}
        readers: dict[str, list[int]] = {}
        for group in groups.values():
            for name, lag in group.lag_by_topic.items():
                readers.setdefault(name, []).append(lag)
        partitions = {name: self._partitions(topic) for name, topic in self.topics.items()}
        topics = {
            name: self._topic(topic, partitions[name], readers.get(name, [])) for name, topic in self.topics.items()
        }
        brokers = tuple(self._broker(broker, partitions) for broker in self.brokers)
        rates = [
            topic.rate_per_s for topic in topics.values() if topic.rate_per_s is not None and not topic.is_internal
        ]
        return ClusterSnapshot(
            cluster=self.cluster,
            round=round,
            at_ms=at_ms,
            is_reachable=True,
            problem="; ".join(self.problems),
            topics=topics,
            groups=groups,
            brokers=brokers,
            partitions=partitions,
            findings=tuple(findings_of(topics, groups, brokers, self.databases)),
            rate_per_s=sum(rates) if rates else None,
            took_ms=took_ms,
            databases=self.databases,
            late_timers=dict(self.late_timers),
        )

    def _topic(self, topic: TopicDescription, rows: Sequence[PartitionRow], lags: Sequence[int]) -> TopicRow:
        known = [row.end - row.start for row in rows if row.end is not None and row.start is not None]
        sizes = [row.size_bytes for row in rows if row.size_bytes is not None]
        meter = self._rates.get(topic.name)
        return TopicRow(
            name=topic.name,
            is_internal=topic.is_internal,
            partition_count=len(rows),
            replication_factor=topic.replication_factor,
            under_replicated=sum(row.is_under_replicated for row in rows),
            offline=sum(row.is_offline for row in rows),
            messages=sum(known) if known else None,
            end_total=sum(row.end or 0 for row in rows),
            rate_per_s=None if meter is None else meter.per_s,
            size_bytes=sum(sizes) if sizes else None,
            group_count=len(lags),
            lag=sum(lags),
        )

    def _partitions(self, topic: TopicDescription) -> tuple[PartitionRow, ...]:
        rows = []
        for each in topic.partitions:
            at = TopicPartition(topic.name, each.index)
            start, end, size = self.starts.get(at), self.ends.get(at), self.sizes.get(at)
            rows.append(
                PartitionRow(each.index, each.leader, each.replicas, each.isr, each.offline_replicas, start, end, size)
            )
        return tuple(rows)

    def _group(self, name: str, state: str) -> GroupRow:
        reading = self.readings.get(name)
        if reading is None:
            return GroupRow(name, state, None, (), None, None, None, "", None)
        lags: dict[str, int] = {}
        for at, offset in reading.committed.items():
            if at in self.ends:
                lags[at.topic] = lags.get(at.topic, 0) + max(0, self.ends[at] - offset)
        topics = tuple(sorted({at.topic for at in reading.committed}))
        lag = sum(lags.values())
        rate = reading.rate.per_s
        arriving = sum((meter.per_s or 0) for name in topics if (meter := self._rates.get(name)) is not None)
        gaining = (rate or 0) - arriving
        eta_s = 0.0 if lag == 0 else lag / gaining if gaining > 0 else None
        paused = "all" if reading.pause.is_all else ",".join(reading.pause.topics)
        return GroupRow(
            name=name,
            state=state,
            members=reading.members,
            topics=topics,
            lag=lag,
            rate_per_s=rate,
            eta_s=eta_s,
            paused=paused,
            read_ms=reading.read_ms,
            lag_by_topic=lags,
            idle_since_ms=reading.idle_since_ms,
        )

    def _broker(self, broker: BrokerDescription, partitions: Mapping[str, Sequence[PartitionRow]]) -> BrokerRow:
        rate = 0.0
        for topic in {replica.topic for replica in broker.replicas if replica.is_leader}:
            meter, rows = self._rates.get(topic), partitions.get(topic, ())
            if meter is not None and meter.per_s and rows:
                rate += meter.per_s * sum(row.leader == broker.id for row in rows) / len(rows)
        return BrokerRow(
            id=broker.id,
            state=broker.state.value,
            address=broker.address,
            rack=broker.rack,
            is_controller=broker.is_controller,
            replicas=len(broker.replicas),
            leaders=broker.leader_count,
            out_of_sync=sum(not replica.is_in_sync for replica in broker.replicas),
            rate_per_s=rate,
            disks=self.disks.get(broker.id, ()),
        )

    def _read_ms(self, name: str) -> int:
        reading = self.readings.get(name)
        return 0 if reading is None else reading.read_ms

    def _is_gone(self, at: TopicPartition) -> bool:
        topic = self.topics.get(at.topic)
        return topic is None or at.partition >= len(topic.partitions)


def findings_of(
    topics: Mapping[str, TopicRow],
    groups: Mapping[str, GroupRow],
    brokers: Sequence[BrokerRow],
    databases: Sequence[DatabaseServerRow] = (),
) -> list[Finding]:
    """What needs attention first."""
    found: list[Finding] = []
    for each in databases:
        if each.state == "down":
            text = f"database {each.server} does not answer: {each.problem}"
            found.append(Finding(Severity.ERROR if each.is_primary else Severity.WARNING, "database", each.group, text))
        elif each.is_primary and each.state == "read-only":
            text = f"database {each.server} is the primary and takes no writes"
            found.append(Finding(Severity.ERROR, "database", each.group, text))
        elif (each.lag_ms or 0) > LONG_DATABASE_LAG_MS:
            text = f"database {each.server} is {(each.lag_ms or 0) // 1000} s behind its primary"
            found.append(Finding(Severity.WARNING, "database", each.group, text))
    for broker in brokers:
        if broker.state in (BrokerState.AWAY.value, BrokerState.SILENT.value):
            text = f"broker {broker.id} is {broker.state}; {broker.replicas} replicas wait for it"
            found.append(Finding(Severity.ERROR, "broker", str(broker.id), text))
        elif broker.state == BrokerState.DRAINING.value and broker.replicas:
            text = f"broker {broker.id} is being drained; {broker.replicas} replicas are left"
            found.append(Finding(Severity.NOTICE, "broker", str(broker.id), text))
    for topic in topics.values():
        if topic.offline:
            text = f"{topic.offline} of {topic.partition_count} partitions have no leader"
            found.append(Finding(Severity.ERROR, "topic", topic.name, text))
        elif topic.under_replicated:
            text = f"{topic.under_replicated} of {topic.partition_count} partitions are under-replicated"
            found.append(Finding(Severity.WARNING, "topic", topic.name, text))
    for group in groups.values():
        if group.lag and not group.members and group.members is not None:
            text = f"{group.lag:,} messages wait and no consumer is active"
            found.append(Finding(Severity.WARNING, "group", group.name, text))
        if group.paused:
            text = "paused" if group.paused == "all" else f"paused for {group.paused}"
            found.append(Finding(Severity.NOTICE, "group", group.name, text))
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))[:_MOST_FINDINGS]
