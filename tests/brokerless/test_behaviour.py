"""What an application can rely on, with every form of queue that promises it. `docs/forms.md` has the table."""

from __future__ import annotations

import threading
import time

import pytest

import penstock
from penstock.sdk.headers import ERROR, text_of, value_of
from penstock.sdk.topic_names import dead_topic
from support.forms import Opened, promised
from support.receiving import SOON, Heard, running
from support.waiting import until

NO_OTHER_PROCESS = ("memory",)
"""Forms that live in one process."""


def sent_values(client: penstock.Client, topic: str, count: int) -> list[bytes]:
    values = [str(number).encode() for number in range(count)]
    for value in values:
        client.send_soon(topic, value, key=value)
    assert client.flush()
    return values


# Messages


@promised("Messages arrive as they were sent, in every group")
def test_messages_arrive_as_they_were_sent_in_every_group(form: Opened, topic: str) -> None:
    client, heard, again = form.client(), Heard(), Heard()
    receipt = client.send(topic, "wörter", key="k", headers={"a": b"1", "b": None}, biz_id="7")
    client.send(topic, None)
    assert receipt.topic == topic and receipt.offset is not None
    client.subscribe(topic, heard, group=f"{topic}.a")
    client.subscribe(topic, again, group=f"{topic}.b")
    with running(client):
        messages = heard.wait(2)
        again.wait(2)
    (first,) = [message for message in messages if message.key is not None]
    assert (first.value, first.key, value_of(first.headers, "a"), first.biz_id) == ("wörter".encode(), b"k", b"1", "7")
    assert (first.partition, first.offset) == (receipt.partition, receipt.offset)
    assert None in [message.value for message in messages]
    assert again.counts == heard.counts


@promised("At least once")
def test_message_that_was_not_acknowledged_comes_again(form: Opened, topic: str) -> None:
    first, heard = form.client(), Heard()
    began = threading.Event()

    def hangs(message: penstock.Message) -> None:
        began.set()
        never.wait(60)

    never = threading.Event()
    first.subscribe(topic, hangs, group=topic)
    first.start()
    first.send(topic, b"work")
    assert began.wait(60)
    first.stop(grace=0)
    second = form.client()
    second.subscribe(topic, heard, group=topic)
    with running(second):
        assert heard.wait(1)[0].value == b"work"
    never.set()


@promised("Order per key")
def test_messages_of_a_key_are_handled_in_order_also_when_one_fails(form: Opened, topic: str) -> None:
    client, heard = form.client(), Heard()
    failed: set[bytes] = set()

    def sometimes(message: penstock.Message) -> None:
        if (message.value or b"").endswith(b"-3") and message.value not in failed:
            failed.add(message.value or b"")
            raise ValueError("once")
        heard(message)

    for number in range(10):
        for key in "abc":
            client.send_soon(topic, f"{key}-{number}", key=key)
    assert client.flush()
    client.subscribe(topic, sometimes, group=topic, ordered=True, concurrency=4, retries=SOON)
    with running(client):
        heard.wait(30)
    for key in "abc":
        of_key = [value for value in heard.values if value.startswith(key.encode())]
        assert of_key == [f"{key}-{number}".encode() for number in range(10)]


@promised("A group goes on where it stopped")
def test_group_goes_on_where_it_stopped(form: Opened, topic: str) -> None:
    client, first, second = form.client(), Heard(), Heard()
    client.send(topic, b"before")
    client.subscribe(topic, first, group=topic)
    with running(client):
        first.wait(1)
    other = form.client()
    other.send(topic, b"after")
    other.subscribe(topic, second, group=topic)
    with running(other):
        second.wait(1)
    assert (first.values, second.values) == ([b"before"], [b"after"])


@promised("A group goes on where it stopped")
def test_group_that_starts_at_the_end_misses_nothing_later(form: Opened, topic: str) -> None:
    client, heard = form.client(), Heard()
    client.send(topic, b"before")
    client.subscribe(topic, heard, group=topic, from_beginning=False)
    with running(client):
        until(lambda: client.send(topic, b"probe") and heard.values, "the group has joined")
    client.send(topic, b"meanwhile")
    with running(client):
        until(lambda: b"meanwhile" in heard.values, "what was sent while nobody was there")
    assert b"before" not in heard.values


