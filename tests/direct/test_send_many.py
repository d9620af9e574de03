"""Many messages in one call to a database."""

from __future__ import annotations

import pytest

import penstock
from penstock import direct
from penstock.brokerless.send_lanes import MAX_BATCH_MESSAGES
from penstock.direct import aio
from penstock.ids import TopicPartition
from support.stores import NewDatabase

from .conftest import OpenClient, OpenStore

TOPIC = "orders"
COUNT = 2 * MAX_BATCH_MESSAGES + 1_000


def stored(client: direct.Client, partition: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    tp, offset = TopicPartition(TOPIC, partition), 0
    while page := client._sql.read(tp, offset, 10_000).messages:
        found += [message.value for message in page]
        offset = page[-1].offset + 1
    return found


def test_call_larger_than_a_batch_is_stored_in_order(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    client.create_topic(TOPIC, 3)
    values = [b"%d" % number for number in range(COUNT)]
    receipts = client.send_many(TOPIC, values, partition=2)
    assert [(receipt.partition, receipt.offset) for receipt in receipts] == [(2, number) for number in range(COUNT)]
    assert stored(client, 2) == values


def test_messages_without_a_key_go_to_all_partitions(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    client.create_topic(TOPIC, 3)
    values = [b"%d" % number for number in range(COUNT)]
    receipts = client.send_many(TOPIC, values)
    for partition in range(3):
        own = [value for value, receipt in zip(values, receipts, strict=True) if receipt.partition == partition]
        assert own and stored(client, partition) == own


def test_refused_messages_fail_alone_wherever_they_are(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    client.create_topic(TOPIC, 1, {"max.message.bytes": "100"})
    large = b"x" * 101
    refused = {0, 1, 2_499, *range(MAX_BATCH_MESSAGES - 1, MAX_BATCH_MESSAGES + 2), COUNT - 1}
    values = [large if number in refused else b"%d" % number for number in range(COUNT)]
    with pytest.raises(penstock.SendManyError) as raised:
        client.send_many(TOPIC, values)
    results = raised.value.results
    assert {number for number, each in enumerate(results) if isinstance(each, penstock.SendError)} == refused
    assert stored(client, 0) == [value for value in values if value is not large]
    assert client.send(TOPIC, "next").offset == COUNT - len(refused)


def test_message_that_the_server_refuses_is_found_among_others(
    new_database: NewDatabase, open_client: OpenClient
) -> None:
    """MariaDB does not say which row is longer than what it takes."""
    sending = penstock.Sending(batch_bytes=30_000_000)
    client = open_client(new_database("mariadb"), sending=sending)
    client.create_topic(TOPIC, 1, {"max.message.bytes": "20000000"})
    large = b"x" * 9_000_000
    values = [large if number in (3, 9) else b"%d" % number for number in range(10)]
    with pytest.raises(penstock.SendManyError, match="max_allowed_packet") as raised:
        client.send_many(TOPIC, values)
    results = raised.value.results
    assert [number for number, each in enumerate(results) if isinstance(each, penstock.SendError)] == [3, 9]
    assert stored(client, 0) == [value for value in values if value is not large]


def test_partition_that_does_not_exist(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    client.create_topic(TOPIC, 2)
    entries = [penstock.SendEntry(value=b"%d" % number, partition=number % 3) for number in range(6)]
    for _ in range(2):
        # Before and after the client knows the topic.
        with pytest.raises(penstock.SendManyError, match="has no partition 2") as raised:
            client.send_many(TOPIC, entries)
        results = raised.value.results
        assert [isinstance(each, penstock.SendError) for each in results] == [False, False, True] * 2
    assert stored(client, 0) == [b"0", b"3"] * 2


def test_call_beyond_the_buffer_stores_nothing(url: str, open_client: OpenClient) -> None:
    client = open_client(url, sending=penstock.Sending(when_away=penstock.Keep(messages=1_000)))
    client.create_topic(TOPIC)
    with pytest.raises(penstock.SendManyError, match="larger than the buffer of 1000 messages") as raised:
        client.send_many(TOPIC, ["x"] * 1_001)
    assert not raised.value.is_retriable
    assert {type(each) for each in raised.value.results} == {penstock.BufferFullError}
    assert client.counters.failed == 1_001
    # `send_many` waits for the room that calls under way still have.
    futures = [client.send_many_soon(TOPIC, ["y"] * 600)]
    assert len(client.send_many(TOPIC, ["z"] * 1_000)) == 1_000
    assert [len(future.result()) for future in futures] == [600]
    assert stored(client, 0) == [b"y"] * 600 + [b"z"] * 1_000


async def test_asyncio(url: str, open_store: OpenStore) -> None:
    async with aio.Client(url, sending=penstock.Sending(when_away=penstock.Keep(messages=100))) as client:
        await client.create_topic(TOPIC)
        soon = client.send_many_soon(TOPIC, [f"{number}" for number in range(60)])
        receipts = await client.send_many(TOPIC, [f"{number}" for number in range(60, 160)])
        assert [receipt.offset for receipt in receipts] == list(range(60, 160))
        assert len(await soon) == 60
        with pytest.raises(penstock.SendManyError):
            await client.send_many(TOPIC, ["x"] * 101)
    values = [message.value for message in open_store(url).read(TopicPartition(TOPIC, 0), 0, 1_000).messages]
    assert values == [b"%d" % number for number in range(160)]
