"""A clock that was ahead and has come back: nobody waits for it, and nothing comes twice."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.delay.timers import Saving
from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.records.records import Headers, Record, build_batch
from support.timers import (
    FEW_RUNS,
    HOUR_MS,
    OFTEN,
    Running,
    Shifted,
    send_records,
    started,
    until_delivered,
    until_pending,
)
from support.waiting import PATIENCE_S


def later(delay: str, **more: str) -> Headers:
    named = [(f"penstock-{name.replace('_', '-')}", text.encode()) for name, text in more.items()]
    return (("penstock-delay", delay.encode()), *named)


def remove_index(folder: Path) -> None:
    for file in [*folder.rglob("*.due"), *folder.rglob("*.ids"), *folder.rglob("timers.json")]:
        file.unlink()


async def deliver_ahead(running: Running, clock: Shifted, messages: Sequence[tuple[bytes, Headers]]) -> None:
    """Sends messages for the next hour, and sets the clock ahead by an hour until they are delivered; leaves it so."""
    await send_records(running.partition, [*messages, (b"last of the hour", later("59m"))])
    clock.ahead_ms = HOUR_MS
    await until_delivered(running, b"last of the hour")


@pytest.mark.parametrize("saving", [OFTEN, FEW_RUNS])
async def test_a_new_message_waits_for_its_delay_only(tmp_path: Path, saving: Saving) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock, saving=saving)
    await deliver_ahead(running, clock, [(b"%d" % number, later(f"{number + 1}m")) for number in range(40)])
    clock.ahead_ms = 0
    await send_records(running.partition, [(b"new", later("300")), (b"far", later("1h"))])
    await send_records(running.partition, [(b"newer", later("600"))])
    counted = await until_delivered(running, b"newer")
    assert counted == Counter([b"%d" % number for number in range(40)] + [b"last of the hour", b"new", b"newer"])
    assert running.delays.resets.count == 1
    await until_pending(running, 1)
    await running.close()


@pytest.mark.parametrize("saving", [OFTEN, FEW_RUNS])
@pytest.mark.parametrize("ending", ["stopped before it is back", "killed before it is back", "killed after it is back"])
async def test_a_restart_around_the_return_repeats_nothing(tmp_path: Path, saving: Saving, ending: str) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock, saving=saving)
    named = [(b"%d" % number, later(f"{number + 1}m", timer_id=f"N{number}")) for number in range(40)]
    await deliver_ahead(running, clock, named)
    if ending == "killed after it is back":
        clock.ahead_ms = 0
        await send_records(running.partition, [(b"between", later("200"))])
        await until_delivered(running, b"between")
    folder = tmp_path / "logs"
    if ending.startswith("killed"):
        # As it is on disk while the broker runs.
        folder = shutil.copytree(tmp_path / "logs", tmp_path / "killed")
    await running.close()
    clock.ahead_ms = 0
    for round_number in range(3):
        running = await started(folder, clock=clock, saving=saving)
        value = b"new %d" % round_number
        await send_records(running.partition, [(value, later("200"))])
        counted = await until_delivered(running, value)
        assert set(counted.values()) == {1}
        assert {b"%d" % number for number in range(40)} <= counted.keys()
        await until_pending(running, 0)
        await running.close()


async def test_an_index_that_is_made_anew_repeats_nothing(tmp_path: Path) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock)
    await deliver_ahead(running, clock, [(b"%d" % number, later(f"{number + 1}m")) for number in range(40)])
    clock.ahead_ms = 0
    await send_records(running.partition, [(b"new", later("200")), (b"waits", later("2h"))])
    await until_delivered(running, b"new")
    await running.close()
    remove_index(tmp_path)
    running = await started(tmp_path / "logs", clock=clock)
    await send_records(running.partition, [(b"end", later("200"))])
    counted = await until_delivered(running, b"end")
    assert len(counted) == 43 and set(counted.values()) == {1}
    await until_pending(running, 1)
    await running.close()


async def test_names_of_what_was_delivered_are_free_and_others_can_be_cancelled(tmp_path: Path) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock)
    await send_records(running.partition, [(b"kept", later("3h", timer_id="K")), (b"gone", later("3h", timer_id="G"))])
    await deliver_ahead(running, clock, [(b"first", later("30m", timer_id="F"))])
    clock.ahead_ms = 0
    cancel: Headers = (("penstock-cancel", b"G"),)
    await send_records(running.partition, [(b"", cancel), (b"second", later("30m", timer_id="F"))])
    await until_pending(running, 2)
    await send_records(running.partition, [(b"third", later("400", timer_id="F"))])
    counted = await until_delivered(running, b"third")
    assert counted == Counter([b"first", b"last of the hour", b"third"])
    await until_pending(running, 1)
    clock.ahead_ms = 4 * HOUR_MS
    counted = await until_delivered(running, b"kept")
    assert b"gone" not in counted and b"second" not in counted
    await running.close()


async def test_a_schedule_goes_on_by_the_clock_that_is_right(tmp_path: Path) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock)
    schedules: list[tuple[bytes, Headers]] = [
        (b"tick", (("penstock-schedule", b"every 1s"), ("penstock-timer-id", b"T"))),
        (b"rarely", (("penstock-schedule", b"every 1d"),)),
    ]
    await send_records(running.partition, schedules)
    await until_delivered(running, b"tick")
    await deliver_ahead(running, clock, [])
    clock.ahead_ms = 0
    back_ms = clock.now_ms()
    before = (await running.values()).count(b"tick")
    deadline = time.monotonic() + PATIENCE_S
    while (found := (await running.values()).count(b"tick")) < before + 3:
        assert time.monotonic() < deadline, f"{found - before} ticks since the clock is back"
        await asyncio.sleep(0.02)
    assert clock.now_ms() - back_ms < HOUR_MS
    assert (await running.values()).count(b"rarely") == 0
    # Its name is known where it is now: it can be cancelled.
    await send_records(running.partition, [(b"", (("penstock-cancel", b"T"),))])
    await until_pending(running, 1)
    await running.close()


async def test_a_transaction_that_is_open_across_the_return_is_not_held(tmp_path: Path) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock)
    await send_records(running.partition, [(b"plain", later("30m"))])
    deliver_at = b"%d" % (clock.now_ms() + 2000)
    batch = build_batch(
        [Record(None, b"in", (("penstock-deliver-at", deliver_at),), clock.now_ms())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
    )
    guard = running.partition.log.producers.guard(7)
    await running.partition.append(memoryview(batch), -1, guard=guard)
    clock.ahead_ms = HOUR_MS
    await until_delivered(running, b"plain")
    clock.ahead_ms = 0
    await running.partition.append_marker(7, 0, committed=True, coordinator_epoch=0)
    await until_delivered(running, b"in")
    await running.close()


async def test_cancelled_messages_alone_do_not_move_the_mark(tmp_path: Path) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock)
    await send_records(running.partition, [(b"never", later("30m", timer_id="N"))])
    await send_records(running.partition, [(b"", (("penstock-cancel", b"N"),))])
    clock.ahead_ms = HOUR_MS
    await send_records(running.partition, [(b"later", later("1h"))])
    clock.ahead_ms = 0
    await send_records(running.partition, [(b"new", later("200"))])
    assert await until_delivered(running, b"new") == Counter([b"new"])
    await running.close()


async def test_the_return_of_the_clock_is_told_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(int(time.time() * 1000))
    running = await started(tmp_path / "logs", clock=clock)
    await send_records(running.partition, [(b"early", later("30m"))])
    clock.jump(HOUR_MS)
    running.delays.clock_watch.look()
    await until_delivered(running, b"early")
    clock.jump(-HOUR_MS)
    running.delays.clock_watch.look()
    await send_records(running.partition, [(b"new", later("5s"))])
    clock.advance(4_999)
    running.delays.deliveries()[0].clock_jumped()
    await until_pending(running, 1)
    assert b"new" not in await running.values()
    clock.advance(1)
    running.delays.deliveries()[0].clock_jumped()
    assert await until_delivered(running, b"new") == Counter([b"early", b"new"])
    watch = running.delays.clock_watch
    assert (watch.ahead, watch.back, running.delays.resets.count) == (1, 1, 1)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text for text in warned if "set ahead by 3600.0 s" in text] != []
    assert [text for text in warned if "set back by 3600.0 s" in text] != []
    # The mark is the last message delivered, which was due half an hour from then.
    assert [text for text in warned if "1800.0 s ahead of this broker's clock" in text] != []
    await running.close()
