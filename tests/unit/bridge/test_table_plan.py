"""Plans of tables: slots, turns, and when a slot is over."""

from __future__ import annotations

from penstock.bridge.table_plan import DAY_MS, GRACE_MS, PlanKind, SlotState, TablePlan

NOW = 20_000 * DAY_MS + 5000


def state(first: int = 0, current: int = 0, turned_at_ms: int = NOW) -> SlotState:
    return SlotState(first_slot=first, current_slot=current, turned_at_ms=turned_at_ms)


def test_one_table_is_never_over() -> None:
    plan = TablePlan(PlanKind.SINGLE)
    assert plan.slot_of(NOW, state()) == 0
    assert not plan.is_over(0, state(), NOW * 2)
    assert plan.max_delay_ms is None


def test_a_row_goes_to_the_day_on_which_it_is_due() -> None:
    plan = TablePlan(PlanKind.DAYS)
    assert plan.slot_of(NOW, state()) == 20_000
    assert plan.slot_of(NOW + DAY_MS, state()) == 20_001
    assert plan.slot_of(NOW, state(first=20_002)) == 20_002, "a closed day gets no rows, whatever the clock says"
    assert plan.is_readable(20_000, NOW) and not plan.is_readable(20_001, NOW)


def test_a_day_is_over_an_hour_after_its_end() -> None:
    plan = TablePlan(PlanKind.DAYS)
    end_ms = 20_001 * DAY_MS + GRACE_MS
    assert not plan.is_over(20_000, state(), end_ms - 1)
    assert plan.is_over(20_000, state(), end_ms)


def test_the_next_turn_begins_after_a_period_and_when_the_slot_before_is_gone() -> None:
    plan = TablePlan(PlanKind.TURNS, 1000)
    now = state(first=3, current=4)
    assert plan.slot_of(NOW + 999, now) == 4
    assert plan.is_over(3, now, NOW) and not plan.is_over(4, now, NOW)
    assert not plan.is_turn_due([3, 4], now, NOW + 1000), "slot 3 is not empty yet"
    later = state(first=4, current=4)
    assert not plan.is_turn_due([4], later, NOW + 999)
    assert plan.is_turn_due([3, 4], later, NOW + 1000), "slot 3 is closed, and only has to be dropped"
    assert plan.max_delay_ms == 1000
