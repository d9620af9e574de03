"""Plans of tables: which slot, that is which table of a shard, a row goes to, and when a slot is over. Pure.

single   one table
days     a table for each day on which rows are due
turns    two tables in turn; what is stored in one period is due by the end of the next one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

DAY_MS = 86_400_000
GRACE_MS = 3_600_000
"""How long after its end a day is kept: the clocks of bridges differ."""


class PlanKind(Enum):
    SINGLE = "single"
    DAYS = "days"
    TURNS = "turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """Of a shard, as its row says."""

    first_slot: int
    """Slots below are closed for good."""
    current_slot: int
    turned_at_ms: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    kind: PlanKind
    period_ms: int = DAY_MS
    """Of `turns`."""

    @property
    def max_delay_ms(self) -> int | None:
        """The longest delay: a slot must be empty one period after its turn."""
        return self.period_ms if self.kind is PlanKind.TURNS else None

    def slot_of(self, due_ms: int, state: SlotState) -> int:
        match self.kind:
            case PlanKind.SINGLE:
                return 0
            case PlanKind.DAYS:
                return max(due_ms // DAY_MS, state.first_slot)
            case PlanKind.TURNS:
                return state.current_slot

    def is_readable(self, slot: int, now_ms: int) -> bool:
        """Whether something in the slot can be due."""
        return self.kind is not PlanKind.DAYS or slot * DAY_MS <= now_ms

    def is_over(self, slot: int, state: SlotState, now_ms: int) -> bool:
        """Whether nothing is inserted into the slot any more."""
        match self.kind:
            case PlanKind.SINGLE:
                return False
            case PlanKind.DAYS:
                return (slot + 1) * DAY_MS + GRACE_MS <= now_ms
            case PlanKind.TURNS:
                return slot < state.current_slot

    def is_turn_due(self, slots: Sequence[int], state: SlotState, now_ms: int) -> bool:
        """Whether the next slot becomes the current one: a period has passed, and the one before is gone."""
        is_alone = [slot for slot in slots if slot >= state.first_slot] == [state.current_slot]
        return self.kind is PlanKind.TURNS and is_alone and now_ms >= state.turned_at_ms + self.period_ms
