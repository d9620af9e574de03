"""Sends messages for operators, and waits until brokers have them. Blocks; the console calls it in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from penstock.admin import AdminError, UnreachableError
from penstock.admin.errors import REQUEST_TIMED_OUT, admin_error
from penstock.console.polling.cluster_link import ClusterLink
from penstock.sdk.ports import Outgoing

_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class SentMessage:
    """Where a message is; the offset is None for one that is delayed."""

    topic: str
    partition: int | None
    offset: int | None
    code: str = ""
    error: str = ""


def send(link: ClusterLink, messages: Sequence[Outgoing]) -> list[SentMessage]:
    """One result for each message, in their order."""
    producer = link.producer(
        **{"enable.idempotence": True, "message.timeout.ms": int(_TIMEOUT_S * 1000), "linger.ms": 0}
    )
    results: list[SentMessage | None] = [None] * len(messages)

    def report(index: int, error: KafkaError | None, message: Message | None) -> None:
        topic = messages[index].topic
        if error is not None or message is None:
            why = AdminError("UNKNOWN_SERVER_ERROR", "no answer") if error is None else admin_error(error)
            results[index] = SentMessage(topic, None, None, why.code, why.message)
        else:
            offset = message.offset()
            results[index] = SentMessage(
                topic, message.partition(), offset if offset is not None and offset >= 0 else None
            )

    for index, each in enumerate(messages):

        def on_delivery(error: KafkaError | None, message: Message, index: int = index) -> None:
            report(index, error, message)

        partition: dict[str, Any] = {} if each.partition is None else {"partition": each.partition}
        try:
            producer.produce(
                each.topic,
                value=each.value,
                key=each.key,
                headers=list(each.headers),
                on_delivery=on_delivery,
                **partition,
            )
        except (KafkaException, BufferError, ValueError, TypeError) as error:
            told = (
                admin_error(error) if isinstance(error, KafkaException) else AdminError("INVALID_REQUEST", str(error))
            )
            results[index] = SentMessage(each.topic, None, None, told.code, told.message)
    producer.flush(_TIMEOUT_S + 1)
    missing = UnreachableError(REQUEST_TIMED_OUT, f"no answer within {_TIMEOUT_S:g} s; it may have been sent")
    return [
        each or SentMessage(messages[index].topic, None, None, missing.code, missing.message)
        for index, each in enumerate(results)
    ]


def first_problem(results: Sequence[SentMessage]) -> None:
    """Raises the error of the first message that was not sent."""
    for each in results:
        if each.error:
            kind = UnreachableError if each.code == REQUEST_TIMED_OUT else AdminError
            raise kind(each.code, f"the message was not sent: {each.error}")
