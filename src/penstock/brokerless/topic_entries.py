"""Topics of a store as its catalogue has them: partitions and settings, checked when a topic is created. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.brokerless.delay_request import delay_rules
from penstock.config.topic import topic_config
from penstock.config.view import VIEW_OF_SETTING
from penstock.delay.delay_headers import DelayRules
from penstock.errors import ConfigError
from penstock.sdk.backend import AS_BACKEND_SAYS
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.send.outgoing_message import check_topic

MAX_PARTITIONS = 1_000
"""The largest number of partitions of a topic."""
DEFAULT_PARTITIONS = 4
"""What a topic gets that is created without a number."""
MAX_MESSAGE_SETTING = "max.message.bytes"
DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic as it was created. Topics do not change."""

    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def view_of(self) -> str | None:
        """The topic that this one is a view of."""
        return self.settings.get(VIEW_OF_SETTING)

    @property
    def max_message_bytes(self) -> int:
        return self.number(MAX_MESSAGE_SETTING, DEFAULT_MAX_MESSAGE_BYTES)

    @property
    def delay_rules(self) -> DelayRules:
        return delay_rules(self.settings)

    def number(self, setting: str, default: int) -> int:
        return int(self.settings.get(setting, default))


def new_topic(
    topic: str, partitions: int, config: Mapping[str, str] | None, numbers: Mapping[str, int], default_partitions: int
) -> TopicEntry:
    """What a topic is created with; `numbers` has the store's own settings with their least values.

    Raises `InvalidInputError`.
    """
    check_topic(topic)
    settings = dict(config or {})
    if partitions == AS_BACKEND_SAYS:
        partitions = default_partitions
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInputError(
            f"could not create topic {topic}: partitions must be 1 to {MAX_PARTITIONS}, not {partitions}"
        )
    for name, least in numbers.items():
        if name in settings:
            _check_number(topic, name, settings[name], least)
    try:
        # A broker's settings are accepted, so that a program can move here unchanged; an unknown name is refused.
        topic_config({name: text for name, text in settings.items() if name not in numbers})
    except ConfigError as error:
        raise InvalidInputError(f"could not create topic {topic}: {error}") from None
    return TopicEntry(partitions, settings)


def _check_number(topic: str, name: str, text: str, least: int) -> None:
    try:
        is_valid = int(text) >= least
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidInputError(
            f"could not create topic {topic}: {name} must be a whole number from {least} on, not {text!r}"
        )
