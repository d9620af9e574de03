"""Settings as administrators see them: the value in force, where it comes from and what it hides.

The value of a topic setting comes from the first of these that has one (Kafka's order):

    the topic > this broker, set at run time > all brokers, set at run time > this broker's start > default

Every source is reported under the name it is set by there: `retention.ms` at the topic, `log.retention.ms` at
the brokers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from penstock.cluster.decisions.settings import DYNAMIC_SETTINGS, KAFKA_NAMES
from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.config.address import Address
from penstock.config.broker import BROKER_SETTINGS, SECTIONS, Config, spelled
from penstock.config.group import GROUP_SETTINGS
from penstock.config.loader import DEFAULT, Loaded
from penstock.config.setting import Kind, Setting
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING, TOPIC_SETTINGS
from penstock.config.view import VIEW_OF_SETTING, VIEW_TAGS_SETTING
from penstock.ids import BrokerId


class SettingSource(IntEnum):
    """Where a value was set; numbered as on the wire."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One of the places that a value is set at."""

    name: str
    value: str | None
    source: SettingSource


@dataclass(frozen=True, slots=True)
class Described:
    """One setting; the first origin is the one in force."""

    name: str
    value: str | None
    source: SettingSource
    read_only: bool
    kind: Kind
    documentation: str
    origins: tuple[SettingOrigin, ...]
    is_secret: bool = False
    """Its values are not told."""


class ConfigDescriptions:
    """Describes the settings of topics, of groups and of this broker."""

    def __init__(self, loaded: Loaded) -> None:
        self._config = loaded.config
        self._origins = loaded.origins
        self._broker = BrokerId(loaded.config.broker.id)

    def topic(self, image: MetadataImage, topic: TopicImage) -> list[Described]:
        """The settings of a topic, by name; of a view, those of its base, which can only be changed there."""
        overrides, base = topic.overrides, image.topics.get(topic.view_of or "")
        if base is not None:
            overrides = {**base.overrides, **overrides}
        described = []
        for name, setting in sorted(TOPIC_SETTINGS.items()):
            origins = tuple(self._broker_origins(image, setting))
            if name == STORAGE_SETTING:
                # A topic in shared storage says so itself; others are older than such a default.
                origins = tuple(origin for origin in origins if origin.value != SHARED_STORAGE)
            if name in overrides:
                origins = (SettingOrigin(name, _spelled(setting, overrides[name]), SettingSource.TOPIC), *origins)
            is_fixed = name in (VIEW_OF_SETTING, STORAGE_SETTING) or (
                topic.view_of is not None and name != VIEW_TAGS_SETTING
            )
            described.append(
                Described(name, origins[0].value, origins[0].source, is_fixed, setting.kind, setting.doc, origins)
            )
        return described

    def group(self, image: MetadataImage, group_id: str) -> list[Described]:
        """The settings of a group, by name, whether it exists or not."""
        own = image.settings_by_group.get(group_id, {})
        started_with = {
            name: value
            for key, value in _start_values(self._config, image, self._broker).items()
            if (name := KAFKA_NAMES.get(key)) is not None and self._origins[key] != DEFAULT
        }
        described = []
        for name, setting in sorted(GROUP_SETTINGS.items()):
            origins = tuple(_group_origins(own, started_with, setting))
            first = origins[0]
            described.append(Described(name, first.value, first.source, False, setting.kind, setting.doc, origins))
        return described

    def broker(self, image: MetadataImage) -> list[Described]:
        """All settings of this broker: those that can be changed while it runs, then those of its start."""
        described = []
        for name, setting in sorted(DYNAMIC_SETTINGS.items()):
            origins = tuple(self._broker_origins(image, setting))
            first = origins[0]
            described.append(Described(name, first.value, first.source, False, setting.kind, setting.doc, origins))
        values = _start_values(self._config, image, self._broker)
        for key, setting in BROKER_SETTINGS.items():
            name = KAFKA_NAMES.get(key, key)
            default = setting.default or None
            origins = (SettingOrigin(name, default, SettingSource.DEFAULT),)
            if self._origins[key] != DEFAULT:
                origins = (SettingOrigin(name, values[key], SettingSource.STATIC_BROKER), *origins)
            if setting.is_secret:
                origins = tuple(dataclasses.replace(origin, value=None) for origin in origins)
                values[key] = None
            source, is_secret = origins[0].source, setting.is_secret
            described.append(Described(name, values[key], source, True, setting.kind, setting.doc, origins, is_secret))
        return described

    def all_brokers(self, image: MetadataImage) -> list[Described]:
        """What has been set for every broker while they run, and nothing else."""
        described = []
        for name, text in sorted(image.broker_settings.items()):
            setting = DYNAMIC_SETTINGS[name]
            origin = SettingOrigin(name, _spelled(setting, text), SettingSource.DYNAMIC_DEFAULT_BROKER)
            described.append(Described(name, origin.value, origin.source, False, setting.kind, setting.doc, (origin,)))
        return described

    def _broker_origins(self, image: MetadataImage, setting: Setting) -> Iterator[SettingOrigin]:
        # A setting that Kafka has no broker-level name for goes by the same name everywhere.
        name = setting.synonym or setting.name
        for source, settings, key in (
            (SettingSource.DYNAMIC_BROKER, image.settings_by_broker.get(self._broker, {}), name),
            (SettingSource.DYNAMIC_DEFAULT_BROKER, image.broker_settings, name),
            (SettingSource.STATIC_BROKER, self._config.topic, setting.name),
        ):
            if key in settings:
                yield SettingOrigin(name, _spelled(setting, settings[key]), source)
        yield SettingOrigin(name, setting.default, SettingSource.DEFAULT)


def _group_origins(
    own: Mapping[str, str], started_with: Mapping[str, str | None], setting: Setting
) -> Iterator[SettingOrigin]:
    """`started_with` are the settings of the broker's start that have a name of Kafka's, by it."""
    if setting.name in own:
        yield SettingOrigin(setting.name, _spelled(setting, own[setting.name]), SettingSource.GROUP)
    name = setting.synonym or setting.name
    if name in started_with:
        yield SettingOrigin(name, started_with[name], SettingSource.STATIC_BROKER)
    yield SettingOrigin(name, setting.default, SettingSource.DEFAULT)


def _spelled(setting: Setting, text: str) -> str:
    """The value in its usual spelling: Kafka shows what it understood, not what was typed."""
    return text if setting.kind is Kind.STRING else spelled(setting.parse(text))


def _start_values(config: Config, image: MetadataImage, broker: BrokerId) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for section in SECTIONS:
        settings = getattr(config, section)
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            values[f"{section}.{field.name}"] = None if value is None else spelled(value)
    values["broker.listen"] = ",".join(map(str, config.broker.listen))
    if broker in image.brokers:
        # The addresses that the broker really advertises, with the port that it got for port 0.
        endpoints = image.brokers[broker].endpoints
        values["broker.advertised"] = ",".join(f"{name}://{Address(host, port)}" for name, host, port, _ in endpoints)
    return values
