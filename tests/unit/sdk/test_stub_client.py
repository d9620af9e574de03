"""`StubClient`: what it has beyond the real client, and the time that the test moves."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import penstock
from penstock.sdk.dedup.store import Dedup, MemoryStore
from penstock.sdk.topic_names import retry_topic, view_of
from penstock.testing import StubClient


def test_nothing_is_handled_before_the_test_wants_it() -> None:
    stub, got = StubClient(), []
    stub.subscribe("orders", lambda message: got.append(message.value), group="g")
    stub.send("orders", "a")
    assert got == []
    stub.run()
    assert got == [b"a"]


def test_a_new_group_begins_with_what_is_there_or_with_what_comes_after_it_has_subscribed() -> None:
    stub, late, all_of_it = StubClient(), [], []
    stub.send("orders", "before")
    stub.subscribe("orders", lambda message: late.append(message.value), group="late", from_beginning=False)
    stub.subscribe("orders", lambda message: all_of_it.append(message.value), group="all")
    stub.send("orders", "after")
    stub.run()
    assert (late, all_of_it) == ([b"after"], [b"before", b"after"])


def test_handlers_run_in_the_thread_of_the_test() -> None:
    stub, threads, before = StubClient(), [], threading.active_count()
    stub.subscribe("orders", lambda message: threads.append(threading.current_thread()), group="g", concurrency=8)
    for number in range(20):
        stub.send("orders", f"{number}")
    stub.run()
    assert set(threads) == {threading.current_thread()}
    assert threading.active_count() == before


def test_retries_come_exactly_when_they_are_due() -> None:
    stub, at = StubClient(), []
    begin_ms = stub.clock.now_ms()

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="10s", factor=3, cap="1m", attempts=5))
    def fail(message: penstock.Message) -> None:
        at.append((stub.clock.now_ms() - begin_ms) // 1000)
        raise ValueError("never")

    stub.send("orders", "x")
    stub.advance("10m")
    assert at == [0, 10, 40, 100, 160]
    assert [letter.error for letter in stub.dead_letters("g")] == ["ValueError: never"]


def test_a_delay_is_not_due_a_moment_too_early() -> None:
    stub, got = StubClient(), []
    stub.subscribe("orders", lambda message: got.append(message.value), group="g")
    stub.send("orders", "close", delay="30m")
    assert stub.pending("orders") == [(1_800_000, b"close")]
    stub.advance(1799.999)
    assert got == []
    stub.advance(0.001)
    assert got == [b"close"]
    assert stub.pending("orders") == []


def test_what_a_handler_sends_is_handled_in_its_own_time() -> None:
    stub, got = StubClient(), []

    @stub.subscribe("orders", group="g")
    def remind(message: penstock.Message) -> None:
        stub.send("reminders", message.value, delay="1h")

    stub.subscribe("reminders", lambda message: got.append(stub.clock.now_ms()), group="g2")
    begin_ms = stub.clock.now_ms()
    stub.send("orders", "x", delay="1h")
    stub.advance("3h")
    assert got == [begin_ms + 2 * 3_600_000]


def test_a_rate_spreads_messages_over_time() -> None:
    stub, at = StubClient(), []
    begin_ms = stub.clock.now_ms()
    stub.subscribe("orders", lambda message: at.append(stub.clock.now_ms() - begin_ms), group="g", rate=10)
    for number in range(300):
        stub.send("orders", f"{number}")
    stub.advance("29s")
    assert 280 <= len(at) < 300
    stub.advance("2s")
    assert len(at) == 300
    assert at == sorted(at)


def test_an_id_is_handled_again_after_the_window() -> None:
    stub, got = StubClient(), []
    dedup = Dedup(MemoryStore(clock=stub.clock), window="24h")
    stub.subscribe("orders", lambda message: got.append(message.value), group="g", dedup=dedup)
    for _ in range(2):
        stub.send("orders", "today", biz_id="1")
    stub.advance("25h")
    stub.send("orders", "tomorrow", biz_id="1")
    stub.run()
    assert got == [b"today", b"tomorrow"]


def test_members_of_one_group_share_the_partitions() -> None:
    stub, first, second = StubClient(partitions=4), [], []
    stub.subscribe("orders", lambda message: first.append(message.partition), group="g")
    stub.subscribe("orders", lambda message: second.append(message.partition), group="g")
    for partition in (0, 1, 2, 3):
        stub.send("orders", "x", partition=partition)
    stub.run()
    assert (sorted(first), sorted(second)) == ([0, 2], [1, 3])


def test_a_stopped_client_handles_nothing_and_goes_on_where_it_was() -> None:
    stub, got = StubClient(), []
    stub.subscribe("orders", lambda message: got.append(message.value), group="g")
    stub.send("orders", "a")
    stub.run()
    stub.stop()
    stub.send("orders", "b")
    stub.run()
    assert got == [b"a"]
    stub.start()
    stub.run()
    assert got == [b"a", b"b"]


def test_at_most_once_does_not_repeat_what_has_failed() -> None:
    stub, got = StubClient(), []

    @stub.subscribe("orders", group="g", delivery="at-most-once")
    def fail(message: penstock.Message) -> None:
        got.append(message.value)
        raise ValueError("gone")

    stub.send("orders", "x")
    stub.advance("1h")
    assert got == [b"x"]
    assert stub.dead_letters("g") == []


def test_messages_of_a_topic_can_be_looked_at() -> None:
    stub = StubClient(partitions=2)
    stub.send("orders", "a", partition=1)
    stub.advance("1s")
    stub.send("orders", "b", partition=0)
    assert [message.value for message in stub.messages("orders")] == [b"a", b"b"]
    assert stub.messages("nothing") == []


def test_nothing_is_sent_to_a_view() -> None:
    stub = StubClient()
    stub.subscribe("orders", lambda message: None, group="g", tags="checkout")
    stub.send("orders", "a", tags=["checkout"])
    stub.send("orders", "b")
    assert [message.value for message in stub.messages(view_of("orders", "checkout"))] == [b"a"]
    with pytest.raises(penstock.SendError, match="it is a view"):
        stub.send(view_of("orders", "checkout"), "x")


def test_counters_and_hooks_see_what_the_real_client_shows() -> None:
    seen: list[str] = []

    class Seeing(penstock.Hooks):
        def sent(self, outgoing: penstock.Outgoing, receipt: penstock.Receipt, seconds: float) -> None:
            seen.append(f"sent {outgoing.topic}")

        def handled(self, message: penstock.Message, seconds: float) -> None:
            seen.append(f"handled {message.attempt}")

        def retried(self, message: penstock.Message, error: str, after_ms: int) -> None:
            seen.append(f"retried after {after_ms}")

    stub = StubClient(hooks=[Seeing()])

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="5s"))
    def handle(message: penstock.Message) -> None:
        if message.attempt == 1:
            raise ValueError

    stub.send("orders", "x")
    stub.advance("10s")
    assert seen == ["sent orders", f"sent {retry_topic('g', 'orders')}", "retried after 5000", "handled 2"]
    assert stub.counters.sent == 2


def test_hooks_see_what_a_handler_sends_with_its_acknowledgement() -> None:
    class Marking(penstock.Hooks):
        def sending(self, outgoing: penstock.Outgoing) -> penstock.Outgoing:
            return replace(outgoing, headers=(*outgoing.headers, ("marked", b"yes")))

    stub = StubClient(hooks=[Marking()])

    @stub.subscribe("orders", group="g", delivery="exactly-once")
    def handle(message: penstock.Message) -> None:
        message.transaction.send("bills", message.value)

    stub.send("orders", "x")
    stub.run()
    assert [message.headers for message in stub.messages("bills")] == [(("marked", b"yes"),)]
    assert stub.counters.sent == 2


def test_a_client_can_be_used_where_a_client_is_wanted() -> None:
    def application(client: penstock.Client) -> None:
        client.send("orders", "x")

    with StubClient() as stub:
        application(stub)
        assert len(stub.messages("orders")) == 1
    with pytest.raises(penstock.ClosedError):
        stub.send("orders", "x")


@pytest.mark.parametrize("by", ["soon", -1, "5"])
def test_a_time_that_is_none_is_refused(by: object) -> None:
    with pytest.raises(penstock.InvalidInputError, match="by"):
        StubClient().advance(by)  # type: ignore[arg-type]


def test_a_failed_assertion_in_a_handler_fails_the_test() -> None:
    stub = StubClient()

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="1s"))
    def handle(message: penstock.Message) -> None:
        assert message.attempt == 2, "not the first time"

    stub.send("orders", "x")
    with pytest.raises(AssertionError, match="not the first time"):
        stub.run()
    # Once: the message comes again, as with a cluster.
    stub.advance("10s")
    assert [type(each.error) for each in stub.failures] == [AssertionError]


def test_what_handlers_raise_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    stub = StubClient()

    @stub.subscribe("orders", group="g", retries=penstock.Retries(first="1s", attempts=2))
    def handle(message: penstock.Message) -> None:
        raise ValueError(f"no {message.attempt}")

    stub.send("orders", "x")
    stub.advance("10s")
    assert [(each.group, each.message.attempt, str(each.error)) for each in stub.failures] == [
        ("g", 1, "no 1"),
        ("g", 2, "no 2"),
    ]
    failed = [record for record in caplog.records if "failed on orders-0 offset 0" in record.getMessage()]
    assert [record.exc_info is not None for record in failed] == [True, False]


@pytest.mark.parametrize("raises", [Exception, (KeyError, ValueError)])
def test_a_test_may_want_to_see_other_errors_too(raises: Any) -> None:
    stub = StubClient(raises=raises)

    @stub.subscribe("orders", group="g")
    def handle(message: penstock.Message) -> None:
        raise ValueError("a bug")

    stub.send("orders", "x")
    with pytest.raises(ValueError, match="a bug"):
        stub.run()


def test_a_test_may_want_to_see_no_error() -> None:
    stub = StubClient(raises=())

    @stub.subscribe("orders", group="g")
    def handle(message: penstock.Message) -> None:
        raise AssertionError("as everywhere")

    stub.send("orders", "x")
    stub.run()
    assert len(stub.failures) == 1


def test_what_ends_a_test_ends_it_in_a_handler_too() -> None:
    stub = StubClient()

    @stub.subscribe("orders", group="g")
    def handle(message: penstock.Message) -> None:
        pytest.fail("never to be called")

    stub.send("orders", "x")
    with pytest.raises(pytest.fail.Exception, match="never to be called"):
        stub.run()
