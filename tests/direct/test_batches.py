"""Handlers that take many messages of a database at once."""

from __future__ import annotations

import threading

import penstock
from penstock.ids import TopicPartition
from support.waiting import until

from .conftest import OpenClient

TOPIC, GROUP = "orders", "billing"
COUNT = 12_000


def test_large_batches_have_every_message_once_and_are_committed(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    client.create_topic(TOPIC, 2)
    sent = [b"%d" % number for number in range(COUNT)]
    client.send_many(TOPIC, sent[::2], partition=0)
    client.send_many(TOPIC, sent[1::2], partition=1)
    lock, calls = threading.Lock(), list[list[penstock.Message]]()

    def handle(messages: list[penstock.Message]) -> None:
        with lock:
            calls.append(messages)

    client.subscribe(TOPIC, handle, group=GROUP, batch=1_000, in_flight=6_000, from_beginning=True)
    client.start()
    until(lambda: sum(map(len, calls)) >= COUNT, "all messages are handled")
    client.stop()
    for partition in range(2):
        got = [message.value for call in calls for message in call if message.partition == partition]
        assert got == sent[partition::2]
    tps = [TopicPartition(TOPIC, partition) for partition in range(2)]
    assert client._sql.committed(GROUP, tps) == dict.fromkeys(tps, COUNT // 2)
