"""Subscriptions against a real broker: what is handled, how often, and what of it counts as read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.receiving import (
    SOON,
    Heard,
    committed,
    create,
    ends,
    member_ids,
    running,
    wait_until_committed,
    wait_until_joined,
)
from support.waiting import PATIENCE_S, until


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    return create(admin, topic, 3)


def test_returning_acknowledges(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    heard = Heard()
    client.subscribe(created, heard, group=created, concurrency=4, from_beginning=True)
    values = [f"{number}".encode() for number in range(50)]
    for value in values:
        client.send_soon(created, value)
    with running(client):
        heard.wait(50)
    assert sorted(heard.values) == sorted(values)
    assert committed(broker.kafka, created, created, 3) == {
        number: end for number, end in ends(broker.kafka, created, 3).items() if end
    }


def test_a_group_goes_on_where_it_was(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    first, second = Heard(), Heard()
    client.send(created, b"before")
    client.subscribe(created, first, group=created, from_beginning=True)
    with running(client):
        first.wait(1)
    client.send(created, b"while nobody is there")
    with penstock.Client(broker.kafka) as other:
        other.subscribe(created, second, group=created, from_beginning=True)
        with running(other):
            second.wait(1)
    assert (first.values, second.values) == ([b"before"], [b"while nobody is there"])


def test_a_group_whose_place_is_deleted_goes_on_with_the_first_there_is(
    broker: BrokerProcess, client: penstock.Client, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, 1)
    first, second = Heard(), Heard()
    client.send(topic, b"0")
    client.subscribe(topic, first, group=topic, from_beginning=True)
    with running(client):
        first.wait(1)
    for number in range(1, 5):
        client.send(topic, f"{number}")
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 3)]).values()
    deleted.result(PATIENCE_S)
    with penstock.Client(broker.kafka) as other:
        other.subscribe(topic, second, group=topic, from_beginning=True)
        with running(other):
            second.wait(2)
    assert (first.values, second.values) == ([b"0"], [b"3", b"4"])


def test_a_new_group_may_begin_at_the_end_and_misses_nothing_from_then_on(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard = Heard()
    client.send(created, b"old")
    client.subscribe(created, heard, group=created, from_beginning=False)
    with running(client):
        wait_until_joined(broker.kafka, created)
    # It has read nothing yet; still it knows where it was.
    for partition in range(3):
        client.send(created, f"new {partition}", partition=partition)
    with running(client):
        heard.wait(3)
    assert sorted(heard.values) == [b"new 0", b"new 1", b"new 2"]


def test_each_group_gets_everything(client: penstock.Client, created: str) -> None:
    one, two = Heard(), Heard()
    client.subscribe(created, one, group=f"{created}.one", from_beginning=True)
    client.subscribe(created, two, group=f"{created}.two", from_beginning=True)
    client.send(created, b"to all")
    with running(client):
        one.wait(1)
        two.wait(1)
    assert one.values == two.values == [b"to all"]


def test_a_topic_that_is_not_there_is_made_and_read_from_its_beginning(
    broker: BrokerProcess, client: penstock.Client, topic: str
) -> None:
    heard = Heard()
    client.subscribe(topic, heard, group=topic)
    with running(client):
        wait_until_joined(broker.kafka, topic)
        client.send(topic, b"first")
        heard.wait(1)


def test_handlers_run_beside_each_other_as_many_as_asked_for(client: penstock.Client, created: str) -> None:
    together = threading.Barrier(5)

    @client.subscribe(created, group=created, concurrency=4, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        together.wait(PATIENCE_S)

    for number in range(4):
        client.send(created, f"{number}")
    with running(client):
        # The fifth is the test itself: nobody gets through before all four handlers run.
        together.wait(PATIENCE_S)
    assert not together.broken


def test_an_explicit_verb_settles_whatever_the_handler_does_afterwards(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard, refused = Heard(), []

    @client.subscribe(created, group=created, retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        message.ack()
        try:
            message.retry()
        except penstock.SettledError as error:
            refused.append(error)
        raise RuntimeError("too late to say anything")

    client.send(created, b"once")
    with running(client):
        wait_until_committed(broker.kafka, created, created, 3)
        client.send(created, b"and no more")
        heard.wait(2)
    assert sorted(heard.values) == [b"and no more", b"once"]
    assert len(refused) == 2


def test_a_batch_is_a_list_whose_messages_are_settled_each_on_its_own(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard, sizes = Heard(), []

    @client.subscribe(created, group=created, batch=10, retries=SOON, from_beginning=True)
    def handle(messages: list[penstock.Message]) -> None:
        sizes.append(len(messages))
        for message in messages:
            heard(message)
            if message.value == b"3" and message.attempt == 1:
                message.retry()

    for number in range(30):
        client.send_soon(created, f"{number}")
    client.flush()
    with running(client):
        heard.wait(31)
    assert heard.counts == {f"{number}".encode(): 2 if number == 3 else 1 for number in range(30)}
    assert max(sizes) > 1
    assert max(sizes) <= 10


def test_a_message_that_is_not_settled_in_time_comes_again(client: penstock.Client, created: str) -> None:
    heard, release, late = Heard(), threading.Event(), []

    @client.subscribe(created, group=created, deadline="300ms", concurrency=2, retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        if message.attempt == 1:
            release.wait(PATIENCE_S)
            with pytest.raises(penstock.SettledError):
                message.ack()
            late.append(message)

    client.send(created, b"slow")
    with running(client):
        _, again = heard.wait(2)
        release.set()
        until(lambda: late, "the first handler has found out that it was late")
    assert again.attempt == 2
    assert again.error == "DeadlineError: not settled within 0.3 s"
    assert len(heard.values) == 2


def test_a_deadline_that_is_moved_again_and_again_does_not_end(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard, pause = Heard(), threading.Event()

    @client.subscribe(created, group=created, deadline="400ms", retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        for _ in range(8):
            message.extend("400ms")
            pause.wait(0.1)

    client.send(created, b"long")
    with running(client):
        wait_until_committed(broker.kafka, created, created, 3)
    assert heard.values == [b"long"]


def test_work_longer_than_the_poll_interval_does_not_cost_the_membership(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"groups.min_session_timeout_ms": 1000, "groups.initial_rebalance_delay_ms": 0})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic)
    short = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 200, "max.poll.interval.ms": 1000}
    heard, pause = Heard(), threading.Event()
    with penstock.Client(broker.kafka, settings=short) as client:

        @client.subscribe(topic, group=topic, in_flight=1, from_beginning=True)
        def handle(message: penstock.Message) -> None:
            heard(message)
            if message.value == b"long":
                pause.wait(4)

        for value in (b"long", b"next", b"last"):
            client.send(topic, value, key=b"same")
        with running(client):
            heard.wait(1)
            before = member_ids(broker.kafka, topic)
            heard.wait(3)
            assert member_ids(broker.kafka, topic) == before
            wait_until_committed(broker.kafka, topic, topic)
    assert heard.values == [b"long", b"next", b"last"]


def test_members_that_come_and_go_lose_nothing(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 6)
    # A member that the library lets go without a word is one until its session is over.
    heard, quick = Heard(), {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000}
    sent: list[Any] = []
    with penstock.Client(broker.kafka) as sender, penstock.Client(broker.kafka, settings=quick) as first:
        first.subscribe(topic, heard, group=topic, concurrency=4, from_beginning=True)

        def send_some() -> None:
            for _ in range(300):
                sent.append(f"{len(sent)}".encode())
                sender.send_soon(topic, sent[-1])
            sender.flush()

        with running(first):
            send_some()
            heard.wait(1)
            for _ in range(2):
                with penstock.Client(broker.kafka, settings=quick) as second:
                    second.subscribe(topic, heard, group=topic, concurrency=4, from_beginning=True)
                    with running(second):
                        send_some()
                        wait_until_joined(broker.kafka, topic, 2)
                        send_some()
                send_some()
            until(lambda: set(heard.values) == set(sent), "everything is handled")
            wait_until_committed(broker.kafka, topic, topic, 6)


def test_stopping_finishes_what_runs_and_gives_back_the_rest(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard, begun, go_on = Heard(), threading.Event(), threading.Event()

    @client.subscribe(created, group=created, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        heard(message)

    for number in range(5):
        client.send(created, f"{number}", partition=0)
    client.start()
    assert begun.wait(PATIENCE_S)
    stopping = threading.Thread(target=client.stop)
    stopping.start()
    go_on.set()
    stopping.join(PATIENCE_S)
    # One was being handled; another may have begun before the stop was seen.
    done = len(heard.values)
    assert 1 <= done <= 5
    assert committed(broker.kafka, created, created)[0] == done
    with penstock.Client(broker.kafka) as other:
        rest = Heard()
        other.subscribe(created, rest, group=created)
        if done < 5:
            with running(other):
                rest.wait(5 - done)
        assert heard.values + rest.values == [f"{number}".encode() for number in range(5)]


def test_stopping_does_not_wait_for_ever(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    begun, go_on, heard = threading.Event(), threading.Event(), Heard()

    @client.subscribe(created, group=created, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    client.send(created, b"stuck")
    client.start()
    assert begun.wait(PATIENCE_S)
    client.stop(grace=0.2)
    # What was not finished is given back.
    with penstock.Client(broker.kafka) as other:
        other.subscribe(created, heard, group=created)
        with running(other):
            heard.wait(1)
    go_on.set()


def test_tags_choose_what_comes_and_the_view_is_made(admin: AdminClient, client: penstock.Client, created: str) -> None:
    heard = Heard()
    client.subscribe(created, heard, group=created, tags="checkout and not test", from_beginning=True)
    with running(client):
        client.send(created, b"yes", tags=["checkout"])
        client.send(created, b"no", tags=["checkout", "test"])
        client.send(created, b"neither")
        client.send(created, b"yes again", tags=["eu", "checkout"])
        heard.wait(2)
    assert sorted(heard.values) == [b"yes", b"yes again"]
    assert any(name.startswith(f"{created}.checkout_and_not_test.view-") for name in admin.list_topics().topics)


def test_a_subscription_waits_for_a_cluster_that_is_away(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    broker.stop()
    heard = Heard()
    with penstock.Client(broker.kafka) as client:
        client.subscribe(topic, heard, group=topic, from_beginning=True)
        with running(client):
            broker.start()
            wait_until_joined(broker.kafka, topic)
            client.send(topic, b"at last")
            heard.wait(1)


def test_at_most_once_commits_before_the_handler_is_called(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    at_handling, heard = [], Heard()

    @client.subscribe(created, group=created, delivery="at-most-once", from_beginning=True)
    def handle(message: penstock.Message) -> None:
        at_handling.append(committed(broker.kafka, created, created)[0] > message.offset)
        heard(message)
        raise ValueError("it is gone all the same")

    for number in range(3):
        client.send(created, f"{number}", partition=0)
    with running(client):
        heard.wait(3)
    assert at_handling == [True] * 3
    with penstock.Client(broker.kafka) as other:
        again = Heard()
        other.subscribe(created, again, group=created)
        other.send(created, b"new", partition=0)
        with running(other):
            again.wait(1)
        assert again.values == [b"new"]


@pytest.mark.parametrize(("from_beginning", "where"), [(True, "the oldest messages"), (False, "new messages")])
def test_where_a_new_group_begins_is_said_once(
    broker: BrokerProcess,
    client: penstock.Client,
    created: str,
    caplog: pytest.LogCaptureFixture,
    from_beginning: bool,
    where: str,
) -> None:
    caplog.set_level("INFO")
    heard = Heard()
    client.subscribe(created, heard, group=created, from_beginning=from_beginning)

    def lines() -> list[str]:
        return [
            line
            for line in caplog.messages
            if line.startswith(f"group {created} has no committed offsets for {created}")
        ]

    with running(client):
        wait_until_joined(broker.kafka, created)
        client.send(created, b"x")
        heard.wait(1)
    (line,) = lines()
    assert f"it starts with {where}" in line
    with running(client):
        wait_until_joined(broker.kafka, created)
    assert len(lines()) == 1


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"group.protocol": "consumer", "session.timeout.ms": 7000}, {}, "session.timeout.ms"),
        ({}, {"tags": "a and ("}, "tags"),
    ],
)
def test_what_is_refused_for_good_ends_run_with_the_reason(
    broker: BrokerProcess, topic: str, settings: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with penstock.Client(broker.kafka, settings=settings) as client:
        client.subscribe(topic, Heard(), group=topic, **options)
        with pytest.raises(penstock.InvalidInputError, match=said):
            client.run()
