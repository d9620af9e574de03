"""The metadata image: everything the cluster knows, as one immutable value.

A new image replaces the old one at every change; whoever holds an image holds a consistent picture for as
long as it likes. `version` rises with every image and is what answers made from one are cached by; it counts
from the start of the process and means nothing to another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from penstock.config.view import VIEW_OF_SETTING
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
    away_since_ms: int | None = None
    """When a controller found it gone, in wall time; None while it is alive, and until that is noted."""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition: who leads it and who has all of it."""

    index: int
    leader: BrokerId
    leader_epoch: int
    # The first replica is the preferred leader.
    replicas: tuple[BrokerId, ...]
    in_sync: tuple[BrokerId, ...]
    # While the partition moves: which of the replicas are new, and which will go.
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas as they shall be: those of the end of a move that is under way."""
        return (
            tuple(broker for broker in self.replicas if broker not in self.removing) if self.removing else self.replicas
        )


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
        return len(self.partitions[0].target) if self.partitions else 0

    @property
    def view_of(self) -> str | None:
        """The topic that this one is a view of: it has no partitions of its own then."""
        return self.overrides.get(VIEW_OF_SETTING)


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster at one moment."""

    # That of the coordination tree's clock: the same on all brokers.
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
    # Rises with every election of a controller.
    controller_epoch: int = 0

    def settings_of(self, broker: BrokerId) -> Mapping[str, str]:
        """The dynamic settings in force on one broker."""
        own = self.settings_by_broker.get(broker)
        return {**self.broker_settings, **own} if own else self.broker_settings

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        name = self.topic_names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def seen(self, name: str) -> TopicImage | None:
        """The topic as clients see it: a view has the partitions of the topic that it looks at."""
        topic = self.topics.get(name)
        if topic is None or topic.view_of is None:
            return topic
        base = self.topics.get(topic.view_of)
        return topic if base is None else replace(topic, partitions=base.partitions)

    @property
    def alive(self) -> frozenset[BrokerId]:
        return frozenset(broker.id for broker in self.brokers.values() if broker.is_alive)

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())
