"""Decisions about settings of topics and brokers: their new values, or why a change is refused.

Pure: current values and a change in, new values out, `ApiError` with Kafka's code for a refusal.

These settings of a broker can be changed while it runs: the defaults of topic settings, under Kafka's names for them
(`log.retention.ms` is the default of `retention.ms`), how fast replicas are copied, and whether one broker is being
drained. Brokers read all others at their start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from penstock.cluster.decisions import retired_partitions, views
from penstock.cluster.metadata import TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.broker import BROKER_SETTINGS
from penstock.config.draining import DRAINING
from penstock.config.setting import Kind, Setting, nearest
from penstock.config.throttle import FOLLOWER_RATE, LEADER_RATE
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING, TOPIC_SETTINGS, TopicConfig, topic_config
from penstock.errors import ApiError, Code, ConfigError
from penstock.ids import BrokerId

_OF_BROKERS: Mapping[str, Setting] = MappingProxyType(
    {setting.name: setting for setting in (DRAINING, FOLLOWER_RATE, LEADER_RATE)}
)
"""Those that are no defaults of topics."""

DYNAMIC_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {setting.synonym: setting for setting in TOPIC_SETTINGS.values() if setting.synonym} | {**_OF_BROKERS}
)

# Settings read at start that Kafka has as well, by our key: tools look for them under Kafka's names.
KAFKA_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "broker.id": "node.id",
        "broker.listen": "listeners",
        "broker.advertised": "advertised.listeners",
        "broker.inter_broker_listener": "inter.broker.listener.name",
        "broker.data": "log.dirs",
        "broker.auto_create_topics": "auto.create.topics.enable",
        "broker.default_partitions": "num.partitions",
        "broker.default_replication_factor": "default.replication.factor",
        "broker.delete_topics": "delete.topic.enable",
        "broker.rack": "broker.rack",
        "cluster.lag_time_max_ms": "replica.lag.time.max.ms",
        "cluster.fetch_wait_max_ms": "replica.fetch.wait.max.ms",
        "limits.frame_bytes": "socket.request.max.bytes",
        "limits.connections": "max.connections",
        "limits.connections_per_host": "max.connections.per.ip",
        "limits.idle_connection_ms": "connections.max.idle.ms",
        "limits.fetch_bytes": "fetch.max.bytes",
        "groups.consumer_session_timeout_ms": "group.consumer.session.timeout.ms",
        "groups.consumer_heartbeat_interval_ms": "group.consumer.heartbeat.interval.ms",
        "security.protocols": "listener.security.protocol.map",
        "security.sasl_mechanisms": "sasl.enabled.mechanisms",
        "security.max_session_ms": "connections.max.reauth.ms",
        "security.failed_login_delay_ms": "connection.failed.authentication.delay.ms",
        "security.principal_mapping_rules": "ssl.principal.mapping.rules",
        "security.super_users": "super.users",
        "log.retention_check_ms": "log.retention.check.interval.ms",
        "log.producer_expiry_ms": "producer.id.expiration.ms",
        "log.compaction_memory_bytes": "log.cleaner.dedupe.buffer.size",
    }
)
_UNCLEAN = TOPIC_SETTINGS["unclean.leader.election.enable"]
_STORAGE = TOPIC_SETTINGS[STORAGE_SETTING]
_MIN_IN_SYNC = "min.insync.replicas"
_INDEX_INTERVAL = "index.interval.bytes"
LEAST_INDEX_INTERVAL = 1024
"""Of what clients may set: a segment of 1 GiB has a million entries then."""
READ_ONLY_NAMES = frozenset({*BROKER_SETTINGS, *KAFKA_NAMES.values()})


class OperationKind(IntEnum):
    """What an incremental change does to one setting; numbered as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class SettingOperation:
    """One step of an incremental change; `value` is None only for DELETE."""

    name: str
    kind: OperationKind
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """All settings at once: what is not named goes back to its default (Kafka's AlterConfigs)."""

    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Increment:
    """Some settings, the others stay (Kafka's IncrementalAlterConfigs)."""

    operations: tuple[SettingOperation, ...]


SettingsChange = Replacement | Increment


