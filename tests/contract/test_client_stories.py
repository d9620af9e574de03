"""The same stories with the stub and with a real broker: what a test of an application sees is what its users will."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import penstock
from penstock.ids import TopicPartition
from penstock.sdk.dedup.store import Dedup, MemoryStore
from penstock.testing import StubClient
from support.broker_process import BrokerProcess
from support.receiving import committed, ends
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

    @abstractmethod
    def has_been_read(self, topic: str, group: str) -> bool:
        """Whether the group has committed the end of a topic."""

    def collect(self, topics: str | list[str], group: str, **options: Any) -> list[penstock.Message]:
        """What a group gets of topics, as it comes."""
        found: list[penstock.Message] = []
        self.client.subscribe(topics, found.append, group=group, from_beginning=True, **options)
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

    def has_been_read(self, topic: str, group: str) -> bool:
        topics, read = self._stub._stub.topics, self._stub._stub.groups.group(group).committed
        return all(
            read.get(TopicPartition(topic, number), 0) >= topics.end_offset(topic, number)
            for number in range(topics.partitions(topic))
        )


class BrokerStage(Stage):
    def __init__(self, bootstrap: str) -> None:
        self.client = penstock.Client(bootstrap)
        self._kafka = bootstrap

    def until(self, look: Callable[[], object], what: str) -> None:
        self.client.start()
        until(look, what)

    def has_been_read(self, topic: str, group: str) -> bool:
        number = len(AdminClient({"bootstrap.servers": self._kafka}).list_topics(timeout=10).topics[topic].partitions)
        read = committed(self._kafka, group, topic, number)
        return all(read.get(each, 0) >= end for each, end in ends(self._kafka, topic, number).items())


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


def test_a_cancel_returns_a_receipt_for_each_partition_that_it_told(stage: Stage, topic: str) -> None:
    sent = stage.client.send(topic, "waits", key="k", delay="1h", timer_id="one")
    told_all = stage.client.cancel(topic, "unknown")
    told_one = stage.client.cancel(topic, "one", key="k")
    assert sent.partition in {each.partition for each in told_all}
    assert [(each.topic, each.partition) for each in told_all] == [(topic, number) for number in range(len(told_all))]
    assert all(each.offset is None for each in (*told_all, *told_one))
    assert [(each.topic, each.partition, each.is_spilled) for each in told_one] == [(topic, sent.partition, False)]


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
            stage.client.send(topic, "x", **extras)
    with pytest.raises(penstock.SendError, match="could not send"):
        stage.client.send(topic, "x", delay="level:99")


def test_a_closed_client_sends_nothing(stage: Stage, topic: str) -> None:
    stage.client.close()
    with pytest.raises(penstock.ClosedError):
        stage.client.send(topic, "x")


def test_a_retry_comes_to_the_subscription_of_its_own_topic(stage: Stage, topic: str) -> None:
    """Two subscriptions of one group: neither is given what the other has failed on."""
    orders, refunds = f"{topic}-orders", f"{topic}-refunds"
    seen: dict[str, list[tuple[str, int]]] = {orders: [], refunds: []}

    def handler_of(mine: str) -> Callable[[penstock.Message], None]:
        def handle(message: penstock.Message) -> None:
            seen[mine].append((message.topic, message.attempt))
            if message.attempt < 3:
                raise ValueError("not today")

        return handle

    for each in (orders, refunds):
        stage.client.subscribe(each, handler_of(each), group=topic, retries=QUICK, from_beginning=True)
    for number in range(12):
        stage.client.send(orders if number % 2 else refunds, f"{number}")
    stage.until(lambda: sum(map(len, seen.values())) >= 36, "all are handled three times")
    for each in (orders, refunds):
        assert sorted(seen[each]) == sorted((each, attempt) for attempt in (1, 2, 3) for _ in range(6))


def test_views_of_one_topic_in_one_group_get_their_own_retries(stage: Stage, topic: str) -> None:
    seen: dict[str, list[tuple[bytes | None, int]]] = {"a": [], "b": []}

    def handler_of(tag: str) -> Callable[[penstock.Message], None]:
        def handle(message: penstock.Message) -> None:
            seen[tag].append((message.value, message.attempt))
            if message.attempt < 3:
                raise ValueError("not today")

        return handle

    for tag in seen:
        stage.client.subscribe(topic, handler_of(tag), group=topic, tags=tag, retries=QUICK, from_beginning=True)
    for number in range(8):
        stage.client.send(topic, f"{number}", tags=["a"] if number % 2 else ["b"])
    stage.until(lambda: sum(map(len, seen.values())) >= 24, "all are handled three times")
    assert {value for value, _ in seen["a"]} == {b"1", b"3", b"5", b"7"}
    assert {value for value, _ in seen["b"]} == {b"0", b"2", b"4", b"6"}


def test_what_version_0_1_left_in_the_shared_retry_topic_reaches_the_right_subscription(
    stage: Stage, topic: str
) -> None:
    orders, refunds = f"{topic}-orders", f"{topic}-refunds"
    for number in range(6):
        origin = f"{orders if number % 2 else refunds}/0/{number}/1700000000000"
        headers = {"penstock-attempt": "2", "penstock-origin": origin, "penstock-error": "ValueError: no"}
        stage.client.send(f"{topic}.retry", f"{number}", headers=headers, key=f"{number}")
    got_orders, got_refunds = stage.collect(orders, topic), stage.collect(refunds, topic)
    stage.until(lambda: len(got_orders) + len(got_refunds) >= 6, "all are handled")
    assert sorted(message.value or b"" for message in got_orders) == [b"1", b"3", b"5"]
    assert sorted(message.value or b"" for message in got_refunds) == [b"0", b"2", b"4"]
    assert {message.attempt for message in got_orders + got_refunds} == {3}
    assert {message.topic for message in got_orders} == {orders}


def test_retries_of_a_subscription_that_is_gone_wait_for_its_return(stage: Stage, topic: str) -> None:
    """Another subscription of the group neither gets them nor passes them over."""
    orders, refunds = f"{topic}-orders", f"{topic}-refunds"
    origin = f"{refunds}/0/0/1700000000000"
    stage.client.send(f"{topic}.retry", "waits", headers={"penstock-attempt": "1", "penstock-origin": origin})
    got_orders = stage.collect(orders, topic)
    stage.client.send(orders, "mine")
    stage.until(lambda: got_orders, "the other subscription works")
    stage.until(lambda: stage.has_been_read(f"{topic}.retry", topic), "the retry has been moved")
    got_refunds = stage.collect(refunds, topic)
    stage.until(lambda: got_refunds, "the retry has come")
    assert (values(got_orders), values(got_refunds)) == ([b"mine"], [b"waits"])


def test_what_was_sent_before_a_group_first_starts_is_handled(stage: Stage, topic: str) -> None:
    stage.client.send(topic, "early")
    got: list[penstock.Message] = []
    stage.client.subscribe(topic, got.append, group=topic)
    stage.until(lambda: got, "it is handled")
    assert values(got) == [b"early"]


def test_a_new_group_may_begin_with_what_is_sent_from_then_on(stage: Stage, topic: str) -> None:
    stage.client.send(topic, "early", key="k")
    got: list[penstock.Message] = []
    stage.client.subscribe(topic, got.append, group=topic, from_beginning=False)
    stage.client.start()
    stage.until(lambda: stage.has_been_read(topic, topic), "the group has begun")
    stage.client.send(topic, "late", key="k")
    stage.until(lambda: got, "it is handled")
    assert values(got) == [b"late"]
