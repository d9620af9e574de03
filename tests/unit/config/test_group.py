"""Settings of groups."""

from __future__ import annotations

import pytest

from penstock.config.group import GROUP_SETTINGS, group_config
from penstock.errors import ConfigError


def test_a_group_without_settings_has_the_defaults() -> None:
    config = group_config({})
    assert (config.is_paused, config.paused_topics, config.offset_initial) == (False, frozenset(), "client")
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (None, None)


def test_settings_are_read() -> None:
    config = group_config(
        {
            "penstock.paused": "TRUE",
            "penstock.paused.topics": "a, b",
            "penstock.offset.initial": "latest",
            "consumer.session.timeout.ms": "30000",
            "consumer.heartbeat.interval.ms": "3000",
        }
    )
    assert (config.is_paused, config.paused_topics, config.offset_initial) == (True, frozenset("ab"), "latest")
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (30_000, 3_000)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("penstock.pause", "true", "the nearest is penstock.paused"),
        ("penstock.paused", "yes", "true or false"),
        ("penstock.offset.initial", "none", "client, earliest, latest"),
        ("consumer.session.timeout.ms", "999", "from 1000 to 1800000"),
        ("consumer.session.timeout.ms", "4000", "more than consumer.heartbeat.interval.ms, which is 5000"),
        ("consumer.heartbeat.interval.ms", "45000", "less than consumer.session.timeout.ms, which is 45000"),
    ],
)
def test_what_is_refused_says_what_is_allowed(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        group_config({name: value})


def test_every_default_is_allowed() -> None:
    assert group_config({name: setting.default for name, setting in GROUP_SETTINGS.items()})