def topic_defaults(static: Mapping[str, str], dynamic: Mapping[str, str]) -> Mapping[str, str]:
    """The defaults of topic settings: those of the broker's start, under those set while it runs.

    `static` is in topic names (`retention.ms`), `dynamic` in broker names (`log.retention.ms`).
    """
    if not dynamic:
        return static
    return {**static} | {
        DYNAMIC_SETTINGS[name].name: value for name, value in dynamic.items() if name not in _OF_BROKERS
    }


def allows_unclean_election(topic: TopicImage, defaults: Mapping[str, str]) -> bool:
    """Whether a topic would rather lose records than wait for who has them; `defaults` are in topic names."""
    return _value(_UNCLEAN, topic, defaults) is True


def min_in_sync_replicas(topic: TopicImage, defaults: Mapping[str, str]) -> int:
    """How many replicas have to be in sync for acks=all; `defaults` are in topic names."""
    wanted = _value(TOPIC_SETTINGS[_MIN_IN_SYNC], topic, defaults)
    assert isinstance(wanted, int)
    return wanted


def is_kept_in_memory(topic: TopicImage, defaults: Mapping[str, str]) -> bool:
    """Whether the records of a topic are gone with the process that holds them; `defaults` are in topic names."""
    return _value(_STORAGE, topic, defaults) == "memory"


