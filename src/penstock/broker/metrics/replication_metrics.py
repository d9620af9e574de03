"""Replication and the cluster on /metrics.

The scrape's thread counts what the metadata says of partitions (leaders, in-sync sets, moves): an image is immutable.
It does not count topics again that have not changed since the last scrape. The event loop reads, in slices, what only
leaders know of their followers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from penstock.broker.metrics.catalogue import (
    ACTIVE_CONTROLLER,
    BROKERS,
    FOLLOWER_LAG_MAX_RECORDS,
    FOLLOWER_LAG_RECORDS,
    ISR_EXPANDS,
    ISR_SHRINKS,
    LEADER_ELECTIONS,
    LEADER_PARTITIONS,
    OFFLINE_LOGS,
    OFFLINE_PARTITIONS,
    PARTITIONS,
    PREFERRED_REPLICA_IMBALANCE,
    REASSIGNING_PARTITIONS,
    TOPICS,
    UNCLEAN_LEADER_ELECTIONS,
    UNDER_MIN_ISR_PARTITIONS,
    UNDER_REPLICATED_PARTITIONS,
)
from penstock.broker.metrics.registry import Metrics, Sample
from penstock.cluster.decisions.settings import min_in_sync_replicas
from penstock.cluster.metadata import NO_LEADER, MetadataImage, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.ids import BrokerId
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas


class Tally(NamedTuple):
    """Partitions of a topic, or of all: those of the whole cluster, then those that one broker leads or holds."""

    offline: int = 0
    imbalanced: int = 0
    reassigning: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    placed: int = 0
    """With a replica on that broker."""


class PartitionCensus:
    """Counts the partitions of an image from the point of view of one broker."""

    def __init__(self, me: BrokerId) -> None:
        self._me = me
        self._known: Mapping[str, tuple[TopicImage, int, Tally]] = {}
        """By topic: the image it was counted in, its min.insync.replicas, and the result."""

    def take(self, image: MetadataImage, defaults: Mapping[str, str]) -> Tally:
        """`defaults` are those of topic settings, in topic names."""
        known, counted = self._known, {}
        for name, topic in image.topics.items():
            wanted = min_in_sync_replicas(topic, defaults)
            before = known.get(name)
            if before is None or before[0] is not topic or before[1] != wanted:
                before = topic, wanted, tally_of(topic, self._me, wanted)
            counted[name] = before
        self._known = counted
        return Tally(*map(sum, zip(*(found for _, _, found in counted.values()), strict=True))) if counted else Tally()


def tally_of(topic: TopicImage, me: BrokerId, min_in_sync: int) -> Tally:
    offline = imbalanced = reassigning = under_replicated = under_min_isr = placed = 0
    for partition in topic.partitions:
        leader, replicas, in_sync = partition.leader, partition.replicas, partition.in_sync
        offline += leader == NO_LEADER
        imbalanced += leader != replicas[0]
        reassigning += partition.is_moving
        placed += me in replicas
        if leader == me:
            # A replica that is being added is not missing yet.
            under_replicated += len(in_sync) < len(replicas) and any(
                broker not in in_sync and broker not in partition.adding for broker in replicas
            )
            # What is in shared storage is as safe as that is, however many brokers there are.
            under_min_isr += len(in_sync) < min_in_sync and not topic.is_shared
    return Tally(offline, imbalanced, reassigning, under_replicated, under_min_isr, placed)


class ReplicationReadings:
    """What a scrape reads."""

    def __init__(
        self,
        metadata: MetadataChanges,
        replicas: Replicas,
        topic_defaults: Callable[[MetadataImage], Mapping[str, str]],
        is_controller: Callable[[], bool],
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topic_defaults = topic_defaults
        self._is_controller = is_controller
        self._census = PartitionCensus(replicas.broker)
        self._held = 0
        self._failed = 0
        """Partitions that are here, and those whose log has failed, when they were last looked at."""

    def register(self, metrics: Metrics) -> None:
        counts = self._metadata.counts
        metrics.register(ACTIVE_CONTROLLER, lambda: int(self._is_controller()))
        metrics.register(PARTITIONS, lambda: self._replicas.count)
        metrics.register(ISR_SHRINKS, lambda: counts.isr_shrinks)
        metrics.register(ISR_EXPANDS, lambda: counts.isr_expands)
        metrics.register(LEADER_ELECTIONS, lambda: counts.leader_elections)
        metrics.register(UNCLEAN_LEADER_ELECTIONS, lambda: counts.unclean_leader_elections)
        metrics.register_source((LEADER_PARTITIONS, FOLLOWER_LAG_RECORDS, FOLLOWER_LAG_MAX_RECORDS), self._leaders)
        metrics.register_thread_source(
            (
                BROKERS,
                TOPICS,
                OFFLINE_PARTITIONS,
                PREFERRED_REPLICA_IMBALANCE,
                REASSIGNING_PARTITIONS,
                UNDER_REPLICATED_PARTITIONS,
                UNDER_MIN_ISR_PARTITIONS,
                OFFLINE_LOGS,
            ),
            self._cluster,
        )

    def _leaders(self) -> Iterator[Sample | None]:
        led = failed = held = 0
        lag: Counter[BrokerId] = Counter()
        largest: Counter[BrokerId] = Counter()
        for partition in list(self._replicas):
            held += 1
            failed += _has_failed(partition)
            leadership = partition.leadership
            if leadership is not None:
                led += 1
                if not leadership.is_only_replica:
                    for follower, behind in leadership.lags(partition.log.start_offset, partition.log.end_offset):
                        lag[follower] += behind
                        largest[follower] = max(largest[follower], behind)
            yield None
        self._held, self._failed = held, failed
        yield LEADER_PARTITIONS, (), led
        for follower, behind in sorted(lag.items()):
            yield FOLLOWER_LAG_RECORDS, (str(follower),), behind
            yield FOLLOWER_LAG_MAX_RECORDS, (str(follower),), largest[follower]

    def _cluster(self) -> Iterator[Sample]:
        """In a thread."""
        image = self._metadata.image
        found = self._census.take(image, self._topic_defaults(image))
        alive = len(image.alive)
        yield BROKERS, ("alive",), alive
        yield BROKERS, ("away",), len(image.brokers) - alive
        yield TOPICS, (), len(image.topics)
        yield OFFLINE_PARTITIONS, (), found.offline
        yield PREFERRED_REPLICA_IMBALANCE, (), found.imbalanced
        yield REASSIGNING_PARTITIONS, (), found.reassigning
        yield UNDER_REPLICATED_PARTITIONS, (), found.under_replicated
        yield UNDER_MIN_ISR_PARTITIONS, (), found.under_min_isr
        yield OFFLINE_LOGS, (), self._offline_logs(found.placed)

    def _offline_logs(self, placed: int) -> int:
        # What should be here and is not could not be opened, unless it is just being made.
        missing = max(0, placed - self._held) if self._replicas.is_settled else 0
        return self._failed + missing


def _has_failed(partition: Partition) -> bool:
    companion = partition.pair.companion
    return partition.log.failure is not None or (companion is not None and companion.failure is not None)
