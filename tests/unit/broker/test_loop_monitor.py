"""How late the event loop is."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.broker.metrics.loop_monitor import LoopMonitor
from penstock.clock import SystemClock


def test_a_delay_falls_into_the_bucket_whose_bound_it_does_not_pass() -> None:
    lag = LoopMonitor(SystemClock()).lag
    for late_s in (0.0, 0.001, 0.3, 60.0):
        lag.count(late_s)
    assert sum(lag.counts) == 4
    assert lag.counts[0] == 2
    assert lag.counts[list(lag.bounds).index(0.5)] == 1
    assert lag.counts[-1] == 1
    assert lag.total == pytest.approx(60.301)


async def test_a_loop_that_was_held_up_is_noticed_and_one_that_turns_is_told_of() -> None:
    turned = asyncio.Event()
    monitor = LoopMonitor(SystemClock(), turned.set)
    monitor.start()
    await turned.wait()
    turned.clear()
    late_s, busy_s = monitor.lag.total, monitor.busy.total
    time.sleep(0.4)  # noqa: ASYNC251 (this is the fault that is looked for)
    await turned.wait()
    monitor.close()
    # The timer was due a twentieth of a second after it was set, within the time that nothing ran.
    assert monitor.lag.total - late_s >= 0.3
    assert monitor.busy.total - busy_s < 0.3, "sleeping takes no CPU time"


async def test_a_loop_that_computed_was_busy() -> None:
    turned = asyncio.Event()
    monitor = LoopMonitor(SystemClock(), turned.set)
    monitor.start()
    await turned.wait()
    turned.clear()
    before = monitor.busy.total
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    await turned.wait()
    monitor.close()
    assert monitor.busy.total - before >= 0.2
