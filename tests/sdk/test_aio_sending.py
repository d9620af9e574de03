"""Sending with `penstock.aio.Client`: the same, awaited, and without stopping the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock
import penstock.aio
from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.foreign import seen_in, values_in
from support.ports import first_of_free_ports


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[penstock.aio.Client]:
    async with penstock.aio.Client(broker.kafka) as client:
        yield client


async def test_sending_is_awaited_and_gives_a_receipt(
    broker: BrokerProcess, client: penstock.aio.Client, topic: str
) -> None:
    receipt = await client.send(topic, "value", key="key", tags=["a", "b"], biz_id="1")
    assert receipt == penstock.Receipt(topic, 0, 0)
    (seen,) = await asyncio.to_thread(seen_in, broker.kafka, topic)
    assert (seen.key, seen.value) == (b"key", b"value")
    assert dict(seen.headers) == {"penstock-tags": b"a,b", "penstock-biz-id": b"1"}


async def test_futures_of_the_loop_are_answered_in_order(
    broker: BrokerProcess, client: penstock.aio.Client, topic: str
) -> None:
    futures = [client.send_soon(topic, str(number), partition=0) for number in range(1000)]
    assert await client.flush()
    receipts = await asyncio.gather(*futures)
    assert [receipt.offset for receipt in receipts] == list(range(1000))
    assert client.counters.sent == 1000


async def test_leaving_the_block_sends_what_is_left(broker: BrokerProcess, topic: str) -> None:
    async with penstock.aio.Client(broker.kafka, sending=penstock.Sending(linger="10s")) as client:
        futures = [client.send_soon(topic, str(number)) for number in range(10)]
    assert len(await asyncio.gather(*futures)) == 10
    with pytest.raises(penstock.ClosedError):
        await client.send(topic, b"late")


async def test_bad_input_is_raised_before_anything_is_sent(client: penstock.aio.Client, topic: str) -> None:
    with pytest.raises(penstock.InvalidInputError, match="cannot be combined"):
        await client.send(topic, b"", delay="1s", deliver_at=1)
    with pytest.raises(penstock.InvalidInputError, match="is not a duration"):
        client.send_soon(topic, b"", delay="soon")
    with pytest.raises(penstock.InvalidInputError, match="async def"):
        client.subscribe(topic, lambda message: None, group="g")
    with pytest.raises(penstock.InvalidInputError, match="call subscribe first"):
        await client.start()


async def test_a_delayed_message_can_be_rescheduled_and_cancelled(
    broker: BrokerProcess, client: penstock.aio.Client, topic: str
) -> None:
    assert (await client.send(topic, b"never", partition=0, delay="1s", timer_id="a")).offset is None
    await client.send(topic, b"late", partition=0, delay="1h", timer_id="b")
    await client.cancel(topic, "a")
    await client.reschedule(topic, "b", b"early", partition=0, delay="1200ms")
    await client.send(topic, b"last", partition=0, delay="1500ms")
    assert await asyncio.to_thread(values_in, broker.kafka, topic, 2) == [b"early", b"last"]


async def test_a_transaction_commits_at_the_end_of_its_block_and_aborts_by_an_exception(
    broker: BrokerProcess, client: penstock.aio.Client, topic: str
) -> None:
    async with client.transaction() as transaction:
        transaction.send(topic, b"1", partition=0)
        transaction.send(topic, b"2", partition=0)
    with pytest.raises(KeyError):
        async with client.transaction() as transaction:
            transaction.send(topic, b"3", partition=0)
            raise KeyError
    with pytest.raises(penstock.TransactionError):
        async with client.transaction() as transaction:
            transaction.send(topic, b"4", partition=99)
    assert await asyncio.to_thread(values_in, broker.kafka, topic) == [b"1", b"2"]


async def test_a_cancelled_task_aborts_its_transaction(
    broker: BrokerProcess, client: penstock.aio.Client, topic: str
) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with client.transaction("cancelled") as transaction:
            transaction.send(topic, b"never seen", partition=0)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with client.transaction("cancelled") as transaction:
        transaction.send(topic, b"seen", partition=0)
    assert await asyncio.to_thread(values_in, broker.kafka, topic) == [b"seen"]


async def test_a_request_is_answered_by_a_handler(
    broker: BrokerProcess, client: penstock.aio.Client, topic: str
) -> None:
    @client.subscribe(topic, group=topic, from_beginning=True)
    async def answer(message: penstock.Message) -> None:
        await message.reply((message.value or b"").upper())

    await client.send(topic, b"no request, so its answer fails and it is tried again later", delay="1h")
    await client.start()
    answers = await asyncio.gather(*(client.request(topic, text) for text in ("a", "b", "c")))
    assert [answer.value for answer in answers] == [b"A", b"B", b"C"]
    with pytest.raises(penstock.NoReplyError):
        await client.request(f"{topic}-nobody", b"", timeout=0.1)


async def test_waiting_for_room_does_not_stop_the_loop(topic: str) -> None:
    sending = penstock.Sending(tries=1, try_timeout="1s", when_away=penstock.Keep(messages=10))
    async with penstock.aio.Client(f"127.0.0.1:{first_of_free_ports(1)}", sending=sending) as client:
        sends = [asyncio.create_task(client.send(topic, str(number))) for number in range(30)]
        turns = 0
        while not all(send.done() for send in sends):
            await asyncio.sleep(0.01)
            turns += 1
        # A loop that was held up while messages wait for room would have had next to no turns.
        assert turns > 5
        assert all(isinstance(send.exception(), penstock.SendError) for send in sends)


async def test_spilled_messages_are_answered_and_arrive(new_broker: BrokerFactory, topic: str, tmp_path: Path) -> None:
    broker = new_broker()
    sending = penstock.Sending(tries=1, try_timeout="500ms", when_away=penstock.Spill(tmp_path))
    async with penstock.aio.Client(broker.kafka, sending=sending) as client:
        await client.send(topic, b"0", partition=0)
        broker.kill()
        receipts = await asyncio.gather(*(client.send_soon(topic, str(number), partition=0) for number in range(1, 50)))
        assert all(receipt.is_spilled for receipt in receipts)
        broker.start()
        assert await client.flush(60)
    found = await asyncio.to_thread(values_in, broker.kafka, topic)
    assert list(dict.fromkeys(found)) == [str(number).encode() for number in range(50)]
