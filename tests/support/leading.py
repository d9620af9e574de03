"""Partitions that lead, alone: what a broker without followers makes of a log."""

from __future__ import annotations

from math import inf

from penstock.clock import ManualClock
from penstock.cluster.metadata import PartitionImage
from penstock.ids import BrokerId
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.replication.tenure import Tenure
from penstock.storage.contract import Log

ME = BrokerId(1)
LAG_RULES = LagRules(max_ms=10_000, max_messages=0)


def for_ever() -> Tenure:
    """The tenure of a broker whose lease does not end."""
    return Tenure(ManualClock(), lambda: inf, 1_000)


def leading(log: Log, epoch: int = 0) -> Partition:
    partition = Partition(log, for_ever())
    image = PartitionImage(log.topic_partition.partition, ME, epoch, (ME,), (ME,))
    partition.lead(ME, image, frozenset({ME}), LAG_RULES)
    return partition
