"""Rows that wait in a database: stored once, read in order, settled once, and their slots; all kinds of databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from penstock.bridge.delay_database import DelayDatabase, DueRow, PartitionBatch, PositionBehind
from penstock.bridge.intake_message import Cancel, Entry, Waiting, timer_key
from penstock.bridge.leases import holds, release, renew
from penstock.bridge.progress import RowKey
from penstock.bridge.table_plan import DAY_MS, GRACE_MS, PlanKind, TablePlan
from penstock.bridge.tables import Layout
from penstock.clock import ManualClock
from penstock.config.database_address import DatabaseAddress
from penstock.errors import ConfigError
from penstock.ids import TopicPartition
from penstock.sql.database import Connection, Database
from support.stores import DATABASES, NewDatabase
from support.waiting import PATIENCE_S

Open = Callable[..., Awaitable[DelayDatabase]]
START = (0, 0)
PARTITION = TopicPartition("delays", 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=DATABASES)
async def open_delays(
    request: pytest.FixtureRequest, new_database: NewDatabase, clock: ManualClock
) -> AsyncIterator[Open]:
    address = DatabaseAddress.parse(new_database(request.param))
    opened: list[Database] = []

    async def open_one(kind: PlanKind = PlanKind.SINGLE, tables: int = 1, period_ms: int = DAY_MS) -> DelayDatabase:
        opened.append(await Database.open(address, connections=2))
        layout = Layout(databases=1, index=0, tables=tables, plan=kind.value, period_ms=period_ms, by_topic=False)
        delays = DelayDatabase(opened[-1], "orders", layout, TablePlan(kind, period_ms), clock)
        await delays.open()
        return delays

    yield open_one
    for database in opened:
        await database.close()


def waiting(offset: int, due_ms: int, timer: bytes | None = None, schedule: str | None = None) -> Waiting:
    return Waiting(
        offset=offset,
        topic="orders",
        partition=None,
        key=b"k",
        value=b"%d" % offset,
        headers=(("h", b"\xff"),),
        deliver_at_ms=due_ms,
        timer_key=None if timer is None else timer_key("orders", timer),
        schedule=schedule,
    )


def cancel(offset: int, timer: bytes) -> Cancel:
    return Cancel(offset=offset, topic="orders", timer_key=timer_key("orders", timer))


def batch(*entries: Entry, start: int | None = None, end: int | None = None, source: str = "id/0") -> PartitionBatch:
    return PartitionBatch(
        topic_partition=PARTITION,
        source=source,
        start=entries[0].offset if start is None else start,
        end=entries[-1].offset + 1 if end is None else end,
        entries=[(0, entry) for entry in entries],
    )


async def due(
    delays: DelayDatabase, now_ms: int, after: tuple[int, int] = START, rows: int = 100, size: int = 1 << 20
) -> list[DueRow]:
    return await delays.read_due(0, after, now_ms, rows, size)


def offsets(rows: Sequence[DueRow]) -> list[int]:
    return [int(row.value or b"") for row in rows]


async def test_a_batch_that_comes_again_is_stored_once(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(), clock.now_ms()
    first = batch(waiting(0, now + 1), waiting(1, now + 1))
    assert (await delays.store([first])).inserted == 2
    again = await delays.store([batch(waiting(0, now + 1), waiting(1, now + 1), waiting(2, now + 1))])
    assert (again.inserted, again.repeated) == (1, 2)
    # A member that wakes up late.
    assert (await delays.store([first])).inserted == 0
    rows = await due(delays, now + 1)
    assert offsets(rows) == [0, 1, 2]
    assert (rows[0].headers, rows[0].message_key, rows[0].deliver_at_ms) == ((("h", b"\xff"),), b"k", now + 1)
    assert await delays.pending() == {0: 3}


async def test_a_database_that_is_behind_says_from_where_to_read_again(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(), clock.now_ms()
    await delays.store([batch(waiting(5, now), start=3)])
    with pytest.raises(PositionBehind) as behind:
        await delays.store([batch(waiting(9, now))])
    assert (behind.value.topic_partition, behind.value.offset) == (PARTITION, 6)
    # Nobody has to have used the offsets between.
    assert (await delays.store([batch(waiting(9, now), start=6)])).inserted == 1
    # A topic that was deleted and made anew has another id.
    assert (await delays.store([batch(waiting(0, now), source="other/0")])).inserted == 1


async def test_ties_are_read_page_by_page_without_a_gap_or_a_repeat(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(), clock.now_ms()
    await delays.store([batch(*(waiting(offset, now + 5) for offset in range(10)), waiting(10, now + 4))])
    assert await due(delays, now + 3) == []
    assert await delays.next_due_ms(0, now) == now + 4
    found: list[int] = []
    after = START
    while rows := await due(delays, now + 5, after, 3):
        found += offsets(rows)
        after = (rows[-1].key.due_ms, rows[-1].key.seq)
    assert found == [10, *range(10)]


async def test_a_page_is_bounded_by_bytes_and_has_one_row_at_least(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(), clock.now_ms()
    await delays.store([batch(*(waiting(offset, now) for offset in range(4)))])
    assert offsets(await due(delays, now, size=1)) == [0]
    assert offsets(await due(delays, now, size=3 * waiting(0, now).size)) == [0, 1, 2]


async def test_rows_are_settled_once(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(), clock.now_ms()
    await delays.store([batch(*(waiting(offset, now) for offset in range(3)))])
    keys = [row.key for row in await due(delays, now)][:2]
    assert await delays.settle(0, keys, has_schedules=True) == 2
    assert await delays.settle(0, keys, has_schedules=True) == 0
    assert await delays.settle(0, [RowKey(77, now, 1)], has_schedules=True) == 0, "a slot that is gone"
    assert offsets(await due(delays, now)) == [2]
    assert await delays.pending() == {0: 1}


async def test_timers_are_replaced_and_cancelled_in_and_across_batches(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(PlanKind.DAYS), clock.now_ms()
    await delays.store([batch(waiting(0, now, b"a"), waiting(1, now + DAY_MS, b"b"), waiting(2, now, b"c"))])
    stored = await delays.store(
        [batch(cancel(3, b"a"), waiting(4, now, b"b"), waiting(5, now, b"d"), cancel(6, b"d"), waiting(7, now, b"d"))]
    )
    assert (stored.inserted, stored.removed) == (2, 3)
    assert offsets(await due(delays, now + 2 * DAY_MS)) == [2, 4, 7]
    assert await delays.pending() == {0: 3}


async def test_a_schedule_goes_on_unless_it_was_cancelled_meanwhile(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(), clock.now_ms()
    await delays.store([batch(waiting(0, now, b"a", "every 5s"), waiting(1, now, b"b", "every 5s"))])
    keys = [row.key for row in await due(delays, now)]
    await delays.store([batch(cancel(2, b"b"))])
    await delays.settle(0, keys, has_schedules=True)
    await delays.settle(0, keys, has_schedules=True)
    rows = await due(delays, now + 60_000)
    assert [(row.key.due_ms, row.deliver_at_ms, row.value) for row in rows] == [(now + 5000, now + 5000, b"0")]
    assert await delays.pending() == {0: 1}
    await delays.store([batch(cancel(3, b"a"))])
    assert await delays.pending() == {0: 0}


async def test_a_day_that_is_over_is_dropped_when_it_is_empty(open_delays: Open, clock: ManualClock) -> None:
    delays, now = await open_delays(PlanKind.DAYS), clock.now_ms()
    await delays.store([batch(waiting(0, now), waiting(1, now + 2 * DAY_MS))])
    clock.advance(DAY_MS + GRACE_MS)
    await delays.tend_slots(0)
    (row,) = await due(delays, clock.now_ms())
    await delays.settle(0, [row.key], has_schedules=False)
    await delays.tend_slots(0)
    found = await delays.database.run(
        lambda connection: [
            bool(connection.execute(connection.dialect.find_table, delays.names.rows(0, slot)))
            for slot in (now // DAY_MS, now // DAY_MS + 2)
        ],
        is_read_only=True,
    )
    assert found == [False, True]
    # A bridge whose clock is behind uses the oldest day that is open.
    clock.jump(-2 * DAY_MS)
    await delays.store([batch(waiting(2, 0))])
    clock.jump(2 * DAY_MS)
    assert offsets(await due(delays, clock.now_ms() + DAY_MS)) == [2, 1]


async def test_two_tables_are_used_in_turn_and_a_full_one_is_never_dropped(
    open_delays: Open, clock: ManualClock
) -> None:
    delays, now = await open_delays(PlanKind.TURNS, period_ms=1000), clock.now_ms()
    await delays.store([batch(waiting(0, now + 900))])
    clock.advance(1000)
    await delays.tend_slots(0)
    await delays.store([batch(waiting(1, clock.now_ms() + 900))])
    clock.advance(1000)
    # Slot 0 has a row that nobody has sent: no turn.
    await delays.tend_slots(0)
    await delays.store([batch(waiting(2, clock.now_ms()))])
    rows = await due(delays, clock.now_ms())
    assert [(row.key.slot, row.value) for row in rows] == [(0, b"0"), (1, b"1"), (1, b"2")]
    await delays.settle(0, [rows[0].key], has_schedules=False)
    await delays.tend_slots(0)
    await delays.store([batch(waiting(3, clock.now_ms()))])
    assert [row.key.slot for row in await due(delays, clock.now_ms())] == [1, 1, 2]


async def test_another_layout_is_refused(open_delays: Open) -> None:
    await open_delays(tables=2)
    with pytest.raises(ConfigError, match="were made with other settings"):
        await open_delays(tables=3)


async def test_members_share_shards_and_a_lease_that_was_lost_is_noticed(open_delays: Open) -> None:
    delays = await open_delays(tables=3)
    names, run = delays.names, delays.database.run
    alone = await run(lambda connection: renew(connection, names, "a", [], 60_000, 0))
    assert (alone.held, alone.surplus) == ({0: 1, 1: 1, 2: 1}, [])
    other = await run(lambda connection: renew(connection, names, "b", [], 60_000, 0))
    assert other.held == {}
    again = await run(lambda connection: renew(connection, names, "a", [0, 1, 2], 60_000, 0))
    assert (again.held, again.surplus) == ({0: 1, 1: 1, 2: 1}, [1])
    await run(lambda connection: release(connection, names, "a", [1], leave=False))
    other = await run(lambda connection: renew(connection, names, "b", [], 60_000, 0))
    assert other.held == {1: 2}
    assert not await run(lambda connection: holds(connection, names, "a", 1, 1))
    assert await run(lambda connection: holds(connection, names, "b", 1, 2))
    await run(lambda connection: release(connection, names, "b", [1], leave=True))
    alone = await run(lambda connection: renew(connection, names, "a", [0, 2], 60_000, 0))
    assert alone.held == {0: 1, 1: 3, 2: 1}


async def test_a_member_that_is_gone_is_missed_in_time_although_the_clock_was_set_back(open_delays: Open) -> None:
    delays = await open_delays(tables=2)
    names, run, lease_ms = delays.names, delays.database.run, 200
    held = await run(lambda connection: renew(connection, names, "a", [], lease_ms, 0))
    assert held.held == {0: 1, 1: 1}

    def set_ahead(connection: Connection) -> None:
        """What it has renewed by a clock that was an hour ahead."""
        for table in (names.members, names.leases):
            connection.change(f"UPDATE {connection.dialect.quoted(table)} SET until = until + 3600000")

    await run(set_ahead)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            taken = await run(lambda connection: renew(connection, names, "b", [], lease_ms, 0))
            if taken.held:
                break
            await asyncio.sleep(0.02)
    assert taken.held == {0: 2, 1: 2}
