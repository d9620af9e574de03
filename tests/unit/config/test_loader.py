"""The loader: order of sources, origins, and refusals that name source and nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.address import Address
from penstock.config.broker import BROKER_SETTINGS, SECTIONS, Config, spelled
from penstock.config.loader import load, variable_of
from penstock.config.topic import TOPIC_SETTINGS
from penstock.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    file = folder / "penstock.toml"
    file.write_text(text)
    return file


def refusal(file: Path | None = None, env: dict[str, str] | None = None, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, env or {}, flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_given_means_every_default() -> None:
    loaded = load(None, {"PATH": "/bin"}, {})
    assert loaded.config == Config()
    assert loaded.config.broker.listen == (("PLAINTEXT", ("127.0.0.1", 9092)),)
    assert loaded.config.broker.http == Address("127.0.0.1", 8092)
    assert set(loaded.origins.values()) == {"default"}


def test_origins_cover_every_key() -> None:
    expected = {*BROKER_SETTINGS, *(f"topic.{name}" for name in TOPIC_SETTINGS)}
    assert set(load(None, {}, {}).origins) == expected


@pytest.mark.parametrize("key", BROKER_SETTINGS)
def test_every_default_is_what_its_own_setting_reads(key: str) -> None:
    section, _, name = key.partition(".")
    default = getattr(SECTIONS[section](), name)
    assert BROKER_SETTINGS[key].parse(spelled(default)) == default
    assert BROKER_SETTINGS[key].doc.endswith(".")


@pytest.mark.parametrize("key", BROKER_SETTINGS)
def test_every_key_can_be_set_from_the_environment(key: str) -> None:
    default = BROKER_SETTINGS[key].default
    loaded = load(None, {variable_of(key): default}, {})
    assert loaded.config == Config()
    assert loaded.origins[key] == f"environment {variable_of(key)}"


def test_environment_wins_over_file_and_flags_win_over_both(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [broker]
        id = 5
        rack = "a"
        [limits]
        frame_bytes = 4096
        connections = 7
        """,
    )
    env = {"PENSTOCK_LIMITS_FRAME_BYTES": "8192", "PENSTOCK_BROKER_ID": "6"}
    loaded = load(file, env, {"broker.id": "7"})
    assert loaded.config.broker.id == 7
    assert loaded.config.broker.rack == "a"
    assert loaded.config.limits.frame_bytes == 8192
    assert loaded.config.limits.connections == 7
    assert loaded.origins["broker.id"] == "command line"
    assert loaded.origins["broker.rack"] == f"file {file}"
    assert loaded.origins["limits.frame_bytes"] == "environment PENSTOCK_LIMITS_FRAME_BYTES"
    assert loaded.origins["broker.data"] == "default"