@promised("Batches")
def test_handler_takes_batches(form: Opened, topic: str) -> None:
    client = form.client()
    sizes: list[int] = []

    def together(messages: list[penstock.Message]) -> None:
        sizes.append(len(messages))

    sent_values(client, topic, 40)
    client.subscribe(topic, together, group=topic, batch=20)
    with running(client):
        until(lambda: sum(sizes) >= 40, "all are handled")
    assert sum(sizes) == 40 and max(sizes) > 1


# Groups


@promised("Groups share partitions, and rebalance when members come and go")
def test_members_share_the_work_and_take_over_from_each_other(form: Opened, topic: str) -> None:
    one, two, by_one, by_two = form.client(), form.client(), Heard(), Heard()
    one.subscribe(topic, by_one, group=topic)
    two.subscribe(topic, by_two, group=topic)
    sent = 0

    def until_both_got_some() -> bool:
        nonlocal sent
        one.send(topic, f"{sent}", key=f"{sent}")
        sent += 1
        return bool(by_one.values) and bool(by_two.values)

    with running(one):
        one.send(topic, b"alone")
        until(lambda: by_one.values, "one works alone")
        with running(two):
            # A broker's topics have one partition unless somebody says otherwise: then only one member works.
            if form.name != "broker":
                until(until_both_got_some, "both work")
        one.send(topic, b"alone again")
        until(lambda: b"alone again" in by_one.values + by_two.values, "one takes over")
        until(lambda: len(by_one.values) + len(by_two.values) >= sent + 2, "everything is handled")
    counts = by_one.counts + by_two.counts
    assert set(counts) == {b"alone", b"alone again", *(f"{number}".encode() for number in range(sent))}


@promised("A member whose process hangs or dies is replaced, and fenced", not_by=NO_OTHER_PROCESS)
def test_member_that_hangs_is_replaced_and_its_late_work_moves_nothing(
    form: Opened, topic: str, quick_sessions: None
) -> None:
    client, heard = form.client(), Heard()
    sent_values(client, topic, 20)
    child = form.child("nap", topic, topic)
    held = child.line()
    child.pause()
    client.subscribe(topic, heard, group=topic)
    with running(client):
        until(lambda: len(set(heard.values)) == 20, "the other member handles everything", 90)
    assert held.encode() in heard.values
    assert max(heard.counts.values()) == 1
    child.resume()
    client.send(topic, b"end", key=b"end")
    while child.line() != "end":
        pass
    child.kill()
    third, later = form.client(), Heard()
    third.subscribe(topic, later, group=topic)
    with running(third):
        third.send(topic, b"last", key=b"end")
        until(lambda: b"last" in later.values, "the group goes on", 90)
    assert set(later.values) <= {b"end", b"last"}


@promised("A member whose process hangs or dies is replaced, and fenced", not_by=NO_OTHER_PROCESS)
def test_work_of_a_killed_process_is_done_by_others(form: Opened, topic: str, quick_sessions: None) -> None:
    client, heard = form.client(), Heard()
    values = sent_values(client, topic, 20)
    child = form.child("hold", topic, topic)
    held = child.line()
    child.kill()
    client.subscribe(topic, heard, group=topic)
    with running(client):
        until(lambda: len(set(heard.values)) == 20, "everything is handled", 90)
    assert held.encode() in heard.values
    assert set(heard.values) == set(values)


@promised("What a killed producer was told is stored", not_by=NO_OTHER_PROCESS)
def test_acknowledged_messages_of_killed_producers_arrive_in_order(form: Opened, topic: str) -> None:
    acknowledged = {}
    for turn in range(2):
        child = form.child("send", topic, f"p{turn}")
        for _ in range(20):
            acknowledged[f"p{turn}"] = int(child.line())
        child.kill()
        acknowledged[f"p{turn}"] = max([acknowledged[f"p{turn}"], *(int(line) for line in child.rest())])
    client, heard = form.client(), Heard()
    client.subscribe(topic, heard, group=topic)
    with running(client):
        heard.wait(sum(last + 1 for last in acknowledged.values()))
    for name, last in acknowledged.items():
        of_name = [value.decode() for value in heard.values if value.decode().startswith(f"{name}-")]
        assert of_name[: last + 1] == [f"{name}-{number}" for number in range(last + 1)]


