"""A view as the client libraries of others see it: records, positions, seeks, transactions, refusals."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator

import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidTopicError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from conftest import assert_no_inner_errors
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.viewing import READERS, TAGS, Order, Reader, Shown, create, expected, send
from support.waiting import PATIENCE_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NAMES = ("checkout", "refund", "ship", "refund,test", None)


@pytest.fixture(params=list(READERS))
def read(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


class Shop:
    """A base of two partitions, written in every codec, with a long end in which nothing matches, and a view of it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.base = f"orders-{uuid.uuid4().hex[:8]}"
        self.view = f"payments-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        create(admin, self.base, self.view, "(checkout or refund) and not test", 2, **{"segment.bytes": "40000"})
        orders: list[Order] = []
        for number, codec in enumerate(CODECS):
            part = [
                Order(b"%s-%d-" % (codec.encode(), at) + b"x" * (at % 90), NAMES[(at * 7 + number) % 5], at % 2)
                for at in range(240)
            ]
            send(broker, self.base, part, **{"compression.type": codec})
            orders += part
        rest = [Order(b"nothing", "ship", at % 2) for at in range(300)]
        send(broker, self.base, rest, **{"linger.ms": 0})
        self.shown = expected([*orders, *rest], lambda tags: bool(tags & {"checkout", "refund"}) and "test" not in tags)
        self.ends = {0: 750, 1: 750}


@pytest.fixture(scope="module")
def shop(broker: BrokerProcess) -> Iterator[Shop]:
    yield Shop(broker)
    assert_no_inner_errors(broker)


def test_every_client_gets_what_matches_and_comes_to_the_end(broker: BrokerProcess, shop: Shop, read: Reader) -> None:
    found, positions = read(broker, shop.view, {0: 0, 1: 0}, shop.ends)
    assert found == shop.shown
    assert positions == shop.ends


@pytest.mark.parametrize("offset", [1, 333, 601])
def test_a_client_can_begin_anywhere(broker: BrokerProcess, shop: Shop, read: Reader, offset: int) -> None:
    found, _ = read(broker, shop.view, {1: offset}, {1: 750})
    assert found == [each for each in shop.shown if each.partition == 1 and each.offset >= offset]


def test_offsets_and_times_are_those_of_the_base(broker: BrokerProcess, shop: Shop) -> None:
    consumer = consumer_of(broker)
    for topic in (shop.base, shop.view):
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 750)
    middle = int(time.time() * 1000) - 600_000
    asked = [TopicPartition(topic, 0, middle) for topic in (shop.base, shop.view)]
    in_base, in_view = consumer.offsets_for_times(asked, PATIENCE_S)
    assert in_base.offset == in_view.offset == 0
    consumer.close()


def test_who_waits_at_the_end_gets_what_matches_when_it_comes(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, f"{topic}-view", "wanted")
    lines = _Lines()
    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": topic, "fetch.wait.max.ms": 20, "debug": "fetch"},
        logger=lines.logger,
    )
    consumer.assign([TopicPartition(f"{topic}-view", 0, 0)])
    for number in range(15):
        send(broker, topic, [Order(b"no", "other")])
        deadline = time.monotonic() + PATIENCE_S
        while _position(consumer) < number + 1 and time.monotonic() < deadline:
            assert consumer.poll(0.02) is None
        assert _position(consumer) == number + 1
    send(broker, topic, [Order(b"yes", "other,wanted")])
    message = consumer.poll(PATIENCE_S)
    assert message is not None and (message.offset(), message.value()) == (15, b"yes")
    consumer.close()
    # An answer without a record would make librdkafka double what it asks for, and fail in the end.
    assert not [line for line in lines.said if "ncreasing max fetch bytes" in line]
    assert lines.said


