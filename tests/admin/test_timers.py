"""Messages that wait: pages over all partitions by due time, and partial failure of cancelling."""

from __future__ import annotations

import pytest

from penstock.admin import AdminError, Cluster, NewTopic
from support.broker_process import BrokerProcess
from support.delayed import delayed, send


def test_what_waits_comes_in_pages_by_due_time_over_all_partitions(
    broker: BrokerProcess, cluster: Cluster, topic: str
) -> None:
    cluster.topics.create([NewTopic(name=topic, partitions=3)]).all()
    for partition in range(3):
        send(
            broker.kafka,
            topic,
            [delayed(b"%d" % hours, f"{hours}h") for hours in range(1 + partition, 11, 3)],
            partition=partition,
        )
    found: list[bytes | None] = []
    after: str | None = None
    sizes = []
    while True:
        page = cluster.timers.list(topic, limit=4, after=after)
        found += [message.value for message in page.items]
        sizes.append(len(page.items))
        after = page.next
        if after is None:
            break
    assert found == [b"%d" % hours for hours in range(1, 11)]
    assert sizes == [4, 4, 2]
    only = cluster.timers.list(topic, partition=1)
    assert [message.value for message in only.items] == [b"2", b"5", b"8"] and only.next is None
    due_ms = [message.due_ms for message in cluster.timers.list(topic).items]
    window = cluster.timers.list(topic, due_from_ms=due_ms[2], due_until_ms=due_ms[8], limit=4)
    rest = cluster.timers.list(topic, due_from_ms=due_ms[2], due_until_ms=due_ms[8], limit=4, after=window.next)
    assert [message.value for page in (window, rest) for message in page.items] == [b"%d" % n for n in range(3, 9)]
    assert rest.next is None
    with pytest.raises(AdminError, match="does not continue"):
        cluster.timers.list(topic, after="0-1")


def test_one_timer_is_cancelled_and_one_does_not_wait(broker: BrokerProcess, cluster: Cluster, topic: str) -> None:
    cluster.topics.create([NewTopic(name=topic, partitions=2)]).all()
    send(broker.kafka, topic, [delayed(b"x", "1h", timer_id="A")], partition=1)
    found = cluster.timers.find(topic, ["A", "B"])
    assert [message.value for message in found["A"]] == [b"x"]
    done = cluster.timers.cancel(topic, ["A", "B"])
    assert done.values == {"A": (1,)}
    assert done.errors["B"].code == "RESOURCE_NOT_FOUND"
    assert cluster.timers.list(topic).items == ()


def test_a_topic_or_partition_that_does_not_exist_is_named(cluster: Cluster, topic: str) -> None:
    with pytest.raises(AdminError) as missing:
        cluster.timers.list(topic)
    assert missing.value.code == "UNKNOWN_TOPIC_OR_PARTITION"
    cluster.topics.create([NewTopic(name=topic, partitions=1)]).all()
    with pytest.raises(AdminError, match="has no partition 7"):
        cluster.timers.find(topic, ["A"], partition=7)
