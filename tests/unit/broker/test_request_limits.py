"""The bound on requests being handled."""

from __future__ import annotations

import asyncio

from penstock.broker.requests.request_limits import RequestLimit


async def test_no_more_requests_are_handled_at_once_than_there_are_turns() -> None:
    turns, at_once, most = RequestLimit(2), 0, 0

    async def request() -> None:
        nonlocal at_once, most
        async with turns:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1

    await asyncio.gather(*(request() for _ in range(10)))
    assert most == 2


async def test_a_turn_of_a_request_that_went_away_is_passed_on() -> None:
    turns = RequestLimit(1)
    await turns.__aenter__()

    async def request() -> str:
        async with turns:
            return "handled"

    gone, patient = asyncio.create_task(request()), asyncio.create_task(request())
    await asyncio.sleep(0)
    gone.cancel()
    await turns.__aexit__()
    assert await patient == "handled"
    async with asyncio.timeout(5), turns:
        pass
