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

from penstock.config.address import Address, parse_address, parse_public_address
from penstock.config.cluster import ClusterSettings
from penstock.config.setting import INT_MAX, Kind, Setting, meaning


def _path(text: str) -> Path:
    if not text:
        raise ValueError("a folder")
    return Path(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """[broker]: who this broker is and where it lives."""

    id: int = field(
        default=1,
        metadata=meaning("Number of this broker; clients see it as the node id.", low=0, high=INT_MAX),
    )
    listen: Address = field(
        default=Address("127.0.0.1", 9092),
        metadata=meaning("HOST:PORT on which Kafka clients are served; port 0 takes a free one.", make=parse_address),
    )
    advertised: Address | None = field(
        default=None,
        metadata=meaning(
            "HOST:PORT that clients are told to connect to; empty means the one in listen.",
            make=parse_public_address,
        ),
    )
    http: Address = field(
        default=Address("127.0.0.1", 8092),
        metadata=meaning(
            "HOST:PORT on which health and metrics are served; port 0 takes a free one.", make=parse_address
        ),
    )
    data: Path = field(
        default=Path("data"), metadata=meaning("Folder that holds everything the broker keeps.", make=_path)
    )
    auto_create_topics: bool = field(
        default=True,
        metadata=meaning("Whether a topic that a client asks for and allows to be created is created."),
    )
    default_partitions: int = field(
        default=1, metadata=meaning("Partitions of a topic created without saying how many.", high=INT_MAX)
    )
    default_replication_factor: int = field(
        default=1, metadata=meaning("Replicas of a topic created without saying how many.", high=2**15 - 1)
    )
    delete_topics: bool = field(default=True, metadata=meaning("Whether clients may delete topics."))
    rack: str | None = field(
        default=None, metadata=meaning("Name of the rack or zone this broker stands in; empty for none.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """[limits]: bounds on what clients can make the broker hold."""

    frame_bytes: int = field(
        default=104_857_600,
        metadata=meaning("Largest request, in bytes; a longer one closes the connection.", low=1024, high=INT_MAX),
    )
    connections: int = field(default=10_000, metadata=meaning("Connections served at once."))
    connections_per_host: int = field(default=10_000, metadata=meaning("Connections served at once from one address."))
    other_request_bytes: int = field(
        default=8_388_608,
        metadata=meaning(
            "Largest request other than Produce, in bytes: in memory it takes many times its size.",
            low=1024,
            high=INT_MAX,
        ),
    )
    in_flight_requests: int = field(
        default=10_000,
        metadata=meaning(
            "Requests being handled at once over all connections, parked fetches apart; a connection has one at a time."
        ),
    )
    in_flight_bytes: int = field(
        default=268_435_456,
        metadata=meaning("Bytes of unanswered requests held for all connections together.", low=1024),
    )
    parked_fetches: int = field(
        default=20_000, metadata=meaning("Fetches waiting for data at once; one more is answered empty.")
    )
    open_files: int = field(default=4096, metadata=meaning("Segment files held open at once.", low=16))
    partitions_per_topic: int = field(default=10_000, metadata=meaning("Partitions of one topic.", high=INT_MAX))
    partitions: int = field(default=100_000, metadata=meaning("Partitions of all topics together.", high=INT_MAX))
    producers_per_partition: int = field(
        default=10_000,
        metadata=meaning("Idempotent producers remembered by one partition; the one silent for longest is forgotten."),
    )
    idle_connection_ms: int = field(
        default=600_000, metadata=meaning("Milliseconds of silence after which a connection is closed.")
    )
    fetch_bytes: int = field(
        default=57_671_680,
        metadata=meaning(
            "Largest answer to one fetch, in bytes, whatever the client asks for.", low=1024, high=INT_MAX
        ),
    )
    topics_per_request: int = field(default=10_000, metadata=meaning("Topics that one request may name."))
    views_per_topic: int = field(default=1000, metadata=meaning("Views of one topic."))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """[log]: how the logs on disk are looked after."""

    retention_check_ms: int = field(
        default=300_000, metadata=meaning("Milliseconds between two looks for segments to delete.")
    )
    compaction_check_ms: int = field(
        default=15_000, metadata=meaning("Milliseconds between two looks for logs to compact.")
    )
    checkpoint_ms: int = field(
        default=60_000,
        metadata=meaning("Milliseconds between two notes of how far each log is safely on disk."),
    )
    recovery_bytes: int = field(
        default=67_108_864,
        metadata=meaning("Bytes of a log after which it is noted what makes reading them again unnecessary.", low=1),
    )
    flush_threads: int = field(default=2, metadata=meaning("Threads that force logs to disk.", high=256))
    read_threads: int = field(default=4, metadata=meaning("Threads that read what is not in the page cache.", high=256))
    unflushed_bytes: int = field(
        default=0,
        metadata=meaning(
            "Bytes of all logs not yet handed to the disk before writers have to wait; 0 goes by the memory there is.",
            low=0,
        ),
    )
    producer_expiry_ms: int = field(
        default=86_400_000,
        metadata=meaning("Milliseconds of silence after which an idempotent producer is forgotten."),
    )
    compaction_memory_bytes: int = field(
        default=134_217_728,
        metadata=meaning("Bytes that the table of keys may take while a log is compacted.", low=1_048_576),
    )
    tag_index_bytes: int = field(
        default=67_108_864,
        metadata=meaning("Bytes in memory for what is known of the tags in all logs.", low=1_048_576),
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
            "Milliseconds without a heartbeat after which a member of the new protocol is out.", high=INT_MAX
        ),
    )
    consumer_heartbeat_interval_ms: int = field(
        default=5_000,
        metadata=meaning("Milliseconds between two heartbeats of a member of the new protocol.", high=INT_MAX),
    )
    consumer_assignors: tuple[str, ...] = field(
        default=("uniform", "range"),
        metadata=meaning(
            "Assignors that members of the new protocol may ask for; the first is used if nobody asks.",
            choices=("uniform", "range"),
        ),
    )
    subscription_pattern_length: int = field(
        default=512, metadata=meaning("Characters of an expression that a member finds topics by.")
    )
    max_members: int = field(default=10_000, metadata=meaning("Members of one group."))
    group_bytes: int = field(
        default=6_291_456,
        metadata=meaning(
            "Bytes that the members of one group may say of themselves, and bytes of a leader's plan for them.",
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
    lag_series: int = field(
        default=10_000, metadata=meaning("Partitions of groups of which /metrics shows the lag.", low=0)
    )
    offset_metadata_bytes: int = field(
        default=4096, metadata=meaning("Characters of metadata that may be stored with a committed offset.", low=0)
    )
    offsets_retention_ms: int = field(
        default=604_800_000, metadata=meaning("Milliseconds that offsets outlive the last member of their group.")
    )
    offsets_check_ms: int = field(
        default=600_000, metadata=meaning("Milliseconds between two looks for offsets that are void.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """[transactions]: producers that write several things in one piece."""

    state_partitions: int = field(
        default=16, metadata=meaning("Partitions of the internal topic that holds transactional ids.", high=INT_MAX)
    )
    max_timeout_ms: int = field(
        default=900_000, metadata=meaning("Longest time that a producer may ask for its transactions.", high=INT_MAX)
    )
    id_expiry_ms: int = field(
        default=604_800_000,
        metadata=meaning("Milliseconds after which a transactional id that is not used is forgotten."),
    )
    marker_wait_ms: int = field(
        default=5_000,
        metadata=meaning(
            "Milliseconds that a request waits at most for the end of a transaction to be written.", low=0
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
        metadata=meaning("Least severe level that is written.", choices=("debug", "info", "warning", "error")),
    )
    format: str = field(
        default="text",
        metadata=meaning("One line a message for people, or one JSON object a line.", choices=("text", "json")),
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
    topic: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    logging: LoggingSettings = LoggingSettings()


Section = (
    BrokerSettings | Limits | LogSettings | GroupSettings | TransactionSettings | ClusterSettings | LoggingSettings
)

SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        "broker": BrokerSettings,
        "limits": Limits,
        "log": LogSettings,
        "groups": GroupSettings,
        "transactions": TransactionSettings,
        "cluster": ClusterSettings,
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
