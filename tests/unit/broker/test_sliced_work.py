"""Long requests in slices: who has a turn when, how long an answer may become, and who waits for a share."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.requests import sliced_work as working
from penstock.broker.requests.request_limits import RequestLimit
from penstock.broker.requests.sliced_work import Shares, Slices, Work
from penstock.errors import ProtocolError


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice is over at once."""
    monkeypatch.setattr(working, "SLICE_S", 0.0)


@pytest.mark.usefixtures("impatient")
async def test_one_turn_of_the_loop_does_one_slice_of_one_request() -> None:
    slices, done, most_in_a_turn, in_this_turn = Slices(), 0, 0, 0

    async def long_request() -> None:
        nonlocal done, in_this_turn
        async for _ in Work(slices).over(range(20)):
            in_this_turn += 1
        done += 1

    requests = [asyncio.ensure_future(long_request()) for _ in range(10)]
    await asyncio.sleep(0)  # each begins
    while done < len(requests):
        in_this_turn = 0
        await asyncio.sleep(0)
        most_in_a_turn = max(most_in_a_turn, in_this_turn)
    assert most_in_a_turn == 1


@pytest.mark.usefixtures("impatient")
async def test_requests_that_take_long_take_turns() -> None:
    slices, order = Slices(), list[str]()
    note = order.append

    async def long_request(name: str) -> None:
        async for _ in Work(slices).over(range(3)):
            note(name)

    await asyncio.gather(long_request("a"), long_request("b"))
    assert order == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.usefixtures("impatient")
async def test_a_request_that_is_given_up_does_not_stop_the_others() -> None:
    slices, seen = Slices(), list[tuple[str, int]]()
    note = seen.append

    async def long_request(name: str) -> None:
        async for item in Work(slices).over(range(5)):
            note((name, item))

    given_up, other = asyncio.ensure_future(long_request("a")), asyncio.ensure_future(long_request("b"))
    await asyncio.sleep(0)
    given_up.cancel()
    await other
    assert ("b", 4) in seen and ("a", 4) not in seen


async def test_a_short_request_does_not_pause() -> None:
    work = Work(Slices())
    steps = work.over(range(3)).__anext__().__await__()
    with pytest.raises(StopIteration):
        steps.send(None)
    assert not work.has_paused


async def test_an_answer_that_becomes_too_long_is_given_up() -> None:
    work = Work(Slices(), max_entries=5000)
    await work.grow(5000)
    with pytest.raises(ProtocolError, match=r"limits\.answer_entries"):
        await work.grow(1)


async def test_long_answers_wait_for_each_other_and_short_ones_do_not() -> None:
    slices, turns = Slices(), RequestLimit(1)
    first, second, short = (Work(slices, 10_000, turns) for _ in range(3))
    await first.grow(2000)
    await short.grow(10)
    waiting = asyncio.ensure_future(second.grow(2000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await first.close()
    await waiting
    assert second.is_long
    await second.close()
    await short.close()


async def test_shares_are_given_in_order_and_never_more_than_there_are() -> None:
    shares, order = Shares(100), list[str]()

    async def use(name: str, count: int) -> None:
        await shares.take(count)
        order.append(name)

    await shares.take(60)
    waiting = [asyncio.ensure_future(use(name, count)) for name, count in (("large", 90), ("small", 10))]
    await asyncio.sleep(0)
    assert order == []
    shares.give_back(60)
    await asyncio.gather(*waiting)
    assert order == ["large", "small"] and shares.used == 100


async def test_more_than_there_is_is_given_to_one_that_is_alone() -> None:
    shares = Shares(100)
    await shares.take(500)
    waiting = asyncio.ensure_future(shares.take(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    shares.give_back(500)
    await waiting


async def test_one_that_gives_up_waiting_does_not_hold_up_those_behind() -> None:
    shares = Shares(100)
    await shares.take(50)
    large, small = asyncio.ensure_future(shares.take(100)), asyncio.ensure_future(shares.take(10))
    await asyncio.sleep(0)
    large.cancel()
    await small
    assert shares.used == 60


async def test_a_share_that_was_granted_to_one_that_has_gone_comes_back() -> None:
    shares = Shares(100)
    await shares.take(100)
    waiting = asyncio.ensure_future(shares.take(100))
    await asyncio.sleep(0)
    shares.give_back(100)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert shares.used == 0
