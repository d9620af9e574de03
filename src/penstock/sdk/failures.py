"""What librdkafka's errors mean to an application."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from penstock.sdk.errors import SendError

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
    KafkaError.TOPIC_EXCEPTION: "it takes no messages: it is a view, or the brokers' own",
    KafkaError.INVALID_RECORD: (
        "the broker refuses the record: a penstock- header that it does not understand, a time further away than the "
        "topic's penstock.delay.max.ms, or no key where the topic is compacted"
    ),
    KafkaError._MSG_TIMED_OUT: "no broker has taken it within all tries",
    KafkaError._PURGE_QUEUE: "it was given up before it was sent",
    KafkaError._PURGE_INFLIGHT: "it was given up while it was on its way; it may have arrived",
}


def error_of(error: KafkaException | KafkaError) -> KafkaError:
    """The error inside an exception."""
    return error.args[0] if isinstance(error, KafkaException) else error


def reason_of(error: KafkaException | KafkaError) -> str:
    """Words without code numbers."""
    inner = error_of(error)
    return _REASONS.get(inner.code()) or " ".join(inner.str().split())


def send_error(topic: str, error: KafkaError) -> SendError:
    """Why a message did not become durable."""
    is_retriable = error.code() in _AWAY or error.retriable()
    return SendError(f"a message to {topic} was not sent: {reason_of(error)}", is_retriable=is_retriable)


def is_fenced(error: KafkaError) -> bool:
    """Whether another producer has taken over the transactional id."""
    return error.code() in _FENCED
