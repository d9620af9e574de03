"""Translates messages and errors of librdkafka."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message

from penstock.sdk.errors import InvalidInputError, SendError
from penstock.sdk.ports import Received

_AWAY = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._DESTROY,
        KafkaError._FATAL,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
_REASONS = {
    KafkaError.TOPIC_EXCEPTION: "the topic accepts no messages: it is a view or an internal topic",
    KafkaError.INVALID_RECORD: (
        "the broker refused the record: a malformed penstock- header, a delay beyond the "
        "topic's penstock.delay.max.ms, or no key in a compacted topic"
    ),
    KafkaError._MSG_TIMED_OUT: "no broker accepted it within all tries",
    KafkaError._PURGE_QUEUE: "the client gave up before sending it",
    KafkaError._PURGE_INFLIGHT: "the client gave up while sending it; it may have arrived",
}


def error_of(error: KafkaException | KafkaError) -> KafkaError:
    """The error inside an exception."""
    return error.args[0] if isinstance(error, KafkaException) else error


def reason_of(error: KafkaException | KafkaError) -> str:
    """The text of an error, without code numbers."""
    inner = error_of(error)
    return _REASONS.get(inner.code()) or " ".join(inner.str().split())


def send_error(topic: str, error: KafkaError) -> SendError:
    """Why a message did not become durable."""
    is_retriable = error.code() in _AWAY or error.retriable()
    return SendError(f"could not send a message to {topic}: {reason_of(error)}", is_retriable=is_retriable)


def settings_error(error: KafkaException) -> InvalidInputError:
    """Why librdkafka rejects its settings."""
    return InvalidInputError(f"settings: {reason_of(error)}")


def is_fenced(error: KafkaError) -> bool:
    """Whether another producer took over the transactional id."""
    return error.code() in _FENCED


def received_of(message: Message) -> Received:
    """Convert a message without an error."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    # confluent-kafka types every part as optional; a message without an error has them all.
    assert topic is not None and partition is not None and offset is not None
    kind, timestamp_ms = message.timestamp()
    headers: Any = message.headers() or ()
    return Received(
        topic,
        partition,
        offset,
        message.value(),
        message.key(),
        tuple(headers),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )
