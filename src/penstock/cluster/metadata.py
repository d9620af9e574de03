"""The metadata image: everything the cluster knows, as one immutable value.

A new image replaces the old one at every change; whoever holds an image holds a consistent picture for as
long as it likes. `version` rises with every image and is what answers made from one are cached by; it counts
from the start of the process and means nothing to another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.ids import BrokerId, TopicId

# Topics that brokers write to themselves; Kafka's names, because consoles hide topics by them.
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})


NO_LEADER = BrokerId(-1)
"""Nobody who is in sync is alive; Kafka's number for it."""


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One broker and the address that clients are told."""

    id: BrokerId
    host: str
    port: int
    rack: str | None = None
    is_alive: bool = True
    epoch: int = 0
    """Rises with every start of the broker."""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition: who leads it and who has all of it."""

    index: int
    leader: BrokerId
    leader_epoch: int
    # The first replica is the preferred leader.
    replicas: tuple[BrokerId, ...]
    in_sync: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic; `partitions[i].index == i`."""

    name: str
    id: TopicId
    partitions: tuple[PartitionImage, ...]
    # Topic settings exactly as they were given; what is not here follows the broker's default.
    overrides: Mapping[str, str] = field(default_factory=_nothing)
    is_internal: bool = False

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster at one moment."""

    version: int
    cluster_id: str
    brokers: Mapping[BrokerId, BrokerInfo]
    controller: BrokerId
    topics: Mapping[str, TopicImage]
    topic_names_by_id: Mapping[TopicId, str]
    # Dynamic settings that hold for every broker (Kafka's cluster-wide default).
    broker_settings: Mapping[str, str] = field(default_factory=_nothing)
    # Dynamic settings of single brokers; they win over the above.
    settings_by_broker: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=_nothing)
    # Settings of groups, whether they exist or not; one without settings is not in here.
    settings_by_group: Mapping[str, Mapping[str, str]] = field(default_factory=_nothing)

    def settings_of(self, broker: BrokerId) -> Mapping[str, str]:
        """The dynamic settings in force on one broker."""
        own = self.settings_by_broker.get(broker)
        return {**self.broker_settings, **own} if own else self.broker_settings

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        name = self.topic_names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())
