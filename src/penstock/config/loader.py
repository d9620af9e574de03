"""From a TOML file, the environment and the command line to one `Config`, and where each value came from.

Rules:
- Later sources win: file, then environment, then flags.
- A broker that has only a database stores topics there: `penstock.storage` follows from `sql.url` if it is not set.
- What is not known is refused, wherever it stands, with its source and the nearest known name.
- The environment is handed in; the only input read here is the file.

A key is `section.name`: `frame_bytes` in [limits] of the file, PENSTOCK_LIMITS_FRAME_BYTES outside.
A topic default is `topic.` and Kafka's name: `retention.ms` in [topic], PENSTOCK_TOPIC_RETENTION_MS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.config.broker import BROKER_SETTINGS, SECTIONS, Config
from penstock.config.setting import Kind, Setting, nearest
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING, TOPIC_SETTINGS, topic_config, topic_setting
from penstock.errors import ConfigError

PREFIX = "PENSTOCK_"
DATABASE_SERVERS_VARIABLE = "PENSTOCK_DATABASE_SERVERS"
# Variables that belong to the client commands; a broker started from the same shell leaves them alone.
CLIENT_VARIABLES = frozenset({"PENSTOCK_BOOTSTRAP", "PENSTOCK_COMMAND_CONFIG", DATABASE_SERVERS_VARIABLE})
ALIASES = {"PENSTOCK_ADMIN_PASSWORD": "security.admin_password"}
"""Variables with a shorter name than that of their key."""
DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration, and for every dotted key where its value came from.

    An origin reads `default`, `file NAME`, `environment VARIABLE` or `command line`.
    """

    config: Config
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    """One key as some source gave it, already as text."""

    key: str
    text: str
    origin: str


def load(file: Path | None, env: Mapping[str, str], flags: Mapping[str, str]) -> Loaded:
    """Reads all sources; raises ConfigError that names source, key and what is allowed."""
    given: dict[str, _Given] = {}
    for one in (*_from_file(file), *_from_environment(env), *_from_flags(flags)):
        given[one.key] = one
    values: dict[str, Any] = {key: _parsed(one) for key, one in given.items()}
    topic = {key.removeprefix("topic."): one.text for key, one in given.items() if key.startswith("topic.")}
    sections: dict[str, Any] = {
        section: settings(
            **{key.removeprefix(f"{section}."): value for key, value in values.items() if key.startswith(f"{section}.")}
        )
        for section, settings in SECTIONS.items()
    }
    origins = {key: one.origin for key, one in given.items()}
    database = next((key for key in ("sql.url", "sql.url_file") if values.get(key) is not None), None)
    if database and values.get("cluster.coordinator") is None and STORAGE_SETTING not in topic:
        topic[STORAGE_SETTING], origins[f"topic.{STORAGE_SETTING}"] = (
            SHARED_STORAGE,
            f"{database} ({origins[database]})",
        )
    config = Config(topic=MappingProxyType(topic), **sections)
    _check_together(config)
    keys = (*BROKER_SETTINGS, *(f"topic.{name}" for name in TOPIC_SETTINGS))
    return Loaded(config=config, origins=MappingProxyType({key: origins.get(key, DEFAULT) for key in keys}))


def variable_of(key: str) -> str:
    """The environment variable that sets a dotted key."""
    return PREFIX + key.replace(".", "_").upper()


def _check_together(config: Config) -> None:
    """What no single key can tell."""
    topic_config(config.topic)
    config.listeners()
    if config.sql.url is not None and config.sql.url_file is not None:
        raise ConfigError("sql.url and sql.url_file are both set: allowed is one of them")
    if config.topic.get(STORAGE_SETTING) == SHARED_STORAGE and not config.sql.is_set:
        raise ConfigError(f"topic.{STORAGE_SETTING} = '{SHARED_STORAGE}': needs a database, set sql.url")
    broker, limits = config.broker, config.limits
    if broker.default_partitions > limits.partitions_per_topic:
        raise ConfigError(
            f"broker.default_partitions = '{broker.default_partitions}': allowed is at most "
            f"limits.partitions_per_topic, which is {limits.partitions_per_topic}"
        )


