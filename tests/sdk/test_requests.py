"""Requests and replies, between clients and with others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from kafka import KafkaConsumer, KafkaProducer

import penstock
from penstock.sdk.send.request_reply import PARTITIONS, REPLY_TOPIC
from support.broker_process import BrokerProcess
from support.foreign import seen_in
from support.messages import headers_of
from support.waiting import PATIENCE_S

Answer = Callable[[dict[str, bytes | None], bytes], None]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


class Service:
    """Consumes a topic with confluent-kafka, and does with each request what it was told."""

    def __init__(self, broker: BrokerProcess, topic: str, answer: Answer) -> None:
        self._answer = answer
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.kafka,
                "group.id": f"service of {topic}",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 200,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._answer(dict(headers_of(message)), message.value() or b"")


def token_of(headers: dict[str, bytes | None]) -> str:
    to, correlation = headers["penstock-reply-to"], headers["penstock-correlation"]
    assert to is not None and correlation is not None
    return f"{to.decode()}/{correlation.decode()}"


def test_a_request_is_answered_by_whoever_has_its_token(
    broker: BrokerProcess, client: penstock.Client, topic: str
) -> None:
    with penstock.Client(broker.kafka) as gateway:

        def answer(headers: dict[str, bytes | None], value: bytes) -> None:
            gateway.reply(token_of(headers), value.upper(), headers={"status": "ok"})

        with Service(broker, topic, answer):
            reply = client.request(topic, b"pay", key="42")
    assert reply.value == b"PAY"
    assert ("status", b"ok") in reply.headers
    with pytest.raises(penstock.InvalidInputError, match="nothing to settle"):
        reply.ack()


def test_a_client_of_others_answers_with_headers_alone(
    broker: BrokerProcess, client: penstock.Client, topic: str
) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.kafka)

    def answer(headers: dict[str, bytes | None], value: bytes) -> None:
        to = (headers["penstock-reply-to"] or b"").decode()
        reply_topic, partition = to.split("/")
        correlation = headers["penstock-correlation"]
        producer.send(
            reply_topic, value + b"!", partition=int(partition), headers=[("penstock-correlation", correlation)]
        )
        producer.flush()

    with Service(broker, topic, answer):
        assert client.request(topic, "hello").value == b"hello!"
    producer.close()


def test_each_of_many_requests_at_once_gets_its_own_answer(
    broker: BrokerProcess, client: penstock.Client, topic: str
) -> None:
    with penstock.Client(broker.kafka) as gateway, penstock.Client(broker.kafka) as other:

        def answer(headers: dict[str, bytes | None], value: bytes) -> None:
            gateway.send_soon(REPLY_TOPIC, b"for nobody", partition=0, headers={"penstock-correlation": "unknown"})
            gateway.reply(token_of(headers), b"re " + value)

        with Service(broker, topic, answer), ThreadPoolExecutor(20) as pool:
            asked = [f"{number}".encode() for number in range(100)]
            replies = list(pool.map(lambda value: (client, other)[int(value) % 2].request(topic, value).value, asked))
    assert replies == [b"re " + value for value in asked]


def test_without_an_answer_the_request_says_so_and_a_late_one_is_passed_over(
    broker: BrokerProcess, client: penstock.Client, topic: str
) -> None:
    with pytest.raises(penstock.NoReplyError, match=r"within 0\.2 s") as failed:
        client.request(topic, b"anybody?", timeout="200ms")
    assert isinstance(failed.value, TimeoutError)
    (request,) = seen_in(broker.kafka, topic)
    late = token_of(dict(request.headers))
    client.reply(late, b"late")
    client.reply(late, b"twice")

    def answer(headers: dict[str, bytes | None], value: bytes) -> None:
        if value == b"again":
            client.reply(token_of(headers), b"in time")
            client.reply(token_of(headers), b"second")

    with Service(broker, topic, answer):
        assert client.request(topic, b"again").value == b"in time"


def test_a_token_that_is_none_is_refused(client: penstock.Client) -> None:
    for token in ("", "topic", "topic/1", "topic/x/1", "to pic/1/a", "topic/-1/a", "topic/1/"):
        with pytest.raises(penstock.InvalidInputError, match=r"reply token|topic name"):
            client.reply(token, b"")


def test_clients_share_one_reply_topic_that_forgets_soon(
    broker: BrokerProcess, client: penstock.Client, admin: AdminClient, topic: str
) -> None:
    with pytest.raises(penstock.NoReplyError):
        client.request(topic, b"", timeout=0.1)
    assert len(admin.list_topics(timeout=PATIENCE_S).topics[REPLY_TOPIC].partitions) == PARTITIONS
    resource = ConfigResource(ResourceType.TOPIC, REPLY_TOPIC)
    config = admin.describe_configs([resource])[resource].result()
    assert config["retention.ms"].value == "600000"


def test_a_reply_topic_of_ones_own_is_used(broker: BrokerProcess, topic: str) -> None:
    with penstock.Client(broker.kafka, reply_topic=f"{topic}-replies") as client:

        def answer(headers: dict[str, bytes | None], value: bytes) -> None:
            client.reply(token_of(headers), value)

        with Service(broker, topic, answer):
            assert client.request(topic, b"echo").topic == f"{topic}-replies"


def test_a_request_that_cannot_be_sent_fails_with_the_reason(client: penstock.Client, topic: str) -> None:
    with pytest.raises(penstock.SendError, match="the broker refused"):
        client.request(topic, b"", headers={"penstock-delay": "whenever"})
    with pytest.raises(penstock.InvalidInputError, match="timeout"):
        client.request(topic, b"", timeout="soon")


def test_closing_tells_whoever_waits(broker: BrokerProcess, topic: str) -> None:
    client = penstock.Client(broker.kafka)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.request, topic, b"", timeout=60)
        KafkaConsumer(topic, bootstrap_servers=broker.kafka, auto_offset_reset="earliest").poll(
            timeout_ms=int(PATIENCE_S * 1000)
        )
        client.close()
        assert isinstance(waiting.exception(PATIENCE_S), penstock.ClosedError)
