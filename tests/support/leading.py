"""Partitions that lead, alone: what a broker without followers makes of a log."""

from __future__ import annotations

from math import inf

from penstock.clock import ManualClock
from penstock.cluster.metadata import PartitionImage
from penstock.ids import BrokerId
from penstock.replication.delayed_records import NO_DELAYS, DelayedRecords
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.storage.contract import Log

ME = BrokerId(1)
LAG_RULES = LagRules(max_ms=10_000, max_messages=0)


def for_ever() -> LeaderLease:
    """A lease that does not end."""
    return LeaderLease(ManualClock(), lambda: inf, 1_000)


def leading(log: Log, epoch: int = 0, delayed_records: DelayedRecords = NO_DELAYS) -> Partition:
    partition = Partition(log, for_ever(), delayed_records=delayed_records)
    image = PartitionImage(log.topic_partition.partition, ME, epoch, (ME,), (ME,))
    partition.lead(ME, image, frozenset({ME}), LAG_RULES)
    return partition
