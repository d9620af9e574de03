"""What waits outlives the broker: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from support.broker_process import BrokerProcess
from support.delayed import Arrivals, Sending, assert_not_early, delayed, send, send_with
from support.delayed_load import DelayedLoad
from support.waiting import PATIENCE_S

BrokerFactory = Callable[..., BrokerProcess]


def stop(broker: BrokerProcess) -> None:
    assert broker.stop() == 0


def kill(broker: BrokerProcess) -> None:
    broker.kill()


@pytest.mark.parametrize("end", [stop, kill])
def test_what_waits_is_delivered_after_a_restart(
    new_broker: BrokerFactory, end: Callable[[BrokerProcess], None]
) -> None:
    broker = new_broker()
    messages = [delayed(b"%d" % number, str(300 + number % 4000)) for number in range(4000)]
    send(broker.kafka, "t", [Sending(b"first"), *messages, delayed(b"named", "3000", timer_id="N")])
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until(200)
    end(broker)
    broker.start()
    send(broker.kafka, "t", [Sending(b"never", [("penstock-cancel", b"N")]), delayed(b"end", "4s")])
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until_seen(b"end")
    assert_not_early(arrivals.all)
    assert arrivals.values[0] == b"first" and arrivals.values[-1] == b"end"
    assert sorted(map(int, arrivals.values[1:-1])) == list(range(4000))


@pytest.mark.parametrize("end", [stop, kill])
def test_a_transaction_that_is_open_across_a_restart(
    new_broker: BrokerFactory, end: Callable[[BrokerProcess], None]
) -> None:
    broker = new_broker()
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "x", "linger.ms": 5})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    send_with(producer, "t", [delayed(b"in", "100"), delayed(b"in too", "200")])
    send(broker.kafka, "t", [delayed(b"out", "100")])
    with Arrivals(broker.kafka, "t", isolation="read_uncommitted") as arrivals:
        arrivals.until(1)
    end(broker)
    broker.start()
    producer.commit_transaction(PATIENCE_S)
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until(3)
    assert arrivals.values == [b"out", b"in", b"in too"]


def test_a_schedule_goes_on_after_a_kill(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    send(broker.kafka, "t", [Sending(b"tick", [("penstock-schedule", b"every 1s")])])
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until(2)
    broker.kill()
    broker.start()
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until(4)
    dues = [int(arrival.headers["penstock-deliver-at"]) for arrival in arrivals.all]
    assert len(set(dues)) == len(dues) and all((due - dues[0]) % 1000 == 0 for due in dues)


@pytest.mark.parametrize("flush", [False, True])
def test_nothing_is_lost_or_repeated_by_kills_under_load(new_broker: BrokerFactory, flush: bool) -> None:
    broker = new_broker({"topic.flush.messages": 1} if flush else {})
    load = DelayedLoad(broker.kafka, seed=5)
    chance = random.Random(6)
    for _ in range(4):
        time.sleep(0.5 + chance.random())
        broker.kill()
        broker.start()
    time.sleep(0.5)
    load.stop()
    send(broker.kafka, "t", [delayed(b"end", "2500")])
    with Arrivals(broker.kafka, "t") as arrivals:
        arrivals.until_seen(b"end", 60)
    assert_not_early(arrivals.all)
    counted = Counter(arrivals.values)
    counted.pop(b"end")
    assert load.acknowledged - counted.keys() == set()
    assert [value for value, count in counted.items() if count > 1] == []
    assert len(load.acknowledged) > 500
