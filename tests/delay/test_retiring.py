"""A retired partition delivers what waits in it, unless it is cancelled or replaced, wherever that is sent."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.delayed import Arrivals, Sending, delayed, send
from support.listing import listed
from support.retiring import retire
from support.waiting import PATIENCE_S
from support.wire import Wire


def cancel(name: str) -> Sending:
    return Sending(b"", [("penstock-cancel", name.encode())])


def test_names_that_wait_in_a_retired_partition_can_be_cancelled_and_replaced(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 2)])[topic].result(PATIENCE_S)
    messages = [delayed(value, "3s", timer_id=value.decode()) for value in (b"gone", b"replaced", b"kept")]
    send(broker.kafka, topic, messages, partition=1)
    with Wire(broker.address) as wire:
        assert retire(wire, topic, "1:0")[0] == 0
    replacing = delayed(b"in its place", "2s", timer_id="replaced")
    send(broker.kafka, topic, [cancel("gone"), replacing, delayed(b"new", "2s")], partition=1)
    assert [record.value for record in listed(broker.kafka, topic, 1)] == [b"kept"]
    assert [record.value for record in listed(broker.kafka, topic, 0)] == [b"in its place", b"new"]
    with Arrivals(broker.kafka, topic, 1) as retired, Arrivals(broker.kafka, topic, 0) as successor:
        successor.until(2)
        retired.until(1)
        assert retired.values == [b"kept"]
        assert successor.values == [b"in its place", b"new"]
