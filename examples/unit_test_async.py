"""Test an asyncio application without a broker: handlers run on the event loop of the test."""

import asyncio

import penstock
import penstock.aio
from penstock.testing import AsyncStubClient


def shop(client: penstock.aio.Client, sold: list[str]) -> None:
    """The application: requests a price, which may take several attempts, and sells."""

    @client.subscribe("orders", group="shop")
    async def sell(message: penstock.Message) -> None:
        price = await client.request("prices", message.value, timeout="5m")
        sold.append(f"{message.value.decode()} for {price.value.decode()}")

    @client.subscribe("prices", group="bank", retries=penstock.Retries(first="1m", attempts=3))
    async def quote(message: penstock.Message) -> None:
        if message.attempt == 1:
            raise ConnectionError("the bank is away")
        await message.reply(b"10 EUR")


async def test_an_order_is_sold_when_the_bank_is_back() -> None:
    stub, sold = AsyncStubClient(), []
    shop(stub, sold)
    await stub.send("orders", "a book", delay="30m")
    await stub.advance("29m")
    assert sold == []
    await stub.advance("2m")
    assert sold == ["a book for 10 EUR"]
    assert stub.dead_letters("bank") == []


asyncio.run(test_an_order_is_sold_when_the_bank_is_back())
print("a book was sold after half an hour and a second attempt, in no time")
