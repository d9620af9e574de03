"""Transactions with `penstock.Client`: all or nothing, as `read_committed` readers see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.foreign import values_in
from support.waiting import PATIENCE_S, until

EXACTLY_ONCE = penstock.Sending(delivery="exactly-once")


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    return topic


def test_a_transaction_is_seen_when_its_block_ends(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    with client.transaction() as transaction:
        for number in range(10):
            transaction.send(created, str(number), partition=number % 2, tags=["even" if number % 2 == 0 else "odd"])
        assert values_in(broker.kafka, created) == []
    assert sorted(filter(None, values_in(broker.kafka, created))) == [str(number).encode() for number in range(10)]
    assert client.counters.sent == 10


def test_an_exception_aborts_and_comes_through(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    with pytest.raises(KeyError, match="reason"), client.transaction() as transaction:
        transaction.send(created, b"never seen", partition=0)
        raise KeyError("reason")
    with client.transaction() as transaction:
        transaction.send(created, b"seen", partition=0)
    assert values_in(broker.kafka, created) == [b"seen"]
    assert client.counters.failed == 1


def test_a_delayed_message_of_an_aborted_transaction_never_comes(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    with pytest.raises(KeyError), client.transaction() as transaction:
        transaction.send(created, b"aborted", partition=0, delay="200ms")
        raise KeyError
    with client.transaction() as transaction:
        transaction.send(created, b"committed", partition=0, delay="400ms")
    assert values_in(broker.kafka, created, 1) == [b"committed"]


def test_bad_input_in_a_transaction_is_named_and_aborts(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    with pytest.raises(penstock.InvalidInputError, match="is not a tag"), client.transaction() as transaction:
        transaction.send(created, b"good")
        transaction.send(created, b"bad", tags=["a,b"])
    assert values_in(broker.kafka, created) == []


def test_what_a_broker_refuses_aborts_the_transaction_and_the_next_one_is_free(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    with pytest.raises(penstock.TransactionError), client.transaction() as transaction:
        transaction.send(created, b"good", partition=0)
        transaction.send(created, b"bad", partition=1, headers={"penstock-delay": "whenever"})
    with pytest.raises(penstock.TransactionError, match="Unknown partition"), client.transaction() as transaction:
        transaction.send(created, b"good", partition=0)
        transaction.send(created, b"bad", partition=7)
    with client.transaction() as transaction:
        transaction.send(created, b"after", partition=0)
    assert values_in(broker.kafka, created) == [b"after"]


def test_a_client_that_was_fenced_is_told_and_begins_anew_next_time(broker: BrokerProcess, created: str) -> None:
    with penstock.Client(broker.kafka) as old, penstock.Client(broker.kafka) as new:
        with old.transaction("payments") as transaction:
            transaction.send(created, b"1", partition=0)
        with pytest.raises(penstock.FencedError, match="payments"), old.transaction("payments") as transaction:
            transaction.send(created, b"never seen", partition=0)
            with new.transaction("payments") as other:
                other.send(created, b"2", partition=0)
        with old.transaction("payments") as transaction:
            transaction.send(created, b"3", partition=0)
    assert values_in(broker.kafka, created) == [b"1", b"2", b"3"]


def test_transactions_of_one_id_take_turns_and_others_do_not(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    inside: list[int] = []

    def work(number: int) -> None:
        with client.transaction("turns") as transaction:
            inside.append(1)
            assert len(inside) == 1
            transaction.send(created, str(number))
            inside.pop()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    with client.transaction() as one, client.transaction() as another:
        one.send(created, b"one")
        another.send(created, b"another")
    for thread in threads:
        thread.join()
    assert len(values_in(broker.kafka, created)) == 8


def test_a_transaction_survives_a_broker_that_is_killed_before_its_commit(
    new_broker: BrokerFactory, topic: str
) -> None:
    broker = new_broker()
    with penstock.Client(broker.kafka) as client:
        with client.transaction("steady") as transaction:
            transaction.send(topic, b"before", partition=0)
        with client.transaction("steady") as transaction:
            transaction.send(topic, b"across", partition=0)
            broker.kill()
            broker.start()
        with client.transaction("steady") as transaction:
            transaction.send(topic, b"after", partition=0)
    assert values_in(broker.kafka, topic) == [b"before", b"across", b"after"]


def test_exactly_once_sends_each_message_in_a_transaction(broker: BrokerProcess, created: str) -> None:
    with penstock.Client(broker.kafka, sending=EXACTLY_ONCE) as client:
        assert client.send(created, b"first", partition=0) == penstock.Receipt(created, 0, 0)
        futures = [client.send_soon(created, str(number), partition=0) for number in range(500)]
        assert client.flush()
        assert all(future.result(0).offset for future in futures)
        assert client.counters == penstock.Counters(sent=501)
    assert values_in(broker.kafka, created) == [b"first", *(str(number).encode() for number in range(500))]


def test_one_refused_message_does_not_keep_the_others_of_its_transaction_from_being_sent(
    broker: BrokerProcess, created: str
) -> None:
    with penstock.Client(broker.kafka, sending=EXACTLY_ONCE) as client:
        client.send(created, b"first", partition=0)
        good = [client.send_soon(created, f"a{number}", partition=0) for number in range(20)]
        bad = client.send_soon(created, b"bad", partition=0, headers={"penstock-delay": "whenever"})
        good += [client.send_soon(created, f"b{number}", partition=0) for number in range(20)]
        assert client.flush()
        assert isinstance(bad.exception(0), penstock.SendError)
        assert [future.exception(0) for future in good] == [None] * 40
    wanted = [
        b"first",
        *(f"a{number}".encode() for number in range(20)),
        *(f"b{number}".encode() for number in range(20)),
    ]
    assert values_in(broker.kafka, created) == wanted


def test_a_new_client_of_an_id_ends_what_the_old_one_left_open(broker: BrokerProcess, created: str) -> None:
    with penstock.Client(broker.kafka) as old:
        left = old.transaction("heir")
        left.__enter__().send(created, b"left open", partition=0)
        until(lambda: b"left open" in values_in(broker.kafka, created, committed=False), "it was sent")
        sending = penstock.Sending(delivery="exactly-once", transactional_id="heir")
        with penstock.Client(broker.kafka, sending=sending) as new:
            new.send(created, b"new", partition=0)
        assert values_in(broker.kafka, created) == [b"new"]
        with pytest.raises(penstock.FencedError):
            left.__exit__(None, None, None)


def test_exactly_once_fails_when_the_cluster_is_away_for_too_long(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    sending = penstock.Sending(delivery="exactly-once", tries=2, try_timeout="1s")
    with penstock.Client(broker.kafka, sending=sending) as client:
        until(lambda: _is_sent(client, topic), "the topic is there")
        broker.kill()
        future = client.send_soon(topic, b"away")
        assert isinstance(future.exception(PATIENCE_S), penstock.SendError)
        broker.start()
        until(lambda: _is_sent(client, topic), "the client has found the broker again")


def _is_sent(client: penstock.Client, topic: str) -> bool:
    try:
        client.send(topic, b"value")
    except penstock.SendError:
        return False
    return True
