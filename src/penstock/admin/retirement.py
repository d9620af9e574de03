"""Retiring partitions: a topic's last partitions take no new records, and go once they are read and expired.

The client chooses the successor of each retired partition and writes the pairs into a setting of the topic; the broker
checks them (`docs/retiring.md`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from penstock.admin.configs import ConfigChange, ConfigOperations, ConfigResource
from penstock.admin.errors import AdminError
from penstock.admin.groups import GroupOperations
from penstock.admin.topics import PartitionDescription, TopicOperations
from penstock.config.retired import RETIRED_SETTING, check_tail, parse_retired, spell_retired
from penstock.errors import Code, ConfigError
from penstock.ids import TopicPartition

Successors = Mapping[int, int]
"""The successor of each retired partition."""


@dataclass(frozen=True, slots=True)
class RetiredPartitions:
    """The retired partitions of a topic."""

    topic: str
    successors: Successors
    """Those that are gone included: producers with old metadata still send to them."""
    unread_by: Mapping[int, tuple[str, ...]]
    """For each retired partition that still exists: the groups that have records left to read in it."""


class RetirementOperations:
    """Operations on retired partitions."""

    def __init__(self, topics: TopicOperations, configs: ConfigOperations, groups: GroupOperations) -> None:
        self._topics = topics
        self._configs = configs
        self._groups = groups

    def describe(self, topic: str) -> RetiredPartitions:
        """Which partitions are retired, who takes their place, and which groups they are kept for."""
        known = {partition.index for partition in self._topics.describe([topic])[topic].partitions}
        successors = self._successors(topic)
        retired = [TopicPartition(topic, index) for index in successors if index in known]
        unread = self._groups.unread_by(retired) if retired else {}
        return RetiredPartitions(topic, successors, {at.partition: groups for at, groups in unread.items()})

    def retire(self, topic: str, partitions: Collection[int], *, validate_only: bool = False) -> Successors:
        """Retires partitions, which have to be the topic's last; gives the successors of all that are retired."""
        described = self._topics.describe([topic])[topic]
        try:
            successors = choose_successors(described.partitions, self._successors(topic), partitions)
        except ConfigError as error:
            raise AdminError(Code.INVALID_PARTITIONS.name, str(error)) from None
        resource = ConfigResource.topic(topic)
        change = ConfigChange.set(RETIRED_SETTING, spell_retired(successors))
        self._configs.alter({resource: [change]}, validate_only=validate_only).all()
        return successors

    def _successors(self, topic: str) -> Successors:
        resource = ConfigResource.topic(topic)
        entry = self._configs.describe([resource])[resource].get(RETIRED_SETTING)
        return parse_retired(entry.value.split(",")) if entry is not None and entry.value else {}


def choose_successors(
    partitions: Sequence[PartitionDescription], before: Successors, wanted: Collection[int]
) -> Successors:
    """The successors of a topic when the wanted partitions are retired too; ConfigError if they cannot be.

    The best successor has the same leader as the retired partition, and the same replicas: then nothing has to move.
    Among equals, it is the partition that succeeds the fewest others.
    """
    count = len(partitions)
    retired = {index: successor for index, successor in before.items() if index < count}
    _check_wanted(count, retired, wanted)
    active = [index for index in range(count) if index not in wanted and index not in retired]

    def cost(index: int, successor: int) -> tuple[bool, bool, int, int]:
        old, new = partitions[index], partitions[successor]
        taken_over = sum(each == successor for each in retired.values())
        return old.leader != new.leader, set(old.replicas) != set(new.replicas), taken_over, successor

    for index in sorted(set(wanted) - retired.keys()):
        retired[index] = min(active, key=lambda successor: cost(index, successor))
    gone = {index: successor for index, successor in before.items() if index >= count}
    # The successor of a partition that is gone may be retired now; then its own successor takes over.
    return MappingProxyType(retired | {index: retired.get(successor, successor) for index, successor in gone.items()})


def _check_wanted(count: int, retired: Successors, wanted: Collection[int]) -> None:
    for index in wanted:
        if not 0 <= index < count:
            raise ConfigError(f"there is no partition {index}: the last is {count - 1}")
        if index in retired.values():
            others = ", ".join(str(each) for each, successor in sorted(retired.items()) if successor == index)
            raise ConfigError(f"partition {index} is the successor of {others}, which is not gone yet")
    check_tail(count, {*retired, *wanted})
