"""The same stories with the stub and with a real broker: what a test of an application sees is what its users will."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.sdk.receive.dedup import Dedup, MemoryStore
from penstock.testing import StubClient
from support.broker_process import BrokerProcess
from support.waiting import until

QUICK = penstock.Retries(first="200ms", factor=2, attempts=3, jitter=0)
_STUB_STEPS = 300
_STUB_STEP = "100ms"


class Stage(ABC):
    """A client, and a way to wait."""

    client: penstock.Client

    @abstractmethod
    def until(self, look: Callable[[], object], what: str) -> None:
        """Lets things happen until they have."""

    def collect(self, topics: str | list[str], group: str, **terms: Any) -> list[penstock.Message]:
        """What a group gets of topics, as it comes."""
        found: list[penstock.Message] = []
        self.client.subscribe(topics, found.append, group=group, from_beginning=True, **terms)
        return found


class StubStage(Stage):
    def __init__(self) -> None:
        self.client = self._stub = StubClient(partitions=2)

    def until(self, look: Callable[[], object], what: str) -> None:
        self._stub.start()
        self._stub.run()
        for _ in range(_STUB_STEPS):
            if look():
                return
            self._stub.advance(_STUB_STEP)
        raise AssertionError(f"{what}: not so in the stub")


class BrokerStage(Stage):
    def __init__(self, bootstrap: str) -> None:
        self.client = penstock.Client(bootstrap)

    def until(self, look: Callable[[], object], what: str) -> None:
        self.client.start()
        until(look, what)


@pytest.fixture(params=["stub", "broker"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    if request.param == "stub":
        made: Stage = StubStage()
    else:
        broker: BrokerProcess = request.getfixturevalue("broker")
        made = BrokerStage(broker.kafka)
    with made.client:
        yield made


def values(messages: list[penstock.Message]) -> list[bytes | None]:
    return [message.value for message in messages]


def test_a_message_arrives_with_everything_that_it_was_sent_with(stage: Stage, topic: str) -> None:
    got = stage.collect(topic, topic)
    receipt = stage.client.send(
        topic, "paid", key="42", headers={"a": "1"}, tags=["checkout", "eu"], biz_id="order-42", partition=0
    )
    assert (receipt.topic, receipt.partition, receipt.offset) == (topic, 0, 0)
    stage.until(lambda: got, "the message is handled")
    (message,) = got
    assert (message.topic, message.partition, message.offset) == (topic, 0, 0)
    assert (message.key, message.value, message.attempt, message.error) == (b"42", b"paid", 1, None)
    assert (message.tags, message.biz_id) == (("checkout", "eu"), "order-42")
    assert ("a", b"1") in message.headers


def test_every_group_gets_every_message(stage: Stage, topic: str) -> None:
    billing, stock = stage.collect(topic, f"{topic}-billing"), stage.collect(topic, f"{topic}-stock")
    for number in range(5):
        stage.client.send(topic, f"{number}")
    wanted = {b"%d" % number for number in range(5)}
    stage.until(lambda: set(values(billing)) == set(values(stock)) == wanted, "both groups have all")
    assert len(billing) == len(stock) == 5


def test_a_failed_message_comes_again_and_holds_up_nobody(stage: Stage, topic: str) -> None:
    seen: list[tuple[bytes | None, int, str | None]] = []

    @stage.client.subscribe(topic, group=topic, retries=QUICK, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        seen.append((message.value, message.attempt, message.error))
        if message.value == b"bad" and message.attempt == 1:
            raise ValueError("not today")

    stage.client.send(topic, "bad", key="k")
    stage.client.send(topic, "good", key="k")
    stage.until(lambda: len(seen) == 3, "all are handled")
    assert seen == [(b"bad", 1, None), (b"good", 1, None), (b"bad", 2, "ValueError: not today")]


def test_a_retried_message_is_still_the_one_that_was_sent(stage: Stage, topic: str) -> None:
    seen: list[penstock.Message] = []

    @stage.client.subscribe(topic, group=topic, retries=QUICK, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        seen.append(message)
        if message.attempt < 3:
            message.retry(after="50ms")

    stage.client.send(topic, "x", key="k", headers={"a": "1"}, tags=["t"], biz_id="b")
    stage.until(lambda: len(seen) == 3, "the message is handled three times")
    first, *others = seen
    for other in others:
        assert (other.topic, other.partition, other.offset) == (first.topic, first.partition, first.offset)
        assert (other.timestamp_ms, other.key, other.value) == (first.timestamp_ms, first.key, first.value)
        assert (other.tags, other.biz_id) == (first.tags, first.biz_id)
        assert ("a", b"1") in other.headers


def test_after_the_last_attempt_a_message_is_a_dead_letter(stage: Stage, topic: str) -> None:
    attempts = []

    @stage.client.subscribe(topic, group=topic, retries=QUICK, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        attempts.append(message.attempt)
        raise ValueError("never")

    letters = stage.collect(f"{topic}.dead", f"{topic}-morgue")
    receipt = stage.client.send(topic, "x", key="k")
    stage.until(lambda: letters, "it is a dead letter")
    assert attempts == [1, 2, 3]
    (letter,) = letters
    assert (letter.origin.topic, letter.origin.partition, letter.origin.offset) == (
        topic,
        receipt.partition,
        receipt.offset,
    )
    assert (letter.value, letter.key, letter.error) == (b"x", b"k", "ValueError: never")
    assert ("penstock-attempt", b"3") in letter.headers


def test_a_rejected_message_is_a_dead_letter_at_once_and_a_second_word_is_refused(stage: Stage, topic: str) -> None:
    refused = []

    @stage.client.subscribe(topic, group=topic, retries=QUICK, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        message.reject("broken")
        try:
            message.ack()
        except penstock.SettledError:
            refused.append(message.attempt)

    letters = stage.collect(f"{topic}.dead", f"{topic}-morgue")
    stage.client.send(topic, "x")
    stage.until(lambda: letters, "it is a dead letter")
    assert (refused, letters[0].error) == ([1], "broken")


def test_a_delayed_message_waits_can_be_replaced_and_cancelled(stage: Stage, topic: str) -> None:
    got = stage.collect(topic, topic)
    receipt = stage.client.send(topic, "last", key="k", delay="800ms")
    stage.client.send(topic, "cancelled", key="k", delay="400ms", timer_id="one")
    stage.client.send(topic, "replaced", key="k", delay="400ms", timer_id="two")
    stage.client.send(topic, "now", key="k")
    stage.client.cancel(topic, "one", key="k")
    stage.client.reschedule(topic, "two", "new", key="k", delay="600ms")
    assert receipt.offset is None
    stage.until(lambda: b"last" in values(got), "the last one has come")
    assert values(got) == [b"now", b"new", b"last"]
    assert any(name == "penstock-deliver-at" for name, _ in got[1].headers)
    assert not any(name == "penstock-delay" for name, _ in got[1].headers)


def test_a_schedule_repeats_until_it_is_cancelled(stage: Stage, topic: str) -> None:
    got = stage.collect(topic, topic)
    stage.client.send(topic, "tick", key="k", schedule="every 1s", timer_id="clock")
    stage.until(lambda: len(got) >= 2, "it has come twice")
    stage.client.cancel(topic, "clock", key="k")
    stage.client.send(topic, "end", key="k", delay="1200ms")
    stage.until(lambda: b"end" in values(got), "the end has come")
    ticks = values(got).count(b"tick")
    assert ticks == len(got) - 1
    # What was delivered before the cancel stays delivered; nothing after it.
    assert values(got)[-1] == b"end"


def test_what_waits_is_listed_by_due_time_and_found_by_name(stage: Stage, topic: str) -> None:
    stage.client.send(topic, "last", key="k", delay="3h", timer_id="three")
    stage.client.send(topic, "first", key="k", delay="1h", timer_id="one")
    stage.client.send(topic, "often", key="k", schedule="every 2h")
    stage.client.send(topic, "cancelled", key="k", delay="1h", timer_id="gone")
    stage.client.cancel(topic, "gone", key="k")
    waiting = stage.client.timers(topic)
    assert [each.value for each in waiting] == [b"first", b"often", b"last"]
    assert [each.timer_id for each in waiting] == ["one", None, "three"]
    assert [each.schedule for each in waiting] == [None, "every 2h", None]
    assert [each.value for each in stage.client.timers(topic, limit=1)] == [b"first"]
    assert [each.value for each in stage.client.timers(topic, due_from=waiting[1].due_ms)] == [b"often", b"last"]
    assert [each.value for each in stage.client.timers(topic, due_until=waiting[1].due_ms)] == [b"first"]
    (named,) = stage.client.timers(topic, timer_id="three")
    assert (named.value, named.key, named.due_ms) == (b"last", b"k", waiting[2].due_ms)
    assert stage.client.timers(topic, timer_id="gone") == []


def test_a_subscription_with_tags_gets_what_has_them(stage: Stage, topic: str) -> None:
    got = stage.collect(topic, topic, tags="checkout and not test")
    stage.client.send(topic, "a", tags=["checkout"], key="k")
    stage.client.send(topic, "b", tags=["checkout", "test"], key="k")
    stage.client.send(topic, "c", tags=["refund"], key="k")
    stage.client.send(topic, "d", tags=["refund", "checkout"], key="k")
    stage.until(lambda: len(got) == 2, "both are handled")
    assert values(got) == [b"a", b"d"]
    assert {message.topic for message in got} == {topic}


def test_what_has_the_same_business_id_is_handled_once(stage: Stage, topic: str) -> None:
    clock = stage.client.clock if isinstance(stage.client, StubClient) else None
    got = stage.collect(topic, topic, dedup=Dedup(MemoryStore(clock=clock)))
    for biz_id in ("order-1", "order-2", "order-1", "order-1"):
        stage.client.send(topic, biz_id, key="k", biz_id=biz_id)
    stage.client.send(topic, "end", key="k")
    stage.until(lambda: b"end" in values(got), "the end has come")
    assert values(got) == [b"order-1", b"order-2", b"end"]


def test_a_failed_handling_does_not_count_as_the_one(stage: Stage, topic: str) -> None:
    clock = stage.client.clock if isinstance(stage.client, StubClient) else None
    seen = []

    @stage.client.subscribe(
        topic, group=topic, retries=QUICK, dedup=Dedup(MemoryStore(clock=clock)), from_beginning=True
    )
    def handle(message: penstock.Message) -> None:
        seen.append((message.value, message.attempt))
        if len(seen) == 1:
            raise ValueError("not today")

    stage.client.send(topic, "x", biz_id="order-1")
    stage.until(lambda: len(seen) == 2, "it is handled again")
    assert seen == [(b"x", 1), (b"x", 2)]


def test_with_order_a_key_waits_for_its_failed_message_and_others_do_not(stage: Stage, topic: str) -> None:
    seen = []

    @stage.client.subscribe(topic, group=topic, retries=QUICK, ordered=True, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        seen.append((message.value, message.attempt))
        if message.value == b"a1" and message.attempt == 1:
            raise ValueError("not today")

    for key, value in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        stage.client.send(topic, value, key=key, partition=0)
    stage.until(lambda: len(seen) == 4, "all are handled")
    assert seen == [(b"a1", 1), (b"b1", 1), (b"a1", 2), (b"a2", 1)]


def test_a_batch_is_a_list_and_each_of_it_is_settled_on_its_own(stage: Stage, topic: str) -> None:
    lists: list[list[tuple[bytes | None, int]]] = []

    @stage.client.subscribe(topic, group=topic, retries=QUICK, batch=10, from_beginning=True)
    def handle(messages: list[penstock.Message]) -> None:
        lists.append([(message.value, message.attempt) for message in messages])
        for message in messages:
            if message.value == b"bad" and message.attempt == 1:
                message.retry()

    for value in ("a", "bad", "b"):
        stage.client.send(topic, value, key="k")
    stage.until(lambda: sum(map(len, lists)) == 4, "all are handled")
    assert [each for some in lists for each in some] == [(b"a", 1), (b"bad", 1), (b"b", 1), (b"bad", 2)]


def test_a_transaction_is_seen_whole_or_not_at_all(stage: Stage, topic: str) -> None:
    got = stage.collect(topic, topic)
    with pytest.raises(ZeroDivisionError), stage.client.transaction() as aborted:
        aborted.send(topic, "lost", key="k")
        raise ZeroDivisionError
    with stage.client.transaction() as transaction:
        transaction.send(topic, "a", key="k")
        transaction.send(topic, "b", key="k")
    stage.until(lambda: len(got) == 2, "both are handled")
    assert values(got) == [b"a", b"b"]


def test_exactly_once_sends_with_the_acknowledgement_and_not_without(stage: Stage, topic: str) -> None:
    stage.client.send(f"{topic}-out", "first")
    out = stage.collect(f"{topic}-out", f"{topic}-reader")

    @stage.client.subscribe(topic, group=topic, retries=QUICK, delivery="exactly-once", from_beginning=True)
    def handle(message: penstock.Message) -> None:
        message.transaction.send(f"{topic}-out", f"{message.value!r} {message.attempt}", key="k")
        if message.attempt == 1:
            raise ValueError("not today")

    stage.client.send(topic, "x")
    stage.until(lambda: len(out) == 2, "its message has come")
    assert values(out) == [b"first", b"b'x' 2"]


def test_a_request_gets_its_answer(stage: Stage, topic: str) -> None:
    @stage.client.subscribe(topic, group=topic, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        message.reply(b"got " + (message.value or b""))

    stage.client.start()
    assert stage.client.request(topic, "x", timeout="20s").value == b"got x"


def test_an_answer_may_come_from_somebody_else_with_the_token(stage: Stage, topic: str) -> None:
    @stage.client.subscribe(topic, group=topic, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        assert message.reply_token is not None
        stage.client.send(f"{topic}-gateway", message.reply_token, delay="200ms")

    @stage.client.subscribe(f"{topic}-gateway", group=topic + "-gateway", from_beginning=True)
    def answer(message: penstock.Message) -> None:
        stage.client.reply((message.value or b"").decode(), "paid")

    stage.client.send(f"{topic}-gateway", "penstock.replies/0/nobody")
    stage.client.start()
    assert stage.client.request(topic, "x", timeout="20s").value == b"paid"


def test_a_request_that_nobody_answers_ends(stage: Stage, topic: str) -> None:
    stage.client.send(topic, "make the topic")
    with pytest.raises(penstock.NoReplyError, match=r"within 0\.3 s"):
        stage.client.request(topic, "x", timeout="300ms")


def test_bad_input_is_refused_before_anything_is_sent(stage: Stage, topic: str) -> None:
    for words, extras in (
        ("delay", {"delay": "soon"}),
        ("tag", {"tags": ["a,b"]}),
        ("deliver_at", {"delay": "1s", "deliver_at": 5}),
    ):
        with pytest.raises(penstock.InvalidInputError, match=words):
            stage.client.send(topic, "x", **extras)  # type: ignore[arg-type]
    with pytest.raises(penstock.SendError, match="was not sent"):
        stage.client.send(topic, "x", delay="level:99")


def test_a_closed_client_sends_nothing(stage: Stage, topic: str) -> None:
    stage.client.close()
    with pytest.raises(penstock.ClosedError):
        stage.client.send(topic, "x")
