"""A group's settings: Kafka's under Kafka's names, and ours, which Kafka has no word for, under `penstock.`"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.config.setting import Kind, Setting, nearest
from penstock.errors import ConfigError

CLIENT = "client"
EARLIEST = "earliest"
LATEST = "latest"

RESET_MARK = "penstock-reset"
"""The metadata of every partition of an offset commit that is meant as a reset: brokers fence the group's members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The values of one group; `GROUP_SETTINGS` says what each means."""

    is_paused: bool
    paused_topics: frozenset[str]
    offset_initial: str
    session_timeout_ms: int | None
    """None: the broker's."""
    heartbeat_interval_ms: int | None
    """None: the broker's."""


PAUSED = Setting(
    name="penstock.paused",
    kind=Kind.BOOLEAN,
    default="false",
    doc="Whether the group's members stay joined and receive nothing.",
)
PAUSED_TOPICS = Setting(
    name="penstock.paused.topics",
    kind=Kind.LIST,
    default="",
    doc="Topics of which the group's members receive nothing.",
)
OFFSET_INITIAL = Setting(
    name="penstock.offset.initial",
    kind=Kind.STRING,
    default=CLIENT,
    choices=(CLIENT, EARLIEST, LATEST),
    doc="Where the group begins in a partition in which it has no committed offset; client: as its clients say.",
)
SESSION_TIMEOUT = Setting(
    name="consumer.session.timeout.ms",
    kind=Kind.INT,
    default="45000",
    low=1_000,
    high=1_800_000,
    doc="Milliseconds after which a member of the new protocol that is not heard from is out.",
    synonym="group.consumer.session.timeout.ms",
)
HEARTBEAT_INTERVAL = Setting(
    name="consumer.heartbeat.interval.ms",
    kind=Kind.INT,
    default="5000",
    low=100,
    high=600_000,
    doc="Milliseconds between the heartbeats of a member of the new protocol.",
    synonym="group.consumer.heartbeat.interval.ms",
)

GROUP_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {setting.name: setting for setting in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, OFFSET_INITIAL, PAUSED, PAUSED_TOPICS)}
)


def group_config(settings: Mapping[str, str]) -> GroupConfig:
    """The values in force. Raises ConfigError naming the key, its value and what is allowed."""
    for name in settings:
        if name not in GROUP_SETTINGS:
            known = nearest(name, GROUP_SETTINGS)
            raise ConfigError(f"{name}: there is no such group setting; the nearest is {known}")

    def value(setting: Setting) -> Any:
        return setting.parse(settings.get(setting.name, setting.default))

    session_ms, heartbeat_ms = value(SESSION_TIMEOUT), value(HEARTBEAT_INTERVAL)
    if HEARTBEAT_INTERVAL.name in settings and heartbeat_ms >= session_ms:
        raise HEARTBEAT_INTERVAL.refusal(str(heartbeat_ms), f"less than {SESSION_TIMEOUT.name}, which is {session_ms}")
    if SESSION_TIMEOUT.name in settings and session_ms <= heartbeat_ms:
        raise SESSION_TIMEOUT.refusal(str(session_ms), f"more than {HEARTBEAT_INTERVAL.name}, which is {heartbeat_ms}")
    return GroupConfig(
        is_paused=value(PAUSED),
        paused_topics=frozenset(value(PAUSED_TOPICS)),
        offset_initial=value(OFFSET_INITIAL),
        session_timeout_ms=session_ms if SESSION_TIMEOUT.name in settings else None,
        heartbeat_interval_ms=heartbeat_ms if HEARTBEAT_INTERVAL.name in settings else None,
    )
