"""A topic's settings, under Kafka's names and with Kafka's meaning.

Rules:
- A setting is accepted only if it is honoured. Some of Kafka's are honoured by doing nothing, because what
  they govern (tiered storage) does not exist here; they accept only what asks nothing.
- Defaults are Kafka 4's, except `retention.ms` (14 days) and the smallest `segment.bytes` (1024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from penstock.config import throttle
from penstock.config.archive import ARCHIVE_GROUP, ARCHIVE_MAX_BYTES, ARCHIVE_MAX_MS
from penstock.config.delay import DELAY_LEVELS, DELAY_MAX
from penstock.config.retired import RETIRED_SETTING, parse_retired, spell_retired
from penstock.config.setting import LONG_MAX, Kind, Setting, nearest
from penstock.config.view import VIEW_OF_SETTING, VIEW_SETTINGS, VIEW_TAGS_SETTING, check_tags
from penstock.errors import ConfigError

STORAGE_SETTING = "penstock.storage"
SHARED_STORAGE = "sql"
"""The storage that every broker reaches: a partition is on one broker at a time, and moves without its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The effective values of one topic; `TOPIC_SETTINGS` says what each means."""

    cleanup_policy: frozenset[str]
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_message_bytes: int
    flush_messages: int
    flush_ms: int
    min_insync_replicas: int
    compression_type: str
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    file_delete_delay_ms: int
    preallocate: bool
    unclean_leader_election_enable: bool
    storage: str
    partitions_retired: Mapping[int, int]
    delay_max_ms: int
    delay_levels: tuple[int, ...]
    archive_group: str
    archive_max_bytes: int
    archive_max_ms: int


_SETTINGS = (
    Setting(
        name="cleanup.policy",
        kind=Kind.LIST,
        default="delete",
        choices=("delete", "compact"),
        synonym="log.cleanup.policy",
        doc="Fate of old data: delete drops it by age and size, compact keeps the last record of each key.",
    ),
    Setting(
        name="retention.ms",
        kind=Kind.LONG,
        default="1209600000",
        low=-1,
        synonym="log.retention.ms",
        doc="Milliseconds after its newest record at which a segment is deleted; -1 keeps it forever.",
    ),
    Setting(
        name="retention.bytes",
        kind=Kind.LONG,
        default="-1",
        low=-1,
        synonym="log.retention.bytes",
        doc="Bytes a partition may hold before its oldest segments are deleted; -1 sets no bound.",
    ),
    Setting(
        name="segment.bytes",
        kind=Kind.INT,
        default="1073741824",
        low=1024,
        synonym="log.segment.bytes",
        doc="Bytes after which a new segment file is begun.",
    ),
    Setting(
        name="segment.ms",
        kind=Kind.LONG,
        default="604800000",
        low=1,
        synonym="log.roll.ms",
        doc="Milliseconds after which a new segment is begun even if the current one is not full.",
    ),
    Setting(
        name="segment.jitter.ms",
        kind=Kind.LONG,
        default="0",
        low=0,
        synonym="log.roll.jitter.ms",
        doc="Most that is taken off segment.ms at random, so that partitions do not all roll at once.",
    ),
    Setting(
        name="segment.index.bytes",
        kind=Kind.INT,
        default="10485760",
        low=4,
        synonym="log.index.size.max.bytes",
        doc="No effect here: an index is bounded by segment.bytes and index.interval.bytes and is never too large.",
    ),
    Setting(
        name="index.interval.bytes",
        kind=Kind.INT,
        default="4096",
        low=0,
        synonym="log.index.interval.bytes",
        doc="Bytes of records between two entries of the offset index.",
    ),
    Setting(
        name="max.message.bytes",
        kind=Kind.INT,
        default="1048588",
        low=0,
        synonym="message.max.bytes",
        doc="Largest record batch accepted, in bytes as sent (after compression).",
    ),
    Setting(
        name="flush.messages",
        kind=Kind.LONG,
        default=str(LONG_MAX),
        low=1,
        synonym="log.flush.interval.messages",
        doc="Records after which the log is forced to disk; 1 means before every acknowledgement.",
    ),
    Setting(
        name="flush.ms",
        kind=Kind.LONG,
        default=str(LONG_MAX),
        low=0,
        synonym="log.flush.interval.ms",
        doc="Milliseconds a record may stay in memory before the log is forced to disk.",
    ),
    Setting(
        name="min.insync.replicas",
        kind=Kind.INT,
        default="1",
        low=1,
        synonym="min.insync.replicas",
        doc="Replicas that must be in sync for a produce with acks=all to be accepted.",
    ),
    Setting(
        name="compression.type",
        kind=Kind.STRING,
        default="producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        synonym="compression.type",
        doc="Compression of stored batches; producer keeps what the sender chose.",
    ),
    Setting(
        name="message.timestamp.type",
        kind=Kind.STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonym="log.message.timestamp.type",
        doc="Whether a record carries the sender's time or the time of its append.",
    ),
    Setting(
        name="message.timestamp.before.max.ms",
        kind=Kind.LONG,
        default=str(LONG_MAX),
        low=0,
        synonym="log.message.timestamp.before.max.ms",
        doc="Milliseconds a record's timestamp may lie behind the broker's clock.",
    ),
    Setting(
        name="message.timestamp.after.max.ms",
        kind=Kind.LONG,
        default="3600000",
        low=0,
        synonym="log.message.timestamp.after.max.ms",
        doc="Milliseconds a record's timestamp may lie ahead of the broker's clock.",
    ),
    Setting(
        name="delete.retention.ms",
        kind=Kind.LONG,
        default="86400000",
        low=0,
        synonym="log.cleaner.delete.retention.ms",
        doc="Milliseconds a compacted topic keeps the marker of a deleted key.",
    ),
    Setting(
        name="min.cleanable.dirty.ratio",
        kind=Kind.DOUBLE,
        default="0.5",
        low=0,
        high=1,
        synonym="log.cleaner.min.cleanable.ratio",
        doc="Share of a compacted log that must be uncompacted before it is compacted again.",
    ),
    Setting(
        name="min.compaction.lag.ms",
        kind=Kind.LONG,
        default="0",
        low=0,
        synonym="log.cleaner.min.compaction.lag.ms",
        doc="Milliseconds a record stays out of compaction.",
    ),
    Setting(
        name="max.compaction.lag.ms",
        kind=Kind.LONG,
        default=str(LONG_MAX),
        low=1,
        synonym="log.cleaner.max.compaction.lag.ms",
        doc="Milliseconds after which a record is compacted whatever the dirty ratio.",
    ),
    Setting(
        name="file.delete.delay.ms",
        kind=Kind.LONG,
        default="60000",
        low=0,
        synonym="log.segment.delete.delay.ms",
        doc="No effect here: a file that is being read stays readable, so it leaves the disk at once.",
    ),
    Setting(
        name="preallocate",
        kind=Kind.BOOLEAN,
        default="false",
        choices=("false",),
        synonym="log.preallocate",
        doc="Whether a new segment's file gets its full size on disk at once, which is not offered here.",
    ),
    Setting(
        name="unclean.leader.election.enable",
        kind=Kind.BOOLEAN,
        default="false",
        synonym="unclean.leader.election.enable",
        doc="Whether a replica that is not in sync may lead when no other is left, losing records.",
    ),
    Setting(
        name=STORAGE_SETTING,
        kind=Kind.STRING,
        default="segmented",
        choices=("segmented", "memory", SHARED_STORAGE),
        doc="Engine that keeps the topic, from its creation on: segmented writes log files, memory forgets everything "
        "at exit, sql keeps it in a database that all brokers share.",
    ),
    Setting(
        name=RETIRED_SETTING,
        kind=Kind.LIST,
        default="",
        doc="Partitions that take no more messages, each with the one that takes its place, such as 3:0,4:1.",
    ),
    DELAY_MAX,
    DELAY_LEVELS,
    ARCHIVE_GROUP,
    ARCHIVE_MAX_BYTES,
    ARCHIVE_MAX_MS,
    Setting(
        name=VIEW_OF_SETTING,
        kind=Kind.STRING,
        default="",
        doc="Topic that this one is a view of; set at its creation.",
    ),
    Setting(
        name=VIEW_TAGS_SETTING,
        kind=Kind.STRING,
        default="",
        make=check_tags,
        doc="Tags of the records that a view shows, such as checkout,refund or a and not (b or c).",
    ),
    Setting(
        name=throttle.LEADER_REPLICAS,
        kind=Kind.STRING,
        default="",
        make=throttle.check_replicas,
        doc="Replicas whose leader slows their copying; a leader slows that of every new replica, named here or not.",
    ),
    Setting(
        name=throttle.FOLLOWER_REPLICAS,
        kind=Kind.STRING,
        default="",
        make=throttle.check_replicas,
        doc="Replicas that are copied no faster than new ones while they are not in sync, as 0:1,1:1 or *.",
    ),
    Setting(
        name="remote.storage.enable",
        kind=Kind.BOOLEAN,
        default="false",
        choices=("false",),
        doc="Tiered storage, which does not exist here.",
    ),
    Setting(
        name="local.retention.ms",
        kind=Kind.LONG,
        default="-2",
        low=-2,
        high=-2,
        doc="Milliseconds kept locally under tiered storage; -2 follows retention.ms.",
    ),
    Setting(
        name="local.retention.bytes",
        kind=Kind.LONG,
        default="-2",
        low=-2,
        high=-2,
        doc="Bytes kept locally under tiered storage; -2 follows retention.bytes.",
    ),
)

TOPIC_SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _SETTINGS})

# Settings that Kafka has or had, with the reason they are refused rather than ignored.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "message.format.version": "records are always kept in format 2, as in Kafka 4",
        "message.downconversion.enable": "records are never converted to an older format, as in Kafka 4",
        "message.timestamp.difference.max.ms": "set message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms instead, as in Kafka 4",
        "compression.gzip.level": "batches are recompressed at the codec's own default level",
        "compression.lz4.level": "batches are recompressed at the codec's own default level",
        "compression.zstd.level": "batches are recompressed at the codec's own default level",
        "remote.log.copy.disable": "there is no tiered storage",
        "remote.log.delete.on.disable": "there is no tiered storage",
    }
)

_OWN_NAMES = {
    "storage": STORAGE_SETTING,
    "partitions_retired": RETIRED_SETTING,
    "delay_max_ms": DELAY_MAX.name,
    "delay_levels": DELAY_LEVELS.name,
    "archive_group": ARCHIVE_GROUP.name,
    "archive_max_bytes": ARCHIVE_MAX_BYTES.name,
    "archive_max_ms": ARCHIVE_MAX_MS.name,
}
_NAME_OF_FIELD: Mapping[str, str] = MappingProxyType(
    {field.name: _OWN_NAMES.get(field.name, field.name.replace("_", ".")) for field in fields(TopicConfig)}
)


def topic_setting(name: str) -> Setting:
    """The setting called `name`, or a ConfigError that names the nearest one."""
    if setting := TOPIC_SETTINGS.get(name):
        return setting
    if reason := _REFUSED.get(name):
        raise ConfigError(f"topic setting {name} is not supported: {reason}")
    of_broker = next((setting.name for setting in _SETTINGS if setting.synonym == name), None)
    if of_broker:
        raise ConfigError(f"unknown topic setting {name}: for a topic it is called {of_broker}")
    raise ConfigError(f"unknown topic setting {name}: the nearest known one is {nearest(name, TOPIC_SETTINGS)}")


def topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str] = MappingProxyType({})) -> TopicConfig:
    """The effective settings: the topic's own, over the broker's defaults, over Kafka's.

    Raises ConfigError naming the key, its value and what is allowed.
    """
    for name in (RETIRED_SETTING, *sorted(VIEW_SETTINGS)):
        if name in defaults:
            raise ConfigError(f"{name} is set for one topic, not for all of them")
    values: dict[str, object] = {}
    for source in (defaults, overrides):
        for name, text in source.items():
            values[name] = topic_setting(name).parse(text)
    effective: dict[str, Any] = {
        field: values[name] if name in values else TOPIC_SETTINGS[name].parse(TOPIC_SETTINGS[name].default)
        for field, name in _NAME_OF_FIELD.items()
    }
    effective["cleanup_policy"] = frozenset(effective["cleanup_policy"])
    effective["partitions_retired"] = parse_retired(effective["partitions_retired"])
    config = TopicConfig(**effective)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms = '{config.min_compaction_lag_ms}': allowed is at most "
            f"max.compaction.lag.ms, which is {config.max_compaction_lag_ms}"
        )
    if config.partitions_retired and "compact" in config.cleanup_policy:
        raise ConfigError(
            f"{RETIRED_SETTING} = {spell_retired(config.partitions_retired)!r}: allowed is nothing with "
            "cleanup.policy=compact, where old values of keys would stay beside newer ones elsewhere"
        )
    return config
