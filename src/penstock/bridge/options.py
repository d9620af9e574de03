"""The options of a bridge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.bridge.table_plan import PlanKind, TablePlan
from penstock.config.database_address import DatabaseAddress
from penstock.sdk.topic_names import dead_topic

Delivery = Literal["exactly-once", "at-least-once"]

MOST_DATABASES = 64
MOST_TABLES = 256
MOST_BATCH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOptions:
    """For both modes."""

    topics: tuple[str, ...]
    group: str
    target: str | None = None
    delivery: Delivery = "exactly-once"
    header_prefix: str = "penstock-"
    batch: int = 1000
    """The most messages a transaction, of a database and of the cluster."""
    batch_bytes: int = 8 << 20

    @property
    def dead_topic(self) -> str:
        return dead_topic(self.group)

    @property
    def is_transactional(self) -> bool:
        return self.delivery == "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelOptions(BridgeOptions):
    """Fixed levels."""

    levels_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(BridgeOptions):
    """Any delay, by a database."""

    databases: tuple[DatabaseAddress, ...]
    tables: int = 1
    plan: TablePlan = field(default_factory=lambda: TablePlan(PlanKind.SINGLE))
    by_topic: bool = False
    max_delay_ms: int | None = None
    lease_ms: int = 10_000
    poll_ms: int = 100
    """How often a sender looks for rows that others have inserted."""

    @property
    def progress_topic(self) -> str:
        return f"{self.group}.progress"

    @property
    def longest_delay_ms(self) -> int | None:
        bounds = [bound for bound in (self.max_delay_ms, self.plan.max_delay_ms) if bound is not None]
        return min(bounds, default=None)
