"""`penstock timer` as it is run, against a real broker."""

from __future__ import annotations

import json

from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.delayed import Arrivals, delayed, send
from support.programs import PENSTOCK, run
from support.waiting import PATIENCE_S


def test_a_cancelled_timer_does_not_come_whichever_partition_it_waits_in(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 3)])[topic].result(PATIENCE_S)
    send(
        broker.kafka, topic, [delayed(b"gone", "4s", timer_id="A"), delayed(b"stays", "4s", timer_id="B")], partition=2
    )
    done = run([PENSTOCK, "timer", "cancel", topic, "A", "nobody", "--json", "-b", broker.kafka])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"topic": topic, "partitions": [0, 1, 2], "cancelled": ["A", "nobody"]}
    with Arrivals(broker.kafka, topic, 2) as arrivals:
        arrivals.until(1)
    assert arrivals.values == [b"stays"]


def test_a_topic_or_partition_that_is_not_there_is_named(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    done = run([PENSTOCK, "timer", "cancel", topic, "A", "-b", broker.kafka])
    assert done.returncode == 1 and topic.encode() in done.stderr
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_S)
    done = run([PENSTOCK, "timer", "cancel", topic, "A", "--partition", "7", "-b", broker.kafka])
    assert done.returncode == 1 and b"no partition 7" in done.stderr