def test_who_reads_committed_is_shown_neither_what_was_aborted_nor_what_is_open(
    broker: BrokerProcess, admin: AdminClient, topic: str, read: Reader
) -> None:
    create(admin, topic, f"{topic}-view", "a")
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for commit in (False, True, False, True, True):
        producer.begin_transaction()
        for tag in ("a", "b", "a"):
            value = b"committed" if commit else b"aborted"
            producer.produce(topic, value, partition=0, headers=[(TAGS, tag.encode())])
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
    consumer = consumer_of(broker)
    _, end = consumer.get_watermark_offsets(TopicPartition(f"{topic}-view", 0), PATIENCE_S)
    found, _ = read(broker, f"{topic}-view", {0: 0}, {0: end}, committed=True)
    assert [each.value for each in found] == [b"committed"] * 6
    everything, _ = read(broker, f"{topic}-view", {0: 0}, {0: end})
    assert sorted(each.value for each in everything) == [b"aborted"] * 4 + [b"committed"] * 6
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0, headers=[(TAGS, b"a")])
    producer.flush(PATIENCE_S)
    again, _ = read(broker, f"{topic}-view", {0: 0}, {0: end}, committed=True)
    assert again == found
    producer.abort_transaction(PATIENCE_S)
    consumer.close()


def test_an_expression_can_be_changed_while_the_view_is_read(
    broker: BrokerProcess, admin: AdminClient, topic: str, read: Reader
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    view = f"{topic}-view"
    create(admin, topic, view, "a")
    send(broker, topic, [Order(b"1", "a"), Order(b"2", "b"), Order(b"3"), Order(b"4", "a,b")])
    assert read(broker, view, {0: 0}, {0: 4})[0] == [Shown(0, 0, b"1"), Shown(0, 3, b"4")]
    entry = ConfigEntry("penstock.view.tags", "not a", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, view, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    assert read(broker, view, {0: 0}, {0: 4})[0] == [Shown(0, 1, b"2"), Shown(0, 2, b"3")]


def test_sending_to_a_view_fails_at_once(broker: BrokerProcess, shop: Shop) -> None:
    reports: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(shop.view, b"x", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert [error and error.code() for error in reports] == [KafkaError.TOPIC_EXCEPTION]
    other = kafka.KafkaProducer(bootstrap_servers=broker.kafka)
    with pytest.raises(kafka.errors.InvalidTopicError):
        other.send(shop.view, b"x").get(PATIENCE_S)
    other.close()


def test_sending_to_a_view_in_a_transaction_fails(broker: BrokerProcess, shop: Shop) -> None:
    reports: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": shop.view})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(shop.view, b"x", on_delivery=lambda error, _: reports.append(error))
    producer.flush(PATIENCE_S)
    assert reports and reports[0] is not None
    with pytest.raises(KafkaException, match="Invalid topic"):
        producer.commit_transaction(PATIENCE_S)


async def test_sending_to_a_view_with_aiokafka_fails_at_once(broker: BrokerProcess, shop: Shop) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.kafka)
    await producer.start()
    with pytest.raises(InvalidTopicError):
        await producer.send_and_wait(shop.view, b"x")
    await producer.stop()


def test_a_view_is_described_with_what_its_base_has(broker: BrokerProcess, shop: Shop, admin: AdminClient) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, shop.view)
    entries = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert entries["penstock.view.of"].value == shop.base
    assert entries["segment.bytes"].value == "40000"
    assert entries["segment.bytes"].is_read_only and not entries["penstock.view.tags"].is_read_only
    described = admin.list_topics(timeout=PATIENCE_S).topics
    leaders = [{at: (each.leader, each.replicas, each.isrs) for at, each in described[name].partitions.items()}
               for name in (shop.base, shop.view)]  # fmt: skip
    assert leaders[0] == leaders[1]


class _Lines:
    """What a client says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.logger = logging.Logger("client")
        handler = logging.Handler()
        handler.emit = lambda record: self.said.append(record.getMessage())  # type: ignore[method-assign]
        self.logger.addHandler(handler)


def _position(consumer: Consumer) -> int:
    return consumer.position(consumer.assignment())[0].offset