@promised("Messages, groups and delayed messages outlive all processes that use them", not_by=["memory", "tcp"])
def test_everything_is_there_when_nobody_was(form: Opened, topic: str) -> None:
    with penstock.open(form.address) as first:
        heard = Heard()
        first.subscribe(topic, heard, group=topic)
        with running(first):
            first.send(topic, b"handled", key="k")
            heard.wait(1)
        first.send(topic, b"waits", key="k")
        first.send(topic, b"late", key="k", delay="500ms")
    client, later = form.client(), Heard()
    client.subscribe(topic, later, group=topic)
    with running(client):
        later.wait(2)
    assert later.values == [b"waits", b"late"]


# Failures


@promised("Retries with back-off, dead letters")
def test_failing_message_is_retried_and_becomes_a_dead_letter(form: Opened, topic: str) -> None:
    client, dead = form.client(), Heard()
    attempts: list[tuple[int, float]] = []

    def fails(message: penstock.Message) -> None:
        attempts.append((message.attempt, time.monotonic()))
        raise ValueError("no")

    client.send(topic, b"bad", key="k")
    client.subscribe(topic, fails, group=topic, retries=SOON)
    client.subscribe(dead_topic(topic), dead, group=f"{topic}.dead-letters")
    with running(client):
        (letter,) = dead.wait(1)
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    assert attempts[1][1] - attempts[0][1] >= 0.1
    assert attempts[2][1] - attempts[1][1] >= 0.2
    assert (letter.value, letter.key) == (b"bad", b"k")
    assert text_of(letter.headers, ERROR) == "ValueError: no"


@promised("Dedup by business id")
def test_business_id_is_handled_once(form: Opened, topic: str) -> None:
    client, heard = form.client(), Heard()
    for value in (b"one", b"one again", b"two"):
        client.send(topic, value, key="k", biz_id=value.decode().split()[0])
    client.subscribe(topic, heard, group=topic, dedup=penstock.Dedup(penstock.MemoryStore()))
    with running(client):
        heard.wait(2)
        client.send(topic, b"three", key="k", biz_id="three")
        until(lambda: b"three" in heard.values, "the last one is handled")
    assert heard.values == [b"one", b"two", b"three"]


# Delay


@promised("Delay: never early, once; list, cancel, replace")
def test_delayed_message_is_listed_cancelled_and_replaced(form: Opened, topic: str) -> None:
    client = form.client()
    client.send(topic, b"first", key="k", delay="1h", timer_id="a")
    client.send(topic, b"other", key="k", delay="2h", timer_id="b")
    assert [each.value for each in client.timers(topic)] == [b"first", b"other"]
    client.reschedule(topic, "a", b"second", key="k", delay="3h")
    assert [each.value for each in client.timers(topic, timer_id="a")] == [b"second"]
    client.cancel(topic, "b", key="k")
    assert [each.value for each in form.client().timers(topic)] == [b"second"]


@promised("Delay: never early, once; list, cancel, replace")
def test_delayed_message_is_not_early_and_comes_once(form: Opened, topic: str) -> None:
    client, heard = form.client(), Heard()
    client.subscribe(topic, heard, group=topic)
    with running(client):
        began_ms = time.time_ns() // 1_000_000
        due_ms = {f"late {number}".encode(): began_ms + 1500 - number * 50 for number in range(5)}
        for value, due in due_ms.items():
            client.send(topic, value, key="k", deliver_at=due)
        client.send(topic, b"now", key="k")
        assert client.flush()
        until(form.has_taken_in_delayed, "the delayed messages are taken in")
        is_in_time = time.time_ns() // 1_000_000 < min(due_ms.values())
        heard.wait(6)
    assert sorted(heard.values) == sorted([b"now", *due_ms])
    for value, heard_ms in zip(heard.values, heard.heard_ms, strict=True):
        assert heard_ms >= due_ms.get(value, 0)
    if is_in_time:
        # One that is due when it is taken in comes in the order of sends.
        assert heard.values == [b"now", *sorted(due_ms, key=lambda value: due_ms[value])]
    assert client.timers(topic) == []


@promised("Delay: never early, once; list, cancel, replace")
def test_schedule_repeats_until_it_is_cancelled(form: Opened, topic: str) -> None:
    client, heard = form.client(), Heard()
    client.subscribe(topic, heard, group=topic)
    with running(client):
        client.send(topic, b"tick", key="k", schedule="every 1s", timer_id="t")
        heard.wait(2)
        client.cancel(topic, "t", key="k")
        assert client.timers(topic) == []


# Tags


