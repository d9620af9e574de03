"""The settings of a database group, which is a configuration resource of its own type; Kafka has no word for it.

A group exists while it has `servers`. What brokers tell of a group beside its settings can only be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.config.setting import Kind, Setting

DATABASE_RESOURCE = 100
"""The number of the resource type on the wire, far away from Kafka's own."""

SERVERS = Setting(
    name="servers",
    kind=Kind.STRING,
    default="",
    is_secret=True,
    doc="Addresses of the primary and its replicas with passwords, separated by spaces; the first is the primary of a "
    "new group. Without servers there is no group.",
)
PRIMARY = Setting(
    name="primary",
    kind=Kind.STRING,
    default="",
    doc="HOST:PORT of the server that takes writes; for SQLite, its file.",
)
GROUP_DRAINING = Setting(
    name="draining",
    kind=Kind.BOOLEAN,
    default="false",
    doc="Whether all partitions are moved to other groups, and no new ones are placed in this one.",
)

DATABASE_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {setting.name: setting for setting in (SERVERS, PRIMARY, GROUP_DRAINING)}
)

# What can only be read.
GENERATION = "generation"
PARTITIONS = "partitions"
LEAVING = "partitions.leaving"
ARRIVING = "partitions.arriving"


def server_entry(number: int, what: str) -> str:
    """The name of an entry about a server: ADDRESS, ROLE, STATE, LAG_MS or PROBLEM."""
    return f"server.{number}.{what}"


ADDRESS = "address"
ROLE = "role"
STATE = "state"
LAG_MS = "lag_ms"
PROBLEM = "problem"