def with_storage(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> Mapping[str, str]:
    """The overrides of a new topic. If it is going to be in shared storage they say so, also if that is the default:
    all brokers have to agree on it, whatever their defaults are by then.
    """
    if overrides.get(STORAGE_SETTING, defaults.get(STORAGE_SETTING)) != SHARED_STORAGE:
        return overrides
    return MappingProxyType({**overrides, STORAGE_SETTING: SHARED_STORAGE})


def effective_config(topic: TopicImage, defaults: Mapping[str, str]) -> TopicConfig:
    """The settings of a topic that exists; `defaults` are in topic names."""
    if defaults.get(STORAGE_SETTING) == SHARED_STORAGE:
        # The topics that are in shared storage say so themselves. Others are older than this default.
        defaults = {name: value for name, value in defaults.items() if name != STORAGE_SETTING}
    return topic_config(topic.overrides, defaults)


def _value(setting: Setting, topic: TopicImage, defaults: Mapping[str, str]) -> object:
    """One setting of a topic, for callers that read it from every topic."""
    return setting.parse(topic.overrides.get(setting.name, defaults.get(setting.name, setting.default)))


def alter_topic_settings(
    draft: MetadataDraft, name: str, change: SettingsChange, defaults: Mapping[str, str]
) -> TopicImage:
    """The topic with its new overrides; `defaults` are in topic names."""
    if not name:
        raise ApiError(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
    topic = draft.topics.get(name)
    if topic is None:
        raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    overrides = changed(topic.overrides, change, TOPIC_SETTINGS, defaults)
    if STORAGE_SETTING in topic.overrides:
        # Without a new value it stays where it is, like every topic.
        overrides.setdefault(STORAGE_SETTING, topic.overrides[STORAGE_SETTING])
    check_overrides(overrides, defaults)
    before, after = (effective_config(each, defaults).storage for each in (topic, replace(topic, overrides=overrides)))
    if before != after:
        raise ApiError(
            Code.INVALID_CONFIG,
            f"{STORAGE_SETTING} = '{after}': the topic was created in '{before}', which cannot be changed; "
            "create another topic and copy what is in this one",
        )
    # Check only what changes: the topic may have lost replicas, or be older than a rule.
    factor = 0 if topic.is_shared else topic.replication_factor
    check_given(dict(overrides.items() - topic.overrides.items()), factor)
    retired_partitions.check_change(topic, overrides)
    views.check_change(topic, overrides)
    return replace(topic, overrides=MappingProxyType(overrides))


def check_overrides(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> None:
    """Refuse topic settings that are unknown, out of bounds or contradict each other."""
    try:
        topic_config(overrides, defaults)
    except ConfigError as error:
        raise ApiError(Code.INVALID_CONFIG, str(error)) from error


def check_given(settings: Mapping[str, str], replication_factor: int) -> None:
    """Refuse values that Kafka takes and that would harm: the topic could not be produced to, or not be indexed in
    bounded memory. `replication_factor` is 0 for a topic without partitions of its own, or in shared storage.
    """
    if _MIN_IN_SYNC in settings and 0 < replication_factor < (wanted := int(settings[_MIN_IN_SYNC])):
        raise ApiError(
            Code.INVALID_CONFIG,
            f"{_MIN_IN_SYNC} = '{wanted}': the topic has {replication_factor} replica(s), so nothing could be produced "
            f"with acks=all; allowed is at most {replication_factor}",
        )
    if _INDEX_INTERVAL in settings and int(settings[_INDEX_INTERVAL]) < LEAST_INDEX_INTERVAL:
        raise ApiError(
            Code.INVALID_CONFIG,
            f"{_INDEX_INTERVAL} = '{settings[_INDEX_INTERVAL]}': allowed is at least {LEAST_INDEX_INTERVAL}, because "
            "every entry of an index takes memory",
        )


def alter_broker_settings(
    draft: MetadataDraft, broker: BrokerId | None, change: SettingsChange, static: Mapping[str, str]
) -> Mapping[str, str]:
    """The new dynamic settings of one broker, or of all brokers for None."""
    if broker is not None and broker not in draft.brokers:
        raise ApiError(Code.INVALID_REQUEST, f"No broker with id {broker} is registered.")
    defaults = {
        setting.synonym: static[name] for name, setting in TOPIC_SETTINGS.items() if setting.synonym and name in static
    }
    settings = changed(draft.settings(broker), change, DYNAMIC_SETTINGS, defaults)
    _refuse_names_that_are_not_dynamic(settings)
    if broker is None and DRAINING.name in settings:
        raise ApiError(Code.INVALID_REQUEST, f"{DRAINING.name} is set for one broker, not for all of them.")
    # Unlike a topic's, a bad value of a broker setting is INVALID_REQUEST in Kafka (KAFKA-13609).
    try:
        merged = settings if broker is None else {**draft.settings(None), **settings}
        effective = topic_defaults(static, merged)
        topic_config({}, effective)
        for name in _OF_BROKERS.keys() & settings.keys():
            _OF_BROKERS[name].parse(settings[name])
        interval = settings.get(f"log.{_INDEX_INTERVAL}")
        if interval is not None:
            check_given({_INDEX_INTERVAL: interval}, 0)
    except ConfigError as error:
        raise ApiError(Code.INVALID_REQUEST, str(error)) from error
    _refuse_defaults_that_break_a_topic(draft.topics, effective)
    return settings


def _refuse_names_that_are_not_dynamic(settings: Mapping[str, str]) -> None:
    for name in settings:
        if name in DYNAMIC_SETTINGS:
            continue
        if name in READ_ONLY_NAMES:
            raise ApiError(Code.INVALID_REQUEST, f"Broker setting {name} cannot be changed while the broker runs.")
        known = nearest(name, DYNAMIC_SETTINGS)
        raise ApiError(
            Code.INVALID_CONFIG, f"Unknown broker setting {name}: the nearest that can be changed is {known}."
        )


def _refuse_defaults_that_break_a_topic(topics: Mapping[str, TopicImage], defaults: Mapping[str, str]) -> None:
    # Topics are made from templates: checking each distinct set of overrides once keeps this short.
    distinct = {frozenset(topic.overrides.items()): topic for topic in topics.values() if topic.overrides}
    for topic in distinct.values():
        try:
            topic_config(topic.overrides, defaults)
        except ConfigError as error:
            raise ApiError(Code.INVALID_REQUEST, f"Topic '{topic.name}' cannot have this default: {error}") from error


def changed(
    current: Mapping[str, str],
    change: SettingsChange,
    known: Mapping[str, Setting],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """The settings after a change, not looked at yet."""
    if isinstance(change, Replacement):
        return dict(change.settings)
    after = dict(current)
    for operation in change.operations:
        name, value = operation.name, operation.value
        if operation.kind is OperationKind.DELETE:
            after.pop(name, None)
            continue
        if value is None:
            raise ApiError(Code.INVALID_REQUEST, f"Null value not supported for : {name}")
        if operation.kind is OperationKind.SET:
            after[name] = value
            continue
        setting = known.get(name)
        if setting is None or setting.kind is not Kind.LIST:
            raise ApiError(
                Code.INVALID_CONFIG,
                f"Can't {operation.kind.name} to key {name} because its type is not LIST.",
            )
        before = _items(after.get(name, defaults.get(name, setting.default)))
        given = _items(value)
        if operation.kind is OperationKind.APPEND:
            items = [*before, *(item for item in given if item not in before)]
        else:
            items = [item for item in before if item not in given]
        after[name] = ",".join(items)
    return after


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
