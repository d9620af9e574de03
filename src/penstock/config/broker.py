"""A broker's settings, one frozen dataclass a section.

Rules:
- Every field carries its meaning and its bounds; the loader and the command line read them from here.
- Units stand last in the name: `_bytes`, `_ms`.
- Everything that grows with what clients do has a bound in `Limits` or `LogSettings`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.config.address import Address, parse_address
from penstock.config.cluster import ClusterSettings
from penstock.config.listeners import (
    INTER_BROKER,
    ListenerSettings,
    NamedAddresses,
    parse_advertised,
    parse_listen,
    parse_listener_name,
    resolve_listeners,
)
from penstock.config.quotas import QuotaSettings
from penstock.config.security import SecuritySettings
from penstock.config.setting import INT_MAX, Kind, Setting, meaning
from penstock.config.sql import SqlSettings


def _path(text: str) -> Path:
    if not text:
        raise ValueError("a folder")
    return Path(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """[broker]: the number, addresses and data folder of this broker."""

    id: int = field(
        default=1,
        metadata=meaning("Number of this broker; clients see it as the node id.", low=0, high=INT_MAX),
    )
    listen: NamedAddresses = field(
        default=parse_listen("127.0.0.1:9092"),
        metadata=meaning(
            "HOST:PORT on which Kafka clients are served, or several listeners as NAME://HOST:PORT,NAME://HOST:PORT; "
            "port 0 takes a free one.",
            make=parse_listen,
        ),
    )
    advertised: NamedAddresses | None = field(
        default=None,
        metadata=meaning(
            "HOST:PORT, or NAME://HOST:PORT for each listener, that clients and other brokers connect to; "
            "empty means what listen has.",
            make=parse_advertised,
        ),
    )
    inter_broker_listener: str = field(
        default=INTER_BROKER,
        metadata=meaning(
            "Name of the listener that brokers of a cluster use among themselves; one named INTER_BROKER is opened on "
            "a free port if listen does not have it.",
            make=parse_listener_name,
        ),
    )
    http: Address = field(
        default=Address("127.0.0.1", 8092),
        metadata=meaning(
            "HOST:PORT on which health and metrics are served; port 0 takes a free one.", make=parse_address
        ),
    )
    data: Path = field(
        default=Path("data"), metadata=meaning("Folder for everything that the broker stores.", make=_path)
    )
    auto_create_topics: bool = field(
        default=True,
        metadata=meaning("Whether the broker creates a missing topic that a client asks for, if the client allows it."),
    )
    default_partitions: int = field(
        default=1,
        metadata=meaning("Partitions of a topic that is created without a number of partitions.", high=INT_MAX),
    )
    default_replication_factor: int = field(
        default=1, metadata=meaning("Replicas of a topic that is created without a replication factor.", high=2**15 - 1)
    )
    delete_topics: bool = field(default=True, metadata=meaning("Whether clients may delete topics."))
    rack: str | None = field(default=None, metadata=meaning("Rack or zone of this broker; empty for none."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """[limits]: bounds on what clients can make the broker hold."""

    frame_bytes: int = field(
        default=104_857_600,
        metadata=meaning("Largest request, in bytes; a longer one closes the connection.", low=1024, high=INT_MAX),
    )
    connections: int = field(default=10_000, metadata=meaning("Open connections of each listener."))
    connections_per_host: int = field(
        default=10_000, metadata=meaning("Open connections of each listener from one address.")
    )
    login_frame_bytes: int = field(
        default=65_536,
        metadata=meaning("Largest request of a client that has not logged in yet, in bytes.", low=1024, high=INT_MAX),
    )
    login_ms: int = field(
        default=10_000, metadata=meaning("Milliseconds that a client of a SASL listener has to log in.", low=100)
    )
    logins_per_host: int = field(
        default=200,
        metadata=meaning("Connections from one address that have not logged in yet, over all SASL listeners."),
    )
    failed_login_hosts: int = field(
        default=10_000,
        metadata=meaning("Addresses whose failed logins are remembered; the one remembered longest is forgotten."),
    )
    users: int = field(default=10_000, metadata=meaning("Users with passwords in the cluster."))
    tls_handshakes: int = field(
        default=64, metadata=meaning("TLS handshakes in progress on each listener; other connections wait.")
    )
    tls_handshakes_per_host: int = field(
        default=16,
        metadata=meaning("TLS handshakes in progress on each listener from one address; other connections wait."),
    )
    other_request_bytes: int = field(
        default=8_388_608,
        metadata=meaning(
            "Largest request other than Produce, in bytes; decoded it takes many times its size.",
            low=1024,
            high=INT_MAX,
        ),
    )
    in_flight_requests: int = field(
        default=10_000,
        metadata=meaning(
            "Requests in progress over all connections, parked fetches apart; a connection has one at a time, beside "
            "Produce requests whose records are written and not safe yet."
        ),
    )
    unacknowledged_requests: int = field(
        default=16,
        metadata=meaning(
            "Produce requests of one connection whose records are written and wait for a sync, a database or "
            "followers; the next one waits. While more than half of limits.in_flight_requests are in progress, a "
            "connection has one at a time."
        ),
    )
    in_flight_bytes: int = field(
        default=268_435_456,
        metadata=meaning("Bytes of unanswered requests, over all connections.", low=1024),
    )
    parked_fetches: int = field(default=20_000, metadata=meaning("Parked fetches; one more is answered empty."))
    open_files: int = field(default=4096, metadata=meaning("Open segment files.", low=16))
    partitions_per_topic: int = field(default=10_000, metadata=meaning("Partitions of one topic.", high=INT_MAX))
    partitions: int = field(default=100_000, metadata=meaning("Partitions of all topics together.", high=INT_MAX))
    producers_per_partition: int = field(
        default=10_000,
        metadata=meaning("Idempotent producers remembered by one partition; the one silent for longest is forgotten."),
    )
    idle_connection_ms: int = field(
        default=600_000, metadata=meaning("Milliseconds after which an idle connection is closed.")
    )
    fetch_bytes: int = field(
        default=57_671_680,
        metadata=meaning("Largest Fetch response, in bytes, whatever the client asks for.", low=1024, high=INT_MAX),
    )
    request_entries: int = field(
        default=100_000,
        metadata=meaning(
            "Topics, partitions, groups and other entries that one request may name, over all its lists; a request "
            "with more closes the connection.",
            low=1000,
            high=INT_MAX,
        ),
    )
    in_flight_entries: int = field(
        default=500_000,
        metadata=meaning(
            "Entries of requests larger than 16 KiB that are being handled, over all connections; further requests "
            "wait.",
            low=1000,
        ),
    )
    answer_entries: int = field(
        default=400_000,
        metadata=meaning("Entries that one answer may list; one that would have more closes the connection.", low=1000),
    )
    long_answers: int = field(
        default=2, metadata=meaning("Answers of more than 1000 entries that are being made at once; others wait.")
    )
    unpacked_batch_bytes: int = field(
        default=67_108_864,
        metadata=meaning(
            "Bytes that the records of one produced batch may take when they are decompressed.", low=1024, high=INT_MAX
        ),
    )
    inspected_records: int = field(
        default=100_000,
        metadata=meaning(
            "Records of one produced batch that may have to be looked at one by one: for their keys, for delays, or "
            "to be stored in a database."
        ),
    )
    topic_wait_ms: int = field(
        default=5_000,
        metadata=meaning(
            "Milliseconds that a Metadata request for a topic by name, or a change of settings, waits for what this "
            "broker still has to make or change; Metadata then says that the topic has no leader yet.",
            low=0,
        ),
    )
    topics_per_request: int = field(default=10_000, metadata=meaning("Topics that one request may name."))
    views_per_topic: int = field(default=1000, metadata=meaning("Views of one topic."))
    acls: int = field(default=20_000, metadata=meaning("Access control lists of the cluster.", high=INT_MAX))
    kept_decisions: int = field(
        default=100_000,
        metadata=meaning("Answers of the authorizer that are kept for the next time; beyond it, all are forgotten."),
    )
    partition_series: int = field(
        default=2000,
        metadata=meaning("Partitions of a broker that have series of their own on /metrics.", low=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """[log]: how the logs on disk are looked after."""

    retention_check_ms: int = field(default=300_000, metadata=meaning("Milliseconds between two retention runs."))
    compaction_check_ms: int = field(default=15_000, metadata=meaning("Milliseconds between two compaction runs."))
    checkpoint_ms: int = field(
        default=60_000,
        metadata=meaning("Milliseconds between two checkpoints of how far each log is on disk."),
    )
    recovery_bytes: int = field(
        default=67_108_864,
        metadata=meaning("Bytes of a log between two snapshots that recovery can start from.", low=1),
    )
    flush_threads: int = field(default=2, metadata=meaning("Threads that force logs to disk.", high=256))
    read_threads: int = field(default=4, metadata=meaning("Threads that read what is not in the page cache.", high=256))
    unflushed_bytes: int = field(
        default=0,
        metadata=meaning(
            "Bytes of all logs not yet on disk at which producers have to wait; 0 derives it from the memory size.",
            low=0,
        ),
    )
    producer_expiry_ms: int = field(
        default=86_400_000,
        metadata=meaning("Milliseconds of silence after which an idempotent producer is forgotten."),
    )
    compaction_memory_bytes: int = field(
        default=134_217_728,
        metadata=meaning("Bytes for the table of keys while a log is compacted.", low=1_048_576),
    )
    tag_index_bytes: int = field(
        default=67_108_864,
        metadata=meaning("Bytes of memory for the tag indexes of all logs.", low=1_048_576),
    )
    stray_keep_ms: int = field(
        default=600_000,
        metadata=meaning(
            "Milliseconds after its start that a broker of a cluster keeps logs that the cluster has not placed on it.",
            low=0,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """[groups]: consumer groups and their offsets."""

    offsets_partitions: int = field(
        default=16,
        metadata=meaning("Partitions of the internal topic that holds groups and offsets.", high=INT_MAX),
    )
    initial_rebalance_delay_ms: int = field(
        default=500, metadata=meaning("Milliseconds that a group's first member waits for others.", low=0)
    )
    min_session_timeout_ms: int = field(
        default=6_000, metadata=meaning("Shortest session that a member may ask for.", high=INT_MAX)
    )
    max_session_timeout_ms: int = field(
        default=1_800_000, metadata=meaning("Longest session that a member may ask for.", high=INT_MAX)
    )
    consumer_session_timeout_ms: int = field(
        default=45_000,
        metadata=meaning(
            "Milliseconds without a heartbeat after which a member of the new protocol is removed.", high=INT_MAX
        ),
    )
    consumer_heartbeat_interval_ms: int = field(
        default=5_000,
        metadata=meaning("Milliseconds between two heartbeats of a member of the new protocol.", high=INT_MAX),
    )
    consumer_assignors: tuple[str, ...] = field(
        default=("uniform", "range"),
        metadata=meaning(
            "Assignors that members of the new protocol may ask for; the first is the default.",
            choices=("uniform", "range"),
        ),
    )
    subscription_pattern_length: int = field(
        default=512, metadata=meaning("Longest subscription pattern, in characters.")
    )
    max_members: int = field(default=10_000, metadata=meaning("Members of one group."))
    group_bytes: int = field(
        default=6_291_456,
        metadata=meaning(
            "Bytes of member metadata of one group, and bytes of an assignment by its leader.",
            low=1024,
            # Both go into one record, with the names of up to max_members.
            high=7_340_032,
        ),
    )
    groups_per_partition: int = field(
        default=20_000, metadata=meaning("Groups in one partition of the internal topic.")
    )
    offsets_per_group: int = field(default=100_000, metadata=meaning("Partitions that one group may have offsets in."))
    groups_with_settings: int = field(
        default=10_000, metadata=meaning("Groups that may have settings of their own, all partitions together.")
    )
    lag_series: int = field(default=10_000, metadata=meaning("Partitions of groups whose lag /metrics shows.", low=0))
    offset_metadata_bytes: int = field(
        default=4096, metadata=meaning("Characters of metadata that may be stored with a committed offset.", low=0)
    )
    offsets_retention_ms: int = field(
        default=604_800_000, metadata=meaning("Milliseconds that offsets outlive the last member of their group.")
    )
    offsets_check_ms: int = field(
        default=600_000, metadata=meaning("Milliseconds between two runs that remove expired offsets.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """[transactions]: producers that write several things in one piece."""

    state_partitions: int = field(
        default=16, metadata=meaning("Partitions of the internal topic that holds transactional ids.", high=INT_MAX)
    )
    max_timeout_ms: int = field(
        default=900_000, metadata=meaning("Longest transaction timeout that a producer may ask for.", high=INT_MAX)
    )
    id_expiry_ms: int = field(
        default=604_800_000,
        metadata=meaning("Milliseconds after which an unused transactional id is forgotten."),
    )
    marker_wait_ms: int = field(
        default=5_000,
        metadata=meaning(
            "Longest time, in milliseconds, that a request waits for the markers of a transaction.", low=0
        ),
    )
    ids_per_partition: int = field(
        default=100_000, metadata=meaning("Transactional ids in one partition of the internal topic.")
    )
    partitions_per_transaction: int = field(
        default=20_000, metadata=meaning("Partitions that one transaction may write to.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """[logging]: what the broker says on standard error."""

    level: str = field(
        default="info",
        metadata=meaning("Least severe level that is logged.", choices=("debug", "info", "warning", "error")),
    )
    format: str = field(
        default="text",
        metadata=meaning("text: one line per message; json: one JSON object per line.", choices=("text", "json")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a broker can be told.

    `topic` holds the defaults of new and existing topics that were set, in Kafka's spelling; what is absent
    has the default in `TOPIC_SETTINGS`.
    """

    broker: BrokerSettings = BrokerSettings()
    limits: Limits = Limits()
    log: LogSettings = LogSettings()
    groups: GroupSettings = GroupSettings()
    transactions: TransactionSettings = TransactionSettings()
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    sql: SqlSettings = field(default_factory=SqlSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    topic: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    logging: LoggingSettings = LoggingSettings()

    def listeners(self) -> tuple[ListenerSettings, ...]:
        """All listeners that the broker opens; raises ConfigError if the settings contradict each other."""
        broker = self.broker
        listeners = resolve_listeners(
            broker.listen,
            broker.advertised,
            broker.inter_broker_listener,
            self.security.protocols,
            in_cluster=self.in_cluster,
        )
        self.security.check(tuple(each.name for each in listeners))
        for each in listeners:
            if each.is_inter_broker:
                self.security.check_inter_broker(each.name)
        return listeners

    @property
    def in_cluster(self) -> bool:
        """Whether other brokers may share this broker's coordination tree."""
        return self.cluster.coordinator is not None or self.sql.is_set


Section = (
    BrokerSettings
    | Limits
    | LogSettings
    | GroupSettings
    | TransactionSettings
    | ClusterSettings
    | SqlSettings
    | SecuritySettings
    | QuotaSettings
    | LoggingSettings
)

SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        "broker": BrokerSettings,
        "limits": Limits,
        "log": LogSettings,
        "groups": GroupSettings,
        "transactions": TransactionSettings,
        "cluster": ClusterSettings,
        "sql": SqlSettings,
        "security": SecuritySettings,
        "quotas": QuotaSettings,
        "logging": LoggingSettings,
    }
)


def _setting(section: str, described: dataclasses.Field[Any]) -> Setting:
    """The setting behind a field; its kind is that of the default value."""
    meant = dict(described.metadata)
    kind = Kind.STRING
    if isinstance(described.default, bool):
        kind = Kind.BOOLEAN
    elif isinstance(described.default, int):
        kind = Kind.INT if meant["high"] <= INT_MAX else Kind.LONG
    elif type(described.default) is tuple:  # an address is a kind of tuple too
        kind = Kind.LIST
    if kind not in (Kind.INT, Kind.LONG):
        meant |= {"low": None, "high": None}
    return Setting(
        name=f"{section}.{described.name}",
        kind=kind,
        default=spelled(described.default),
        optional=described.default is None,
        **meant,
    )


def spelled(value: object) -> str:
    """A value as its setting's text: what `Setting.parse` reads back."""
    if value is None:
        return ""
    if type(value) is tuple:
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


# Every key of every section under its dotted name, such as limits.frame_bytes.
BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        f"{section}.{described.name}": _setting(section, described)
        for section, settings in SECTIONS.items()
        for described in dataclasses.fields(settings)
    }
)
