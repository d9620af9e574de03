"""A topic's settings: Kafka's names, defaults and bounds, and refusals that help."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.config.setting import Kind
from penstock.config.topic import TOPIC_SETTINGS, topic_config, topic_setting
from penstock.errors import ConfigError

FOREVER = 9223372036854775807


def test_defaults_are_kafkas_with_two_weeks_of_retention() -> None:
    config = topic_config({})
    assert dataclasses.asdict(config) == {
        "cleanup_policy": frozenset({"delete"}),
        "retention_ms": 14 * 24 * 3600 * 1000,
        "retention_bytes": -1,
        "segment_bytes": 1 << 30,
        "segment_ms": 7 * 24 * 3600 * 1000,
        "segment_jitter_ms": 0,
        "segment_index_bytes": 10485760,
        "index_interval_bytes": 4096,
        "max_message_bytes": 1048588,
        "flush_messages": FOREVER,
        "flush_ms": FOREVER,
        "min_insync_replicas": 1,
        "compression_type": "producer",
        "message_timestamp_type": "CreateTime",
        "message_timestamp_before_max_ms": FOREVER,
        "message_timestamp_after_max_ms": 3600000,
        "delete_retention_ms": 86400000,
        "min_cleanable_dirty_ratio": 0.5,
        "min_compaction_lag_ms": 0,
        "max_compaction_lag_ms": FOREVER,
        "file_delete_delay_ms": 60000,
        "preallocate": False,
        "unclean_leader_election_enable": False,
        "storage": "segmented",
        "partitions_retired": {},
        "delay_max_ms": -1,
        "delay_levels": tuple(
            1000 * seconds
            for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
        ),
        "archive_group": "",
        "archive_max_bytes": 10 << 30,
        "archive_max_ms": 7 * 24 * 3600 * 1000,
    }


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        topic_config({}).retention_ms = 1  # type: ignore[misc]


def test_the_topics_own_settings_win_over_the_brokers_defaults() -> None:
    config = topic_config({"retention.ms": "5"}, {"retention.ms": "7", "segment.bytes": "2048"})
    assert (config.retention_ms, config.segment_bytes) == (5, 2048)


def test_both_cleanup_policies_can_be_on() -> None:
    assert topic_config({"cleanup.policy": "compact, delete"}).cleanup_policy == {"compact", "delete"}


def test_spaces_and_capitals_are_read_as_kafka_reads_them() -> None:
    config = topic_config({"retention.ms": " 10 ", "unclean.leader.election.enable": "TRUE"})
    assert (config.retention_ms, config.unclean_leader_election_enable) == (10, True)


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_every_default_is_allowed_by_its_own_setting(name: str) -> None:
    setting = topic_setting(name)
    setting.parse(setting.default)
    assert setting.doc.endswith(".")


def test_kinds_carry_kafkas_numbers() -> None:
    assert [kind.value for kind in Kind] == [1, 2, 3, 4, 5, 6, 7]
    kinds = {name: TOPIC_SETTINGS[name].kind for name in ("preallocate", "segment.bytes", "retention.ms")}
    assert kinds == {"preallocate": 1, "segment.bytes": 3, "retention.ms": 5}
    assert TOPIC_SETTINGS["cleanup.policy"].kind == 7
    assert TOPIC_SETTINGS["min.cleanable.dirty.ratio"].kind == 6
    assert TOPIC_SETTINGS["compression.type"].kind == 2


def test_a_setting_knows_its_name_on_the_broker() -> None:
    assert TOPIC_SETTINGS["retention.ms"].synonym == "log.retention.ms"
    assert TOPIC_SETTINGS["segment.ms"].synonym == "log.roll.ms"
    assert TOPIC_SETTINGS["penstock.storage"].synonym is None


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("retention.ms", "soon", "a whole number of at least -1"),
        ("retention.ms", "-2", "a whole number of at least -1"),
        ("retention.ms", "1.5", "a whole number of at least -1"),
        ("retention.ms", "1_000", "a whole number of at least -1"),
        ("retention.ms", "٣", "a whole number of at least -1"),
        ("retention.ms", "", "a whole number of at least -1"),
        ("retention.ms", "9223372036854775808", "a whole number of at least -1"),
        ("retention.ms", "9" * 5000, "a whole number of at least -1"),
        ("segment.bytes", "1023", "a whole number from 1024 to 2147483647"),
        ("segment.bytes", "2147483648", "a whole number from 1024 to 2147483647"),
        ("min.insync.replicas", "0", "a whole number from 1 to 2147483647"),
        ("min.cleanable.dirty.ratio", "1.1", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "half", "a number from 0 to 1"),
        ("cleanup.policy", "archive", "a comma-separated list of delete, compact"),
        ("cleanup.policy", "", "a comma-separated list of delete, compact"),
        ("cleanup.policy", "delete,", "a comma-separated list of delete, compact"),
        ("compression.type", "brotli", "producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
        ("unclean.leader.election.enable", "yes", "true or false"),
        ("penstock.storage", "tape", "segmented, memory, sql"),
    ],
)
def test_a_bad_value_is_refused_with_key_value_and_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        topic_config({name: text})
    assert str(caught.value) == f"{name} = {text!r}: allowed is {allowed}"


def test_a_bad_default_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"segment\.ms = '0'"):
        topic_config({}, {"segment.ms": "0"})


def test_an_unknown_setting_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown topic setting retension\.ms: .* is retention\.ms$"):
        topic_config({"retension.ms": "1"})


def test_a_broker_level_name_is_answered_with_the_topic_level_name() -> None:
    with pytest.raises(ConfigError, match=r"log\.roll\.ms: for a topic it is called segment\.ms"):
        topic_config({"log.roll.ms": "1"})


def test_compaction_lags_must_leave_room_for_each_other() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms = '11': .*which is 10"):
        topic_config({"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"})


@pytest.mark.parametrize("name", ["leader", "follower"])
def test_replication_throttles_are_taken_in_kafkas_spellings(name: str) -> None:
    key = f"{name}.replication.throttled.replicas"
    for text in ("", "*", "0:1,1:1"):
        topic_config({key: text})
    with pytest.raises(ConfigError, match="PARTITION:BROKER"):
        topic_config({key: "0-1"})


def test_tiered_storage_can_only_be_off() -> None:
    topic_config({"remote.storage.enable": "false", "local.retention.ms": "-2", "local.retention.bytes": "-2"})
    with pytest.raises(ConfigError, match=r"remote\.storage\.enable = 'true': allowed is only false"):
        topic_config({"remote.storage.enable": "true"})
    with pytest.raises(ConfigError, match=r"local\.retention\.ms = '5': allowed is only -2"):
        topic_config({"local.retention.ms": "5"})


def test_settings_that_cannot_be_honoured_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"compression\.gzip\.level is not supported: .*level"):
        topic_config({"compression.gzip.level": "9"})
    with pytest.raises(ConfigError, match=r"set message\.timestamp\.before\.max\.ms"):
        topic_config({"message.timestamp.difference.max.ms": "9"})
