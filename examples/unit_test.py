"""Test an application without a broker: topics in memory, and a clock that the test moves."""

import penstock
from penstock.testing import StubClient


def shop(client: penstock.Client, closed: list[str]) -> None:
    """The application: closes unpaid orders."""

    @client.subscribe("close-order", group="shop", retries=penstock.Retries(first="1m", attempts=3))
    def close(message: penstock.Message) -> None:
        if message.value == b"broken":
            raise ValueError("no such order")
        closed.append(message.value.decode())


def test_orders_are_closed_after_half_an_hour() -> None:
    stub, closed = StubClient(), []
    shop(stub, closed)
    stub.send("close-order", "42", delay="30m")
    stub.send("close-order", "broken")
    stub.advance("29m")
    assert closed == []
    stub.advance("1m")
    assert closed == ["42"]
    assert [letter.error for letter in stub.dead_letters("shop")] == ["ValueError: no such order"]


test_orders_are_closed_after_half_an_hour()
print("an order was closed after half an hour, in no time")
