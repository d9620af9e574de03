"""Loops that go on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.endless import endless


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

    loop = asyncio.ensure_future(endless("counting", step, pause_s=0))
    await done.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert told.exc_info is not None and told.exc_info[0] is ZeroDivisionError
