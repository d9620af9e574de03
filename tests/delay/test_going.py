"""What waits keeps a retired partition until it has been delivered, and goes with a topic that is deleted."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from conftest import BrokerFactory
from penstock.delay.index_files import SAVE_AFTER
from support.broker_process import BrokerProcess
from support.commands import told
from support.delayed import Arrivals, Sending, assert_not_early, delayed, send
from support.listing import listed
from support.programs import PENSTOCK, run
from support.waiting import PATIENCE_S, until

OFTEN = {"log.retention_check_ms": 50}
"""A broker that looks all the time whether a retired partition can go."""


def admin_of(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.kafka})


def create(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    admin.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(PATIENCE_S)


def retire(broker: BrokerProcess, topic: str) -> None:
    """Partition 1 of two."""
    done = run([PENSTOCK, "topic", "retire-partitions", topic, "--partitions", "1", "--json", "-b", broker.kafka])
    assert told(done)["retired"] == {"1": 0}


def empty(admin: AdminClient, topic: str, partition: int, before: int = OFFSET_END) -> None:
    """Deletes what is in a log; what waits beside it is left alone."""
    place = TopicPartition(topic, partition, before)
    admin.delete_records([place])[TopicPartition(topic, partition)].result(PATIENCE_S)


def count(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, PATIENCE_S).topics[topic].partitions)


@pytest.mark.parametrize("number", [20, SAVE_AFTER + 1000], ids=["in memory", "on disk"])
def test_a_retired_partition_goes_when_the_last_that_waits_in_it_has_been_delivered(
    new_broker: BrokerFactory, topic: str, number: int
) -> None:
    broker = new_broker(OFTEN)
    admin = admin_of(broker)
    create(admin, topic, partitions=2)
    waiting = [delayed(b"%d" % each, f"{3000 + each % 500}ms") for each in range(number)]
    offsets = send(broker.kafka, topic, [Sending(b"now"), *waiting, delayed(b"end", "6s")], partition=1)
    retire(broker, topic)
    # From here on only what waits keeps it, and what has been delivered.
    empty(admin, topic, 1, max(offsets) + 1)
    with Arrivals(broker.kafka, topic, 1) as arrivals:
        arrivals.until_seen(b"end")
    assert Counter(arrivals.values) == Counter([*(message.value for message in waiting), b"end"])
    assert_not_early(arrivals.all)
    assert count(admin, topic) == 2
    empty(admin, topic, 1)
    until(lambda: count(admin, topic) == 1, "the retired partition is gone")
    assert listed(broker.kafka, topic, 0) == []


@pytest.mark.parametrize("storage", ["segmented", "memory"])
def test_a_retired_partition_goes_when_all_that_waits_in_it_is_cancelled(
    new_broker: BrokerFactory, topic: str, storage: str
) -> None:
    broker = new_broker(OFTEN)
    admin = admin_of(broker)
    create(admin, topic, partitions=2, **{"penstock.storage": storage})
    schedule = Sending(b"often", [("penstock-schedule", b"every 1h"), ("penstock-timer-id", b"schedule")])
    send(broker.kafka, topic, [schedule, delayed(b"late", "1h", timer_id="late")], partition=1)
    retire(broker, topic)
    assert len(listed(broker.kafka, topic, 1)) == 2
    send(broker.kafka, topic, [Sending(b"", [("penstock-cancel", name)]) for name in (b"schedule", b"late")], 1)
    empty(admin, topic, 1)
    until(lambda: count(admin, topic) == 1, "the retired partition is gone")


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
def test_a_topic_made_anew_delivers_nothing_of_what_waited_in_the_one_before(
    new_broker: BrokerFactory, topic: str, is_killed: bool
) -> None:
    broker = new_broker()
    admin = admin_of(broker)
    create(admin, topic)
    old = [delayed(b"old", f"{2500 + each}ms", timer_id=f"{each}") for each in range(50)]
    send(broker.kafka, topic, [*old, delayed(b"old", "1h")])
    assert b"old" in [each.value for each in listed(broker.kafka, topic)]
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    create(admin, topic)
    if is_killed:
        broker.kill()
        broker.start()
    assert listed(broker.kafka, topic) == []
    new = [delayed(b"new %d" % each, f"{3500 + each}ms", timer_id=f"{each}") for each in range(0, 50, 2)]
    send(broker.kafka, topic, [Sending(b"first"), *new, delayed(b"end", "4s")])
    with penstock.Client(broker.kafka) as client:
        assert [each.value for each in client.timers(topic, timer_id="2")] == [b"new 2"]
        assert client.timers(topic, timer_id="1") == []
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until_seen(b"end")
    assert arrivals.values == [b"first", *(message.value for message in new), b"end"]
    assert listed(broker.kafka, topic) == []
