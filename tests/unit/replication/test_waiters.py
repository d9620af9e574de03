"""Appends that wait until all in-sync replicas have them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import ApiError, Code
from penstock.replication.waiters import Unacknowledged

LONG_MS = 60_000


async def test_appends_that_have_given_up_are_not_kept_while_the_high_watermark_stands_still() -> None:
    waiting = Unacknowledged()
    patient = [asyncio.create_task(waiting.wait(offset, LONG_MS)) for offset in (7, 3)]
    await asyncio.sleep(0)
    for _ in range(1000):
        with pytest.raises(ApiError) as caught:
            await waiting.wait(5, 0)
        assert caught.value.code is Code.REQUEST_TIMED_OUT
    gone = [asyncio.create_task(waiting.wait(5)) for _ in range(1000)]
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    await asyncio.wait(gone)
    for _ in range(3000):
        with pytest.raises(ApiError):
            await waiting.wait(5, 0)
    assert len(waiting) < 500
    waiting.pass_below(4)
    await patient[1]
    assert not patient[0].done()
    waiting.pass_below(8)
    await patient[0]
