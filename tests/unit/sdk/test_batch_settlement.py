"""Messages that a handler was given together: those that are done are settled at once, the others one by one."""

from __future__ import annotations

import penstock
from penstock.testing import StubClient

QUICK = penstock.Retries(first="1s", attempts=2, jitter=0)


class Noting(penstock.Hooks):
    def __init__(self) -> None:
        self.handled_values: list[bytes | None] = []

    def handled(self, message: penstock.Message, seconds: float) -> None:
        self.handled_values.append(message.value)


def values(messages: list[penstock.Message]) -> list[bytes | None]:
    return [message.value for message in messages]


def test_a_batch_that_is_acknowledged_is_reported_to_hooks_and_does_not_come_again() -> None:
    noting = Noting()
    stub = StubClient(hooks=[noting])
    calls: list[list[bytes | None]] = []
    stub.subscribe("t", lambda messages: calls.append(values(messages)), group="g", batch=3)
    stub.send_many("t", ["a", "b", "c", "d"])
    stub.run()
    assert [value for call in calls for value in call] == [b"a", b"b", b"c", b"d"] and len(calls) == 2
    assert noting.handled_values == [b"a", b"b", b"c", b"d"]
    stub.advance("1h")
    assert len(calls) == 2
    assert stub.subscriptions[0].failure is None


def test_after_an_exception_only_messages_that_were_not_settled_are_retried_each_by_itself() -> None:
    noting = Noting()
    stub = StubClient(hooks=[noting])
    seen: list[tuple[bytes | None, int]] = []

    def handle(messages: list[penstock.Message]) -> None:
        seen.extend((message.value, message.attempt) for message in messages)
        for message in messages:
            if message.value == b"done":
                message.ack()
            if message.value == b"bad":
                message.reject("no")
        if any(message.value == b"again" for message in messages):
            raise ValueError("not all")

    stub.subscribe("t", handle, group="g", batch=10, retries=QUICK)
    stub.send_many("t", ["done", "bad", "again", "innocent"])
    stub.advance("1m")
    assert [value for value, attempt in seen if attempt == 1] == [b"done", b"bad", b"again", b"innocent"]
    assert {value for value, attempt in seen if attempt == 2} == {b"again", b"innocent"}
    assert {b"bad", b"again"} <= set(values(stub.dead_letters("g"))) <= {b"bad", b"again", b"innocent"}
    assert b"done" in noting.handled_values and b"bad" not in noting.handled_values


def test_with_dedup_each_message_of_a_batch_completes_its_own_claim() -> None:
    stub = StubClient()
    store = penstock.MemoryStore(clock=stub.clock)
    handled: list[bytes | None] = []
    stub.subscribe(
        "t", lambda messages: handled.extend(values(messages)), group="g", batch=10, dedup=penstock.Dedup(store)
    )
    stub.send_many("t", [{"value": "a", "biz_id": "1"}, "b", {"value": "c", "biz_id": "2"}])
    stub.run()
    stub.send_many("t", [{"value": "a again", "biz_id": "1"}, "d", {"value": "c again", "biz_id": "2"}])
    stub.run()
    assert handled == [b"a", b"b", b"c", b"d"]
