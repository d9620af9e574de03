"""Subscriptions of `penstock.aio`: handlers are coroutines, on the same engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import penstock
import penstock.aio
from support.broker_process import BrokerProcess
from support.foreign import seen_in
from support.receiving import SOON, Heard, committed, create, ends
from support.waiting import PATIENCE_S


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[penstock.aio.Client]:
    async with penstock.aio.Client(broker.kafka) as client:
        yield client
        await client.stop()


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    create(admin, f"{topic}.out", 1)
    return create(admin, topic, 3)


async def test_many_coroutines_handle_beside_each_other_and_returning_acknowledges(
    broker: BrokerProcess, client: penstock.aio.Client, created: str
) -> None:
    heard, inside, together = Heard(), 0, asyncio.Event()

    @client.subscribe(created, group=created, concurrency=100, from_beginning=True)
    async def handle(message: penstock.Message) -> None:
        nonlocal inside
        inside += 1
        if inside == 100:
            together.set()
        await asyncio.wait_for(together.wait(), PATIENCE_S)
        heard(message)

    await asyncio.gather(*(client.send(created, f"{number}") for number in range(100)))
    await client.start()
    await asyncio.to_thread(heard.wait, 100)
    await client.stop()
    assert len(set(heard.values)) == 100
    assert await asyncio.to_thread(committed, broker.kafka, created, created, 3) == {
        number: end for number, end in ends(broker.kafka, created, 3).items() if end
    }


async def test_an_exception_means_again_and_in_the_end_a_dead_letter(
    broker: BrokerProcess, client: penstock.aio.Client, created: str
) -> None:
    heard = Heard()

    @client.subscribe(created, group=created, retries=SOON, from_beginning=True)
    async def handle(message: penstock.Message) -> None:
        heard(message)
        await asyncio.sleep(0)
        raise ValueError("never")

    await client.send(created, b"x")
    await client.start()
    await asyncio.to_thread(heard.wait, 3)
    (dead,) = await asyncio.to_thread(seen_in, broker.kafka, f"{created}.dead", 1)
    assert [message.attempt for message in heard.messages] == [1, 2, 3]
    assert dict(dead.headers)["penstock-error"] == b"ValueError: never"


async def test_a_task_that_is_late_is_cancelled_and_its_message_comes_again(
    client: penstock.aio.Client, created: str
) -> None:
    heard, cancelled = Heard(), []

    @client.subscribe(created, group=created, deadline="200ms", retries=SOON, from_beginning=True)
    async def handle(message: penstock.Message) -> None:
        heard(message)
        if message.attempt == 1:
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                cancelled.append(message)
                raise

    await client.send(created, b"slow")
    await client.start()
    await asyncio.to_thread(heard.wait, 2)
    await client.stop()
    assert len(cancelled) == 1
    assert [message.attempt for message in heard.messages] == [1, 2]


async def test_dedup_and_order_work_as_with_threads(client: penstock.aio.Client, created: str, tmp_path: Path) -> None:
    heard, store = Heard(), penstock.SqlStore(f"sqlite:///{tmp_path / 'dedup.db'}")

    @client.subscribe(
        created,
        group=created,
        ordered=True,
        concurrency=10,
        retries=SOON,
        dedup=penstock.Dedup(store),
        from_beginning=True,
    )
    async def handle(message: penstock.Message) -> None:
        await asyncio.sleep(0.001)
        if message.value == b"2" and message.attempt == 1:
            raise ValueError("its key waits")
        heard(message)

    for number in range(6):
        for key in "ab":
            for _ in range(2):
                await client.send(created, f"{number}", key=key, biz_id=f"{key}{number}")
    await client.start()
    await asyncio.to_thread(heard.wait, 12)
    await client.stop()
    for sent_key in (b"a", b"b"):
        assert [message.value for message in heard.messages if message.key == sent_key] == [
            f"{number}".encode() for number in range(6)
        ]
    store.close()


async def test_batches_and_verbs(client: penstock.aio.Client, created: str) -> None:
    heard = Heard()

    @client.subscribe(created, group=created, batch=5, retries=SOON, from_beginning=True)
    async def handle(messages: list[penstock.Message]) -> None:
        for message in messages:
            heard(message)
            if message.attempt == 1 and message.value == b"7":
                message.retry(after="50ms")
            else:
                message.ack()

    await asyncio.gather(*(client.send(created, f"{number}") for number in range(10)))
    await client.start()
    await asyncio.to_thread(heard.wait, 11)
    await client.stop()
    assert heard.counts[b"7"] == 2


async def test_exactly_once(broker: BrokerProcess, client: penstock.aio.Client, created: str) -> None:
    @client.subscribe(
        created, group=created, delivery="exactly-once", concurrency=10, retries=SOON, from_beginning=True
    )
    async def handle(message: penstock.Message) -> None:
        message.transaction.send(f"{created}.out", message.value)
        await asyncio.sleep(0.001)
        if message.attempt == 1 and message.value == b"5":
            raise ValueError("nothing of it is seen")

    await asyncio.gather(*(client.send(created, f"{number}") for number in range(20)))
    await client.start()
    out = await asyncio.to_thread(seen_in, broker.kafka, f"{created}.out", 20)
    assert sorted(int(seen.value or b"") for seen in out) == list(range(20))
