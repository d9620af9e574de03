"""Whether a broker is being emptied: its one setting, beside the defaults of topics, that changes while it runs."""

from __future__ import annotations

from penstock.config.setting import Kind, Setting

DRAINING = Setting(
    name="penstock.draining",
    kind=Kind.BOOLEAN,
    default="false",
    doc="Whether everything is moved off this broker, and nothing new is placed on it.",
)
