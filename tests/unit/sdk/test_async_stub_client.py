"""`AsyncStubClient`: the facts of `StubClient`, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.sdk.dedup.store import Dedup, MemoryStore
from penstock.sdk.topic_names import retry_topic, view_of
from penstock.testing import AsyncStubClient


def into(got: list[Any], what: Callable[[penstock.Message], Any]) -> Callable[[penstock.Message], Awaitable[None]]:
    """A handler that notes something of each message."""

    async def handle(message: penstock.Message) -> None:
        got.append(what(message))

    return handle


def value(message: penstock.Message) -> bytes | None:
    return message.value


async def test_nothing_is_handled_before_the_test_wants_it() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []
    stub.subscribe("orders", into(got, value), group="g")
    await stub.send("orders", "a")
    await asyncio.sleep(0)
    assert got == []
    await stub.run()
    assert got == [b"a"]


async def test_retries_come_exactly_when_they_are_due() -> None:
    stub = AsyncStubClient()
    at: list[int] = []
    begin_ms = stub.clock.now_ms()

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="10s", factor=3, cap="1m", attempts=5))
    async def fail(message: penstock.Message) -> None:
        await asyncio.sleep(0)
        at.append((stub.clock.now_ms() - begin_ms) // 1000)
        raise ValueError("never")

    await stub.send("orders", "x")
    await stub.advance("10m")
    assert at == [0, 10, 40, 100, 160]
    assert [letter.error for letter in stub.dead_letters("g")] == ["ValueError: never"]


async def test_a_delay_is_not_due_a_moment_too_early() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []
    stub.subscribe("orders", into(got, value), group="g")
    await stub.send("orders", "close", delay="30m")
    assert stub.pending("orders") == [(1_800_000, b"close")]
    await stub.advance(1799.999)
    assert got == []
    await stub.advance(0.001)
    assert got == [b"close"]
    assert stub.pending("orders") == []


async def test_what_waits_is_listed_replaced_and_cancelled() -> None:
    stub = AsyncStubClient(partitions=2)
    got: list[Any] = []
    stub.subscribe("orders", into(got, value), group="g")
    await stub.send("orders", "cancelled", key="k", delay="1h", timer_id="one")
    await stub.send("orders", "replaced", key="k", delay="1h", timer_id="two")
    assert [each.timer_id for each in await stub.timers("orders")] == ["one", "two"]
    assert [each.partition for each in await stub.cancel("orders", "one")] == [0, 1]
    await stub.reschedule("orders", "two", "new", key="k", delay="2h")
    await stub.advance("1h")
    assert got == []
    await stub.advance("1h")
    assert got == [b"new"]


async def test_what_a_handler_sends_is_handled_in_its_own_time() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []

    @stub.subscribe("orders", group="g")
    async def remind(message: penstock.Message) -> None:
        await stub.send("reminders", message.value, delay="1h")

    stub.subscribe("reminders", into(got, lambda message: stub.clock.now_ms()), group="g2")
    begin_ms = stub.clock.now_ms()
    await stub.send("orders", "x", delay="1h")
    await stub.advance("3h")
    assert got == [begin_ms + 2 * 3_600_000]


async def test_a_rate_spreads_messages_over_time() -> None:
    stub = AsyncStubClient()
    at: list[int] = []
    begin_ms = stub.clock.now_ms()
    stub.subscribe("orders", into(at, lambda message: stub.clock.now_ms() - begin_ms), group="g", rate=10)
    for number in range(300):
        await stub.send("orders", f"{number}")
    await stub.advance("29s")
    assert 280 <= len(at) < 300
    await stub.advance("2s")
    assert len(at) == 300
    assert at == sorted(at)


async def test_an_id_is_handled_again_after_the_window() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []
    dedup = Dedup(MemoryStore(clock=stub.clock), window="24h")
    stub.subscribe("orders", into(got, value), group="g", dedup=dedup)
    for _ in range(2):
        await stub.send("orders", "today", biz_id="1")
    await stub.advance("25h")
    await stub.send("orders", "tomorrow", biz_id="1")
    await stub.run()
    assert got == [b"today", b"tomorrow"]


async def test_what_was_said_of_a_claimed_message_is_seen_to() -> None:
    stub, attempts = AsyncStubClient(), []

    @stub.subscribe("orders", group="g", dedup=Dedup(MemoryStore(clock=stub.clock)))
    async def handle(message: penstock.Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            message.retry(after="1m")
        else:
            message.reject("broken")

    await stub.send("orders", "x", biz_id="1")
    await stub.advance("2m")
    assert attempts == [1, 2]
    assert [letter.error for letter in stub.dead_letters("g")] == ["broken"]


async def test_members_of_one_group_share_the_partitions() -> None:
    stub = AsyncStubClient(partitions=4)
    first: list[int] = []
    second: list[int] = []
    stub.subscribe("orders", into(first, lambda message: message.partition), group="g")
    stub.subscribe("orders", into(second, lambda message: message.partition), group="g")
    for partition in (0, 1, 2, 3):
        await stub.send("orders", "x", partition=partition)
    await stub.run()
    assert (sorted(first), sorted(second)) == ([0, 2], [1, 3])


async def test_a_stopped_client_handles_nothing_and_goes_on_where_it_was() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []
    stub.subscribe("orders", into(got, value), group="g")
    await stub.send("orders", "a")
    await stub.run()
    await stub.stop()
    await stub.send("orders", "b")
    await stub.run()
    assert got == [b"a"]
    await stub.start()
    await stub.run()
    assert got == [b"a", b"b"]


async def test_at_most_once_does_not_repeat_what_has_failed() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []

    @stub.subscribe("orders", group="g", delivery="at-most-once")
    async def fail(message: penstock.Message) -> None:
        got.append(message.value)
        raise ValueError("gone")

    await stub.send("orders", "x")
    await stub.advance("1h")
    assert got == [b"x"]
    assert stub.dead_letters("g") == []


async def test_exactly_once_sends_with_the_acknowledgement_and_not_without() -> None:
    stub = AsyncStubClient()

    @stub.subscribe("orders", group="g", delivery="exactly-once")
    async def handle(message: penstock.Message) -> None:
        await asyncio.sleep(0)
        message.transaction.send("out", f"attempt {message.attempt}")
        if message.attempt == 1:
            raise ValueError("not today")

    await stub.send("orders", "x")
    await stub.advance("1m")
    assert [message.value for message in stub.messages("out")] == [b"attempt 2"]


async def test_a_transaction_is_seen_whole_or_not_at_all() -> None:
    stub = AsyncStubClient()
    with pytest.raises(ZeroDivisionError):
        async with stub.transaction() as aborted:
            aborted.send("orders", "lost")
            raise ZeroDivisionError
    async with stub.transaction() as transaction:
        transaction.send("orders", "a")
        transaction.send("orders", "b")
    assert [message.value for message in stub.messages("orders")] == [b"a", b"b"]


async def test_nothing_is_sent_to_a_view() -> None:
    stub = AsyncStubClient()
    got: list[Any] = []
    stub.subscribe("orders", into(got, value), group="g", tags="checkout")
    await stub.send("orders", "a", tags=["checkout"])
    await stub.send("orders", "b")
    await stub.run()
    assert got == [b"a"]
    with pytest.raises(penstock.SendError, match="it is a view"):
        await stub.send(view_of("orders", "checkout"), "x")


async def test_a_request_that_nobody_answers_ends() -> None:
    stub = AsyncStubClient()
    begin_ms = stub.clock.now_ms()
    with pytest.raises(penstock.NoReplyError, match=r"within 0\.3 s"):
        await stub.request("orders", "x", timeout="300ms")
    assert stub.clock.now_ms() == begin_ms + 300


async def test_counters_and_hooks_see_what_the_real_client_shows() -> None:
    seen: list[str] = []

    class Seeing(penstock.Hooks):
        def sent(self, outgoing: penstock.Outgoing, receipt: penstock.Receipt, seconds: float) -> None:
            seen.append(f"sent {outgoing.topic}")

        def handled(self, message: penstock.Message, seconds: float) -> None:
            seen.append(f"handled {message.attempt}")

        def retried(self, message: penstock.Message, error: str, after_ms: int) -> None:
            seen.append(f"retried after {after_ms}")

    stub = AsyncStubClient(hooks=[Seeing()])

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="5s"))
    async def handle(message: penstock.Message) -> None:
        if message.attempt == 1:
            raise ValueError

    await stub.send("orders", "x")
    await stub.advance("10s")
    assert seen == ["sent orders", f"sent {retry_topic('g', 'orders')}", "retried after 5000", "handled 2"]
    assert stub.counters.sent == 2


async def test_a_client_can_be_used_where_a_client_is_wanted() -> None:
    async def application(client: penstock.aio.Client) -> None:
        await client.send_soon("orders", "x")
        assert await client.flush()

    async with AsyncStubClient() as stub:
        await application(stub)
        assert len(stub.messages("orders")) == 1
    with pytest.raises(penstock.ClosedError):
        await stub.send("orders", "x")


def test_a_handler_that_is_no_coroutine_is_refused() -> None:
    with pytest.raises(penstock.InvalidInputError, match="async def"):
        AsyncStubClient().subscribe("orders", lambda message: None, group="g")


@pytest.mark.parametrize("by", ["soon", -1, "5"])
async def test_a_time_that_is_none_is_refused(by: object) -> None:
    with pytest.raises(penstock.InvalidInputError, match="by"):
        await AsyncStubClient().advance(by)  # type: ignore[arg-type]


async def test_a_failed_assertion_in_a_handler_fails_the_test() -> None:
    stub = AsyncStubClient()

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="1s"))
    async def handle(message: penstock.Message) -> None:
        assert message.attempt == 2, "not the first time"

    await stub.send("orders", "x")
    with pytest.raises(AssertionError, match="not the first time"):
        await stub.run()
    # Once: the message comes again, as with a cluster.
    await stub.advance("10s")
    assert [type(each.error) for each in stub.failures] == [AssertionError]


async def test_what_handlers_raise_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    stub = AsyncStubClient()

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="1s", attempts=2))
    async def handle(message: penstock.Message) -> None:
        raise ValueError(f"no {message.attempt}")

    await stub.send("orders", "x")
    await stub.advance("10s")
    assert [(each.group, each.message.attempt, str(each.error)) for each in stub.failures] == [
        ("g", 1, "no 1"),
        ("g", 2, "no 2"),
    ]
    failed = [record for record in caplog.records if "failed on orders-0 offset 0" in record.getMessage()]
    assert [record.exc_info is not None for record in failed] == [True, False]


@pytest.mark.parametrize("raises", [Exception, (KeyError, ValueError)])
async def test_a_test_may_want_to_see_other_errors_too(raises: Any) -> None:
    stub = AsyncStubClient(raises=raises)

    @stub.subscribe("orders", group="g")
    async def handle(message: penstock.Message) -> None:
        raise ValueError("a bug")

    await stub.send("orders", "x")
    with pytest.raises(ValueError, match="a bug"):
        await stub.run()


async def test_a_test_may_want_to_see_no_error() -> None:
    stub = AsyncStubClient(raises=())

    @stub.subscribe("orders", group="g")
    async def handle(message: penstock.Message) -> None:
        raise AssertionError("as everywhere")

    await stub.send("orders", "x")
    await stub.run()
    assert len(stub.failures) == 1


async def test_what_ends_a_test_ends_it_in_a_handler_too() -> None:
    stub = AsyncStubClient()

    @stub.subscribe("orders", group="g")
    async def handle(message: penstock.Message) -> None:
        pytest.fail("never to be called")

    await stub.send("orders", "x")
    with pytest.raises(pytest.fail.Exception, match="never to be called"):
        await stub.run()