def test_topic_defaults_keep_kafkas_spelling_from_every_source(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [topic]
        "retention.ms" = 1000
        segment.bytes = 2048
        min.cleanable.dirty.ratio = 0.25
        "unclean.leader.election.enable" = true
        "cleanup.policy" = ["compact", "delete"]
        """,
    )
    env = {"PENSTOCK_TOPIC_SEGMENT_BYTES": "4096", "PENSTOCK_TOPIC_PENSTOCK_STORAGE": "memory"}
    loaded = load(file, env, {"topic.flush.ms": "9"})
    assert loaded.config.topic == {
        "retention.ms": "1000",
        "segment.bytes": "4096",
        "min.cleanable.dirty.ratio": "0.25",
        "unclean.leader.election.enable": "true",
        "cleanup.policy": "compact,delete",
        "penstock.storage": "memory",
        "flush.ms": "9",
    }
    assert loaded.origins["topic.retention.ms"] == f"file {file}"
    assert loaded.origins["topic.segment.bytes"] == "environment PENSTOCK_TOPIC_SEGMENT_BYTES"
    assert loaded.origins["topic.flush.ms"] == "command line"
    assert loaded.origins["topic.segment.ms"] == "default"


def test_the_clients_own_variable_is_left_alone() -> None:
    assert load(None, {"PENSTOCK_BOOTSTRAP": "elsewhere:1"}, {}).config == Config()


def test_an_empty_text_unsets_what_is_optional() -> None:
    config = load(None, {"PENSTOCK_BROKER_RACK": "", "PENSTOCK_BROKER_ADVERTISED": ""}, {}).config
    assert (config.broker.rack, config.broker.advertised) == (None, None)


def test_an_unknown_key_in_the_file_names_the_file_and_the_nearest_key(tmp_path: Path) -> None:
    file = written(tmp_path, "[limits]\nframe_byte = 1\n")
    expected = f"file {file}: unknown key limits.frame_byte: the nearest known one is limits.frame_bytes"
    assert refusal(file) == expected


def test_an_unknown_section_names_the_nearest_section(tmp_path: Path) -> None:
    file = written(tmp_path, "[limit]\nframe_bytes = 1\n")
    assert refusal(file) == f"file {file}: unknown section [limit]: the nearest known one is [limits]"


def test_a_key_outside_its_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    file = written(tmp_path, "frame_bytes = 1\n")
    expected = f"file {file}: unknown key frame_bytes: the nearest known one is limits.frame_bytes"
    assert refusal(file) == expected


def test_a_section_name_used_as_a_key_is_refused(tmp_path: Path) -> None:
    assert "unknown key topic" in refusal(written(tmp_path, 'topic = "orders"\n'))
    assert "unknown key broker" in refusal(written(tmp_path, "broker = 1\n"))


def test_an_unknown_topic_setting_in_the_file_names_the_nearest_one(tmp_path: Path) -> None:
    file = written(tmp_path, "[topic]\nretention.m = 1\n")
    message = refusal(file)
    assert message.startswith(f"file {file}: unknown topic setting retention.m")
    assert message.endswith("retention.ms")


def test_an_unknown_variable_names_the_nearest_variable() -> None:
    message = refusal(env={"PENSTOCK_LIMIT_FRAME_BYTES": "1"})
    assert message.startswith("environment: unknown variable PENSTOCK_LIMIT_FRAME_BYTES")
    assert message.endswith("PENSTOCK_LIMITS_FRAME_BYTES")


def test_an_unknown_flag_names_the_nearest_key() -> None:
    message = refusal(None, None, **{"limits.conections": "1"})
    assert message == "command line: unknown key limits.conections: the nearest known one is limits.connections"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[limits]\nframe_bytes = "4096"', "limits.frame_bytes = '4096': has the wrong type"),
        ("[limits]\nframe_bytes = 1.5", "limits.frame_bytes = 1.5: has the wrong type"),
        ("[limits]\nframe_bytes = true", "limits.frame_bytes = True: has the wrong type"),
        ("[broker]\nid = [1]", "broker.id = [1]: has the wrong type, allowed is a whole number"),
        ('[broker]\ndelete_topics = "yes"', "allowed is true or false"),
        ("[broker]\nrack = 3", "broker.rack = 3: has the wrong type, allowed is a string"),
        ("[broker]\nrack.name = 3", "broker.rack = {'name': 3}: has the wrong type"),
        ('[topic]\nretention.ms = "a day"', "retention.ms = 'a day': has the wrong type"),
        ("[topic]\ncleanup.policy = [1]", "cleanup.policy = [1]: has the wrong type"),
        ("[topic]\npreallocate = 1", "preallocate = 1: has the wrong type"),
    ],
)
def test_a_wrong_type_in_the_file_is_refused_with_the_right_one(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path, text)
    message = refusal(file)
    assert message.startswith(f"file {file}: ")
    assert complaint in message


@pytest.mark.parametrize(
    ("key", "text", "complaint"),
    [
        ("limits.frame_bytes", "1023", "limits.frame_bytes = '1023': allowed is a whole number from 1024"),
        ("limits.connections", "0", "allowed is a whole number of at least 1"),
        ("broker.listen", "9092", "broker.listen = '9092': allowed is HOST:PORT"),
        ("broker.advertised", "0.0.0.0:9092", "HOST:PORT that clients can connect to"),
        ("broker.data", "", "broker.data = '': allowed is a folder"),
        ("logging.level", "loud", "logging.level = 'loud': allowed is debug, info, warning, error"),
        ("topic.retention.ms", "-5", "retention.ms = '-5': allowed is a whole number of at least -1"),
    ],
)
def test_a_bad_value_names_its_source(key: str, text: str, complaint: str) -> None:
    by_variable = refusal(env={variable_of(key): text})
    assert by_variable.startswith(f"environment {variable_of(key)}: ")
    assert complaint in by_variable
    by_flag = refusal(None, None, **{key: text})
    assert by_flag.startswith("command line: ")
    assert complaint in by_flag


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    file = written(tmp_path, "[broker]\nid = \n")
    message = refusal(file)
    assert message.startswith(f"file {file}: is not TOML: ")
    assert "line 2" in message


def test_a_syntax_error_at_the_end_names_the_last_line(tmp_path: Path) -> None:
    assert "line 3" in refusal(written(tmp_path, "[broker]\nid = 1\nrack = "))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "absent.toml"
    assert refusal(file) == f"file {file}: cannot be read: No such file or directory"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(b"[broker]\n\xff")
    assert refusal(file) == f"file {file}: is not UTF-8 at byte 9"


def test_listening_everywhere_needs_an_advertised_address() -> None:
    assert "set broker.advertised" in refusal(None, None, **{"broker.listen": "0.0.0.0:9092"})
    flags = {"broker.listen": "0.0.0.0:9092", "broker.advertised": "broker.example:9092"}
    assert load(None, {}, flags).config.broker.advertised == (("PLAINTEXT", ("broker.example", 9092)),)


def test_default_partitions_keep_within_the_limit() -> None:
    flags = {"broker.default_partitions": "11", "limits.partitions_per_topic": "10"}
    assert "broker.default_partitions = '11'" in refusal(None, None, **flags)


def test_topic_defaults_that_contradict_each_other_are_refused() -> None:
    flags = {"topic.min.compaction.lag.ms": "11", "topic.max.compaction.lag.ms": "10"}
    assert "max.compaction.lag.ms" in refusal(None, None, **flags)
