"""What becomes of a message after its handler: completed, retried, a dead letter, or rerouted; and the records for
that. Pure.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.sdk.headers import (
    ATTEMPT,
    DELAY,
    ERROR,
    FAILING,
    ORIGIN,
    RESEND,
    RETRY_TOPIC,
    TIMER_ID,
    TIMING,
    error_text,
    without,
)
from penstock.sdk.message import Acknowledged, HandlerResult, Message, Misrouted, Rejected
from penstock.sdk.ports import Headers, Outgoing, Received
from penstock.sdk.receive.retries import Retries
from penstock.sdk.receive.topic_layout import RetryTopic, TopicLayout


@dataclass(frozen=True, slots=True)
class Completed:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The message is delivered again."""

    failures: int
    error: str
    after_ms: int


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The message is not delivered again."""

    failures: int
    error: str


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Another subscription of the group handles the message."""

    to: RetryTopic


Disposition = Completed | Retry | DeadLettered | Rerouted


def disposition_of(result: HandlerResult, failures: int, retries: Retries, chance: Callable[[], float]) -> Disposition:
    """What follows from the result of a handler for a message that failed this often before."""
    if isinstance(result, Acknowledged):
        return Completed()
    if isinstance(result, Rejected):
        return DeadLettered(failures + 1, result.reason)
    if isinstance(result, Misrouted):
        return Rerouted(RetryTopic(result.retry_topic, result.partitions))
    failures += result.counts_as_attempt
    if result.counts_as_attempt and retries.is_over(failures):
        return DeadLettered(failures, result.error)
    after_ms = retries.delay_ms(max(failures, 1), chance) if result.after_ms is None else result.after_ms
    return Retry(failures, result.error, after_ms)


def failure_headers(message: Message, failures: int, error: str) -> Headers:
    """The headers of the message, with how often and why it failed."""
    return (
        *without(message.headers, TIMING | FAILING),
        (ATTEMPT, str(failures).encode()),
        (ORIGIN, str(message.origin).encode()),
        (ERROR, error_text(error)),
    )


def retry_record(message: Message, layout: TopicLayout, failures: int, error: str, after_ms: int) -> Outgoing:
    """The delayed record of a retry.

    Its timer id and partition derive from the origin and the attempt. So a retry that is written twice, because the
    process died before the acknowledgement, is pending once.
    """
    origin = str(message.origin)
    name = f"retry-{hashlib.sha256(origin.encode()).hexdigest()[:32]}-{failures}"
    to = layout.retry_topic_of(message.received)
    return Outgoing(
        topic=to.name,
        value=message.value,
        key=message.key,
        headers=(
            *failure_headers(message, failures, error),
            (DELAY, str(after_ms).encode()),
            (TIMER_ID, name.encode()),
        ),
        partition=_partition_for(origin, to.partitions),
    )


def rerouted_record(message: Message, to: RetryTopic) -> Outgoing:
    """A message of the shared retry topic, for the retry topic of its own subscription."""
    return Outgoing(
        topic=to.name,
        value=message.value,
        key=message.key,
        headers=without(message.headers, TIMING),
        partition=_partition_for(str(message.origin), to.partitions),
    )


def dead_letter_record(message: Message, layout: TopicLayout, failures: int, error: str) -> Outgoing:
    return Outgoing(
        topic=layout.dead,
        value=message.value,
        key=message.key,
        headers=(
            *failure_headers(message, failures, error),
            (RETRY_TOPIC, layout.retry_topic_of(message.received).name.encode()),
        ),
        partition=_partition_for(str(message.origin), layout.dead_partitions),
    )


def resent_record(letter: Received, to: RetryTopic) -> Outgoing:
    """A dead letter as its group receives it again: with all attempts available."""
    message = Message(letter)
    origin = str(message.origin)
    return Outgoing(
        topic=to.name,
        value=letter.value,
        key=letter.key,
        headers=(
            *without(letter.headers, TIMING | FAILING | {RESEND}),
            (ATTEMPT, b"0"),
            (ORIGIN, origin.encode()),
            (ERROR, error_text(message.error or "")),
            (RESEND, f"{letter.topic}/{letter.partition}/{letter.offset}".encode()),
        ),
        partition=_partition_for(origin, to.partitions),
    )


def with_failure(received: Received, message: Message, failures: int, error: str) -> Received:
    """The message as it is retried in this process."""
    return replace(received, headers=failure_headers(message, failures, error))


def _partition_for(origin: str, partitions: int) -> int:
    return zlib.crc32(origin.encode()) % partitions
