"""What becomes of a message once its handler has said something: it is done, comes again, or is a dead letter. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.sdk.headers import ATTEMPT, DELAY, ERROR, FAILING, ORIGIN, RESEND, TIMER_ID, TIMING, error_text, without
from penstock.sdk.message import Acknowledged, Message, Rejected, Verdict
from penstock.sdk.ports import Headers, Outgoing, Received
from penstock.sdk.receive.retries import Retries


@dataclass(frozen=True, slots=True)
class Layout:
    """The topics of a subscription as they are in the cluster."""

    topics: tuple[str, ...]
    """What is read beside the retry topic."""
    retry: str
    dead: str
    retry_partitions: int
    dead_partitions: int


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Later:
    """It is tried again."""

    failures: int
    error: str
    after_ms: int


@dataclass(frozen=True, slots=True)
class Dead:
    """It is not tried again."""

    failures: int
    error: str


Fate = Done | Later | Dead


def fate_of(verdict: Verdict, failures: int, retries: Retries, chance: Callable[[], float]) -> Fate:
    """What follows from a verdict on a message that has failed so often before."""
    if isinstance(verdict, Acknowledged):
        return Done()
    if isinstance(verdict, Rejected):
        return Dead(failures + 1, verdict.reason)
    failures += verdict.counts
    if verdict.counts and retries.is_over(failures):
        return Dead(failures, verdict.error)
    after_ms = retries.delay_ms(max(failures, 1), chance) if verdict.after_ms is None else verdict.after_ms
    return Later(failures, verdict.error, after_ms)


def failed_headers(message: Message, failures: int, error: str) -> Headers:
    """What the message had, and how often and why it has failed."""
    return (
        *without(message.headers, TIMING | FAILING),
        (ATTEMPT, str(failures).encode()),
        (ORIGIN, str(message.origin).encode()),
        (ERROR, error_text(error)),
    )


def retry_of(message: Message, layout: Layout, failures: int, error: str, after_ms: int) -> Outgoing:
    """The message for later.

    The same failure makes the same name in the same partition. So one that is written twice, because the process died
    before the message was acknowledged, waits once.
    """
    origin = str(message.origin)
    name = f"retry-{hashlib.sha256(origin.encode()).hexdigest()[:32]}-{failures}"
    return Outgoing(
        topic=layout.retry,
        value=message.value,
        key=message.key,
        headers=(
            *failed_headers(message, failures, error),
            (DELAY, str(after_ms).encode()),
            (TIMER_ID, name.encode()),
        ),
        partition=_spread(origin, layout.retry_partitions),
    )


def dead_letter_of(message: Message, layout: Layout, failures: int, error: str) -> Outgoing:
    return Outgoing(
        topic=layout.dead,
        value=message.value,
        key=message.key,
        headers=failed_headers(message, failures, error),
        partition=_spread(str(message.origin), layout.dead_partitions),
    )


def resend_of(letter: Received, retry_topic: str, retry_partitions: int) -> Outgoing:
    """A dead letter as its group gets it once more: with all its attempts before it."""
    message = Message(letter)
    origin = str(message.origin)
    return Outgoing(
        topic=retry_topic,
        value=letter.value,
        key=letter.key,
        headers=(
            *without(letter.headers, TIMING | FAILING | {RESEND}),
            (ATTEMPT, b"0"),
            (ORIGIN, origin.encode()),
            (ERROR, error_text(message.error or "")),
            (RESEND, f"{letter.topic}/{letter.partition}/{letter.offset}".encode()),
        ),
        partition=_spread(origin, retry_partitions),
    )


def tried_here(received: Received, message: Message, failures: int, error: str) -> Received:
    """The message as it is tried again without leaving the process."""
    return replace(received, headers=failed_headers(message, failures, error))


def _spread(origin: str, partitions: int) -> int:
    return zlib.crc32(origin.encode()) % partitions