def _parsed(one: _Given) -> object:
    try:
        return _setting_of(one.key).parse(one.text)
    except ConfigError as error:
        raise ConfigError(f"{one.origin}: {error}") from None


def _setting_of(key: str) -> Setting:
    section, dot, name = key.partition(".")
    if section == "topic" and dot:
        return topic_setting(name)
    if setting := BROKER_SETTINGS.get(key):
        return setting
    known = {known_key: known_key for known_key in BROKER_SETTINGS}
    known |= {f"topic.{name}": f"topic.{name}" for name in TOPIC_SETTINGS}
    if not dot:
        # A key outside its section: compare it with the keys' last words.
        known |= {known_key.partition(".")[2]: known_key for known_key in tuple(known)}
    raise ConfigError(f"unknown key {key}: the nearest known one is {known[nearest(key, known)]}")


def _from_flags(flags: Mapping[str, str]) -> Iterator[_Given]:
    for key, text in flags.items():
        yield _Given(key, text, "command line")


def _from_environment(env: Mapping[str, str]) -> Iterator[_Given]:
    known = {variable_of(key): key for key in BROKER_SETTINGS}
    known |= {variable_of(f"topic.{name}"): f"topic.{name}" for name in TOPIC_SETTINGS}
    known |= ALIASES
    for variable, text in env.items():
        if not variable.startswith(PREFIX) or variable in CLIENT_VARIABLES:
            continue
        if variable not in known:
            likely = nearest(variable, known)
            raise ConfigError(f"environment: unknown variable {variable}: the nearest known one is {likely}")
        yield _Given(known[variable], text, f"environment {variable}")


def _from_file(file: Path | None) -> Iterator[_Given]:
    if file is None:
        return
    origin = f"file {file}"
    for section, table in _toml(file).items():
        if section == "topic" and isinstance(table, dict):
            yield from _from_topic_table(table, "topic", origin)
            continue
        if not isinstance(table, dict):
            _refuse_unknown(section, origin)
        if section not in SECTIONS:
            known = nearest(section, (*SECTIONS, "topic"))
            raise ConfigError(f"{origin}: unknown section [{section}]: the nearest known one is [{known}]")
        for name, value in table.items():
            key = f"{section}.{name}"
            _refuse_unknown(key, origin)
            yield _Given(key, _text(BROKER_SETTINGS[key], value, origin), origin)


def _from_topic_table(table: Mapping[str, object], path: str, origin: str) -> Iterator[_Given]:
    """TOML reads an unquoted `retention.ms` as a table in a table; both spellings mean the same here."""
    for name, value in table.items():
        key = f"{path}.{name}"
        if isinstance(value, dict):
            yield from _from_topic_table(value, key, origin)
            continue
        _refuse_unknown(key, origin)
        yield _Given(key, _text(TOPIC_SETTINGS[key.removeprefix("topic.")], value, origin), origin)


def _refuse_unknown(key: str, origin: str) -> None:
    try:
        _setting_of(key)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _text(setting: Setting, value: object, origin: str) -> str:
    """The text of a TOML value of the right type."""
    match setting.kind, value:
        case Kind.BOOLEAN, bool():
            return str(value).lower()
        case ((Kind.INT | Kind.SHORT | Kind.LONG | Kind.DOUBLE), int()) if not isinstance(value, bool):
            return str(value)
        case Kind.DOUBLE, float():
            return repr(value)
        case ((Kind.STRING | Kind.LIST), str()):
            return value
        case Kind.LIST, list() if all(isinstance(item, str) for item in value):
            return ",".join(value)
    noun = {
        Kind.BOOLEAN: "true or false",
        Kind.STRING: "a string",
        Kind.LIST: "a string or a list of strings",
    }
    wanted = noun.get(setting.kind, "a number" if setting.kind is Kind.DOUBLE else "a whole number")
    shown = "(hidden)" if setting.is_secret else repr(value)
    raise ConfigError(f"{origin}: {setting.name} = {shown}: has the wrong type, allowed is {wanted}")


def _toml(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        text = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"file {file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"file {file}: is not UTF-8 at byte {error.start}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The standard library says "at end of document" where the last line is meant.
        reason = str(error).replace("at end of document", f"at line {text.count(chr(10)) + 1}, the end")
        raise ConfigError(f"file {file}: is not TOML: {reason}") from None
