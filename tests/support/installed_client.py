"""Run by an interpreter in which only the package is installed: the SDK sends, retries and answers, with threads, with
asyncio, and without a broker.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import penstock
import penstock.aio
from penstock.testing import StubClient

WAIT_S = 60


def with_threads(address: str) -> None:
    seen: list[tuple[bytes | None, int]] = []
    done = threading.Event()
    with penstock.Client(address) as client:

        @client.subscribe("sdk", group="threads", retries=penstock.Retries(first="100ms"), from_beginning=True)
        def handle(message: penstock.Message) -> None:
            seen.append((message.value, message.attempt))
            if message.attempt == 1:
                raise ValueError("not yet")
            done.set()

        client.start()
        client.send("sdk", b"two", delay="1h", timer_id="two")
        assert [timer.timer_id for timer in client.timers("sdk")] == ["two"]
        client.cancel("sdk", "two")
        assert client.timers("sdk") == []
        client.send("sdk", b"one", delay="200ms")
        assert done.wait(WAIT_S)
        with client.transaction() as transaction:
            transaction.send("others", b"all or nothing")
    assert seen == [(b"one", 1), (b"one", 2)], seen


async def with_tasks(address: str) -> None:
    async with penstock.aio.Client(address) as client:

        @client.subscribe("questions", group="tasks", from_beginning=True)
        async def handle(message: penstock.Message) -> None:
            await asyncio.sleep(0)
            await message.reply((message.value or b"") + b"?")

        await client.start()
        answer = await client.request("questions", b"well", timeout=WAIT_S)
        assert answer.value == b"well?"


def without_a_broker() -> None:
    stub = StubClient()
    seen: list[bytes | None] = []
    stub.subscribe("orders", lambda message: seen.append(message.value), group="stub")
    stub.send("orders", b"later", delay="1h")
    stub.advance("1h")
    assert seen == [b"later"]


without_a_broker()
with_threads(sys.argv[1])
asyncio.run(with_tasks(sys.argv[1]))
print(*sys.version_info[:2], sep=".", end=" ")
print(penstock.__file__)
