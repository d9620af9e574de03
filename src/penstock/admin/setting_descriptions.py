"""What the settings of topics mean and accept, for programs that show them to people. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.setting import Kind, Setting
from penstock.config.topic import TOPIC_SETTINGS


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """One setting, as Penstock's brokers know it; other brokers may have more."""

    name: str
    kind: str
    """`boolean`, `string`, `int`, `short`, `long`, `double` or `list`."""
    default: str
    doc: str
    allowed: str
    """What it accepts, as the end of a sentence."""
    choices: tuple[str, ...]
    low: float | None
    high: float | None


def topic_setting_descriptions() -> tuple[SettingDescription, ...]:
    """All settings of a topic, by name."""
    return tuple(_description(TOPIC_SETTINGS[name]) for name in sorted(TOPIC_SETTINGS))


def _description(setting: Setting) -> SettingDescription:
    return SettingDescription(
        name=setting.name,
        kind=Kind(setting.kind).name.lower(),
        default=setting.default,
        doc=setting.doc,
        allowed=setting.allowed(),
        choices=setting.choices,
        low=setting.low,
        high=setting.high,
    )
