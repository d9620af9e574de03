"""Loops that go on, and tasks that outlive whoever waits for them."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from penstock.background_loop import run_forever, shielded


async def test_an_error_that_nobody_expected_is_told_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    steps = 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            raise ZeroDivisionError
        done.set()
        await asyncio.sleep(3600)

    loop = asyncio.ensure_future(run_forever("counting", step, pause_s=0))
    await done.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert told.exc_info is not None and told.exc_info[0] is ZeroDivisionError


async def test_an_error_that_nobody_waits_for_any_more_is_not_logged() -> None:
    async def fail() -> None:
        raise ValueError

    said: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context))
    waiting = shielded(loop.create_task(fail()))
    await asyncio.sleep(0.01)
    assert waiting.done()
    del waiting
    gc.collect()
    assert not said


async def test_a_task_goes_on_when_whoever_waits_is_cancelled() -> None:
    may_end = asyncio.Event()

    async def work() -> int:
        await may_end.wait()
        return 7

    async def wait() -> int:
        return await shielded(task)

    loop = asyncio.get_running_loop()
    task = loop.create_task(work())
    waiting = loop.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    may_end.set()
    assert await wait() == 7