@promised("Tags")
def test_tags_choose_messages(form: Opened, topic: str) -> None:
    client, heard = form.client(), Heard()
    for value, tags in (("a", ["red"]), ("b", ["red", "test"]), ("c", []), ("d", ["red"])):
        client.send(topic, value, key="k", tags=tags)
    client.subscribe(topic, heard, group=topic, tags="red and not test")
    with running(client):
        heard.wait(2)
        client.send(topic, "e", key="k", tags=["red"])
        heard.wait(3)
    assert heard.values == [b"a", b"d", b"e"]
    assert heard.messages[0].topic == topic


# Requests


@promised("Request and reply")
def test_request_is_answered(form: Opened, topic: str) -> None:
    server, client = form.client(), form.client()

    def answer(message: penstock.Message) -> None:
        message.reply((message.value or b"").upper())

    server.subscribe(topic, answer, group=topic)
    with running(server):
        assert client.request(topic, b"ping", timeout="60s").value == b"PING"
        assert client.request(topic, b"pong", timeout="60s").value == b"PONG"


# Transactions


@promised("Transactions, exactly-once subscriptions")
def test_transaction_is_all_or_nothing(form: Opened, topic: str) -> None:
    client, heard = form.client(), Heard()
    with client.transaction() as transaction:
        transaction.send(topic, b"a", key="1")
        transaction.send(topic, b"b", key="2")
    with pytest.raises(ZeroDivisionError), client.transaction() as transaction:
        transaction.send(topic, b"never", key="1")
        raise ZeroDivisionError
    client.send(topic, b"c", key="1")
    client.subscribe(topic, heard, group=topic)
    with running(client):
        heard.wait(3)
    assert sorted(heard.values) == [b"a", b"b", b"c"]


@promised("Transactions, exactly-once subscriptions")
def test_later_user_of_a_transactional_id_fences_the_earlier_one(form: Opened, topic: str) -> None:
    first, second, heard = form.client(), form.client(), Heard()
    with pytest.raises(penstock.TransactionError), first.transaction(topic) as late:
        late.send(topic, b"late")
        with second.transaction(topic) as transaction:
            transaction.send(topic, b"second")
    second.subscribe(topic, heard, group=topic)
    with running(second):
        heard.wait(1)
        second.send(topic, b"end")
        until(lambda: b"end" in heard.values, "the end")
    assert b"late" not in heard.values


@promised("Transactions, exactly-once subscriptions")
def test_exactly_once_subscription_sends_each_result_once(form: Opened, topic: str) -> None:
    client, results = form.client(), Heard()
    failures: set[bytes] = set()
    target = f"{topic}.results"

    def double(message: penstock.Message) -> None:
        value = message.value or b""
        message.transaction.send(target, value * 2, key=value)
        if value in (b"3", b"7") and value not in failures:
            failures.add(value)
            raise ValueError("once")

    values = sent_values(client, topic, 10)
    client.subscribe(topic, double, group=topic, delivery="exactly-once", retries=SOON)
    client.subscribe(target, results, group=f"{topic}.reader")
    with running(client):
        until(lambda: len(results.values) >= 10, "all results are there")
    assert sorted(results.values) == sorted(value * 2 for value in values)


# Sending


@promised("Batched sending with callbacks")
def test_every_message_is_reported_with_its_place(form: Opened, topic: str) -> None:
    client = form.client(sending=penstock.Sending(linger="20ms"))
    reported: list[penstock.Receipt | penstock.SendError] = []
    futures = [client.send_soon(topic, b"x", key="k", on_result=reported.append) for _ in range(500)]
    assert client.flush()
    offsets = [future.result().offset for future in futures]
    assert offsets == sorted(offset for offset in offsets if offset is not None)
    assert len(set(offsets)) == 500
    until(lambda: len(reported) == 500, "every callback was called")
    assert client.counters.sent == 500


@promised("A message that is too large fails alone")
def test_message_that_is_too_large_fails_and_the_others_arrive(form: Opened, topic: str) -> None:
    client, heard = form.client(sending=penstock.Sending(linger="50ms")), Heard()
    good = [client.send_soon(topic, f"{number}", key="k") for number in range(3)]
    with pytest.raises(penstock.SendError):
        client.send(topic, b"x" * 2_000_000, key="k")
    assert [future.result().topic for future in good] == [topic] * 3
    client.subscribe(topic, heard, group=topic)
    with running(client):
        heard.wait(3)
