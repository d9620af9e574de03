"""What a client says of itself: its subscriptions, its hooks and its address."""

from __future__ import annotations

import pytest

import penstock
import penstock.aio
from penstock.testing import StubClient


class Seen(penstock.Hooks):
    def __init__(self) -> None:
        self.topics: list[str] = []

    def received(self, message: penstock.Message) -> None:
        self.topics.append(message.topic)


def handle(message: penstock.Message) -> None: ...


async def awaited(message: penstock.Message) -> None: ...


def test_subscriptions_are_listed_as_they_were_registered() -> None:
    client = penstock.Client("127.0.0.1:1")
    assert list(client.subscriptions) == []
    client.subscribe(["a", "b"], handle, group="g", tags="x", concurrency=3)
    client.subscribe("c", handle, group="h")
    first, second = client.subscriptions
    assert first == penstock.SubscriptionStatus(
        topics=("a", "b"), group="g", tags="x", concurrency=3, handler=f"{__name__}.handle"
    )
    assert (second.topics, second.tags, second.is_running, second.is_ready) == (("c",), None, False, False)
    client.close()


def test_a_running_subscription_is_not_ready_before_it_has_reached_a_broker() -> None:
    client = penstock.Client("127.0.0.1:1")
    client.subscribe("a", handle, group="g")
    client.start()
    (status,) = client.subscriptions
    assert (status.is_running, status.is_ready, status.partitions, status.in_flight) == (True, False, 0, 0)
    client.stop()
    (status,) = client.subscriptions
    assert not status.is_running
    client.close()


def test_stubs_list_theirs() -> None:
    stub = StubClient()
    stub.subscribe("a", handle, group="g")
    assert [(each.topics, each.is_running, each.is_ready) for each in stub.subscriptions] == [(("a",), True, True)]
    stub.stop()
    assert [each.is_running for each in stub.subscriptions] == [False]


def test_hooks_can_be_added_later() -> None:
    first, second = Seen(), Seen()
    stub = StubClient(hooks=[first])
    stub.subscribe("a", handle, group="g")
    stub.send("a", b"1")
    stub.run()
    stub.add_hooks(second)
    assert stub.hooks == (first, second)
    stub.send("a", b"2")
    stub.run()
    assert (first.topics, second.topics) == (["a", "a"], ["a"])


def test_what_is_no_hook_is_refused() -> None:
    with pytest.raises(penstock.InvalidInputError, match="contains the class Seen"):
        StubClient().add_hooks(Seen)  # type: ignore[arg-type]


def test_a_client_knows_its_address() -> None:
    for make in (penstock.Client, penstock.aio.Client):
        assert make("127.0.0.1:1,127.0.0.1:2").address == "127.0.0.1:1,127.0.0.1:2"
