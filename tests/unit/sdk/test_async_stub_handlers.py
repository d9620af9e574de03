"""Coroutines as handlers of an `AsyncStubClient`: what they may wait for, and the time that passes meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import penstock
from penstock.testing import AsyncStubClient

FOREVER_S = 60


def test_subscriptions_are_made_before_there_is_a_loop_and_work_on_one_after_the_other() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []

    @stub.subscribe("orders", group="g")
    async def handle(message: penstock.Message) -> None:
        got.append(message.value)

    async def use(text: str) -> None:
        await stub.send("orders", text)
        await stub.run()

    asyncio.run(use("a"))
    asyncio.run(use("b"))
    assert got == [b"a", b"b"]


async def test_handlers_run_on_the_loop_of_the_test_and_beside_each_other() -> None:
    stub, before = AsyncStubClient(), threading.active_count()
    loops, inside, together = [], 0, asyncio.Event()

    @stub.subscribe("orders", group="g", concurrency=8)
    async def handle(message: penstock.Message) -> None:
        nonlocal inside
        inside += 1
        if inside == 8:
            together.set()
        await asyncio.wait_for(together.wait(), FOREVER_S)
        loops.append(asyncio.get_running_loop())

    await asyncio.gather(*(stub.send("orders", f"{number}") for number in range(8)))
    await stub.run()
    assert loops == [asyncio.get_running_loop()] * 8
    assert threading.active_count() == before


async def test_no_more_handlers_run_at_a_time_than_the_subscription_wants() -> None:
    stub, inside, most = AsyncStubClient(), 0, 0

    @stub.subscribe("orders", group="g", concurrency=3)
    async def handle(message: penstock.Message) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    for number in range(20):
        await stub.send("orders", f"{number}")
    await stub.run()
    assert (most, inside) == (3, 0)


async def test_a_handler_may_wait_for_what_another_handler_does_with_its_message() -> None:
    stub, done = AsyncStubClient(), []
    shipped: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    @stub.subscribe("orders", group="g")
    async def order(message: penstock.Message) -> None:
        await stub.send("shipments", message.value)
        done.append(await asyncio.wait_for(shipped, FOREVER_S))

    @stub.subscribe("shipments", group="g2")
    async def ship(message: penstock.Message) -> None:
        shipped.set_result(message.value)

    await stub.send("orders", "x")
    await stub.run()
    assert done == [b"x"]


async def test_time_stands_still_while_a_handler_waits_for_something_else() -> None:
    stub, seen, outside = AsyncStubClient(), [], asyncio.Event()
    begin_ms = stub.clock.now_ms()

    @stub.subscribe("orders", group="g")
    async def handle(message: penstock.Message) -> None:
        await asyncio.wait_for(outside.wait(), FOREVER_S)
        seen.append(stub.clock.now_ms() - begin_ms)

    await stub.send("orders", "x")
    moving = asyncio.create_task(stub.advance("1h"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert stub.clock.now_ms() == begin_ms
    outside.set()
    await moving
    assert seen == [0]
    assert stub.clock.now_ms() == begin_ms + 3_600_000


async def test_a_handler_that_lets_its_deadline_pass_is_cancelled_and_its_message_comes_again() -> None:
    stub = AsyncStubClient()
    seen: list[str | None] = []

    @stub.subscribe("orders", group="g", deadline="5m", retries=penstock.Retries(first="1m"))
    async def handle(message: penstock.Message) -> None:
        if message.attempt == 1:
            try:
                await stub.advance("6m")
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
        seen.append(message.error)

    await stub.send("orders", "x")
    await stub.advance("10m")
    assert seen == ["cancelled", "DeadlineError: not settled within 300 s"]


async def test_a_deadline_can_be_moved() -> None:
    stub, attempts = AsyncStubClient(), []

    @stub.subscribe("orders", group="g", deadline="5m")
    async def handle(message: penstock.Message) -> None:
        for _ in range(3):
            await stub.advance("4m")
            message.extend("5m")
        attempts.append(message.attempt)

    await stub.send("orders", "x")
    await stub.advance("1h")
    assert attempts == [1]


async def test_handlers_that_let_time_pass_do_so_beside_each_other() -> None:
    stub, at = AsyncStubClient(), []
    begin_ms = stub.clock.now_ms()

    @stub.subscribe("orders", group="g", concurrency=3)
    async def handle(message: penstock.Message) -> None:
        await stub.advance("1m")
        at.append((stub.clock.now_ms() - begin_ms) // 1000)

    for number in range(6):
        await stub.send("orders", f"{number}")
    await stub.advance("2m")
    assert at == [60, 60, 60, 120, 120, 120]


async def test_stopping_waits_for_the_handler_that_runs_and_calls_no_other() -> None:
    stub, got, go_on = AsyncStubClient(), [], asyncio.Event()

    @stub.subscribe("orders", group="g", concurrency=1)
    async def handle(message: penstock.Message) -> None:
        await asyncio.wait_for(go_on.wait(), FOREVER_S)
        got.append(message.value)

    await stub.send("orders", "a")
    await stub.send("orders", "b")
    running = asyncio.create_task(stub.run())
    for _ in range(5):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(stub.stop())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(running, stopping)
    assert got == [b"a"]
    await stub.start()
    await stub.run()
    assert got == [b"a", b"b"]


async def test_requests_that_are_made_at_once_get_their_own_answers() -> None:
    stub = AsyncStubClient()

    @stub.subscribe("prices", group="g", concurrency=2)
    async def answer(message: penstock.Message) -> None:
        await stub.advance("10s" if message.value == b"slow" else "1s")
        await message.reply(b"price of " + (message.value or b""))

    answers = await asyncio.gather(stub.request("prices", "slow"), stub.request("prices", "quick"))
    assert [message.value for message in answers] == [b"price of slow", b"price of quick"]


async def test_a_handler_may_ask_and_its_own_tasks_may_too() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []

    @stub.subscribe("orders", group="g")
    async def order(message: penstock.Message) -> None:
        prices = await asyncio.gather(*(stub.request("prices", each) for each in ("a", "b")))
        got.extend(price.value for price in prices)

    @stub.subscribe("prices", group="g2")
    async def answer(message: penstock.Message) -> None:
        await stub.send("gateway", message.reply_token, delay="1s")

    @stub.subscribe("gateway", group="g3")
    async def call_back(message: penstock.Message) -> None:
        await stub.reply((message.value or b"").decode(), "5")

    await stub.send("orders", "x")
    await stub.advance("1m")
    assert got == [b"5", b"5"]


async def test_who_waits_for_handlers_may_give_up_and_come_back() -> None:
    stub, got, go_on = AsyncStubClient(), [], asyncio.Event()

    @stub.subscribe("orders", group="g")
    async def handle(message: penstock.Message) -> None:
        await asyncio.wait_for(go_on.wait(), FOREVER_S)
        got.append(message.value)

    await stub.send("orders", "x")
    running = asyncio.create_task(stub.run())
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
    await stub.run()
    assert got == [b"x"]


async def test_a_handler_may_fail_the_test() -> None:
    stub = AsyncStubClient()

    @stub.subscribe("orders", group="g")
    async def handle(message: penstock.Message) -> None:
        pytest.fail("this must not be called")

    await stub.send("orders", "x")
    with pytest.raises(pytest.fail.Exception, match="must not"):
        await stub.run()
