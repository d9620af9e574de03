"""The metadata image: everything the cluster knows, as one immutable value.

Every change makes a new image, so code that holds an image has a consistent picture. `version` is that of the
coordination tree's clock, the same on all brokers, and the key by which responses made from an image are cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.config.address import Address
from penstock.config.listeners import PLAINTEXT
from penstock.config.security import SecurityProtocol
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING
from penstock.config.view import VIEW_OF_SETTING
from penstock.ids import BrokerId, TopicId
from penstock.security.acls import AclEntry, ResourcePattern
from penstock.security.quota_entity import QuotaEntity
from penstock.security.quota_keys import QuotaLimits
from penstock.security.users import UserCredentials

# Topics that brokers write to themselves; Kafka's names, because consoles hide topics by them.
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})


DEFAULT_DATABASE = "default"
"""The group of the database in `sql.url`: it is always there, and not in the metadata."""

NO_LEADER = BrokerId(-1)
"""The leader of a partition none of whose in-sync replicas is alive; Kafka's number for it."""


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


class ListenerEndpoint(NamedTuple):
    """Where others reach one listener of a broker."""

    listener: str
    host: str
    port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One broker, and where clients and other brokers reach it."""

    id: BrokerId
    # The endpoint of its first listener. Brokers of versions without named listeners register, and read, this alone.
    host: str
    port: int
    rack: str | None = None
    is_alive: bool = True
    epoch: int = 0
    """Rises with every start of the broker."""
    away_since_ms: int | None = None
    """When a controller found it gone, in wall time; None while it is alive, and until that is noted."""
    endpoints: tuple[ListenerEndpoint, ...] = ()
    """All its listeners, the first one first; none in the registration of an older version."""
    inter_broker_listener: str | None = None
    """The listener that other brokers use; None if it is alone, or of an older version."""
    has_shared_storage: bool = False
    """Whether it reaches the storage that brokers share, and can lead what is in it."""
    database_key: str = ""
    """The fingerprint of its key to the passwords of database groups. Without a key it leads only what is in the
    default one.
    """

    @property
    def has_database_key(self) -> bool:
        return bool(self.database_key)

    def endpoint(self, listener: str) -> Address | None:
        """Where others reach it through the listener of this name; None if it has none."""
        if not self.endpoints:
            return Address(self.host, self.port)
        for name, host, port, _ in self.endpoints:
            if name == listener:
                return Address(host, port)
        return None

    @property
    def inter_broker_endpoint(self) -> ListenerEndpoint:
        """Where, and how, other brokers reach it."""
        for endpoint in self.endpoints:
            if endpoint.listener == self.inter_broker_listener:
                return endpoint
        return ListenerEndpoint(PLAINTEXT, self.host, self.port)


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """One database server of a group."""

    address: str
    """Its text form with options and without the password."""
    secret: str = field(default="", repr=False)
    """The password, encrypted; empty if there is none."""


@dataclass(frozen=True, slots=True)
class DatabaseGroupInfo:
    """A primary and its replicas, which the database keeps equal. See `docs/internals/database-groups.md`."""

    name: str
    servers: tuple[DatabaseServer, ...]
    primary: int = 0
    """The place in `servers` of the one that takes writes."""
    generation: int = 0
    """How often another server has become the primary."""
    is_draining: bool = False
    """Whether its partitions are to be moved to other groups."""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition: its replicas, its leader, and the replicas that are in sync."""

    index: int
    leader: BrokerId
    leader_epoch: int
    # The first replica is the preferred leader.
    replicas: tuple[BrokerId, ...]
    in_sync: tuple[BrokerId, ...]
    # While the partition moves: which of the replicas are new, and which will go.
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    database: str = DEFAULT_DATABASE
    """In shared storage: the database group that has its records."""
    database_to: str | None = None
    """The group that its records are being moved to."""

    @property
    def needs_database_key(self) -> bool:
        """Whether only a broker with the key to passwords of database groups can lead it."""
        return self.database != DEFAULT_DATABASE or self.database_to not in (None, DEFAULT_DATABASE)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas as they shall be: those of the end of a move that is under way."""
        return (
            tuple(broker for broker in self.replicas if broker not in self.removing) if self.removing else self.replicas
        )

    def handed_to(self, broker: BrokerId) -> PartitionImage:
        """The partition in shared storage, led by another broker: nothing has to be copied."""
        return replace(self, leader=broker, leader_epoch=self.leader_epoch + 1, replicas=(broker,), in_sync=(broker,))


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
    def is_shared(self) -> bool:
        """Whether it is in storage that all brokers reach: each partition is on the broker that leads it alone."""
        return self.overrides.get(STORAGE_SETTING) == SHARED_STORAGE

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
    # Database groups by name, without the default one.
    databases: Mapping[str, DatabaseGroupInfo] = field(default_factory=_nothing)
    # Access control lists by what they are about. Untouched, it stays the same object from image to image.
    acls: Mapping[ResourcePattern, tuple[AclEntry, ...]] = field(default_factory=_nothing)
    # What clients are limited to, on each broker; an entity without limits is not in here. Untouched, it
    # stays the same object from image to image.
    quotas: Mapping[QuotaEntity, QuotaLimits] = field(default_factory=_nothing)
    # Users with passwords, by name.
    users: UserCredentials = field(default_factory=_nothing)
    # What the answers to logins of unknown users are made from.
    login_secret: bytes = field(default=b"", repr=False)
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
