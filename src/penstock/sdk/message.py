"""A message as a handler gets it, and the verbs that settle it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.durations import Duration, duration_ms
from penstock.sdk import headers as names
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.headers import Origin
from penstock.sdk.ports import Headers, Received
from penstock.sdk.receive.collecting import Collected


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Done: it does not come again."""


@dataclass(frozen=True, slots=True)
class Again:
    """It comes again: after so long, or after what the subscription's `Retries` say."""

    error: str
    after_ms: int | None = None
    counts: bool = True
    """Whether this was an attempt; a message that could not be tried at all has lost none."""
    is_asked_for: bool = False
    """By `retry`, not by an exception or silence."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """It goes to the dead letters."""

    reason: str


Verdict = Acknowledged | Again | Rejected

Reply = Callable[[str, bytes | None], Any]
"""Answers: the message's reply token, and the value."""


class Desk(Protocol):
    """Whoever handed a message out and wants to know what becomes of it."""

    def settle(self, verdict: Verdict) -> None:
        """Raises SettledError if it was settled before, or has timed out."""

    def extend(self, by_ms: int) -> None:
        """The same."""


class Message:
    """One message.

    A handler that returns has acknowledged it, one that raises wants it again. Both can be said explicitly by one of
    the verbs `ack`, `retry` and `reject`, of which the first one counts; a second one raises `SettledError`.
    """

    __slots__ = ("_desk", "_reply", "_sends", "received")

    def __init__(
        self, received: Received, desk: Desk | None = None, reply: Reply | None = None, sends: Collected | None = None
    ) -> None:
        self.received = received
        """The message as it came, which is from the retry topic if it was tried before."""
        self._desk = desk
        self._reply = reply
        self._sends = sends

    def __repr__(self) -> str:
        return f"<Message {self.topic}-{self.partition} @{self.offset} attempt {self.attempt}>"

    @property
    def topic(self) -> str:
        """The topic that it was sent to, also if it comes by way of the retry topic."""
        return self.origin.topic

    @property
    def partition(self) -> int:
        """Its partition in `topic`."""
        return self.origin.partition

    @property
    def offset(self) -> int:
        """Its offset in `topic`."""
        return self.origin.offset

    @property
    def timestamp_ms(self) -> int | None:
        """When it was sent, in milliseconds since 1970."""
        return self.origin.timestamp_ms

    @property
    def key(self) -> bytes | None:
        return self.received.key

    @property
    def value(self) -> bytes | None:
        return self.received.value

    @property
    def headers(self) -> Headers:
        """All of them, in order, ours included."""
        return self.received.headers

    @property
    def tags(self) -> tuple[str, ...]:
        return names.tags_of(self.received.headers)

    @property
    def biz_id(self) -> str | None:
        """The sender's business id."""
        return names.text_of(self.received.headers, names.BIZ_ID)

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1 on."""
        return names.failures_of(self.received.headers) + 1

    @property
    def origin(self) -> Origin:
        """Where it was first, and when."""
        received = self.received
        return names.origin_of(received.headers) or Origin(
            received.base or received.topic, received.partition, received.offset, received.timestamp_ms
        )

    @property
    def error(self) -> str | None:
        """Why the delivery before this one failed."""
        return names.text_of(self.received.headers, names.ERROR)

    @property
    def reply_token(self) -> str | None:
        """Text that lets anybody answer, later and from another process (`client.reply`); None if nobody asked."""
        to = names.text_of(self.received.headers, names.REPLY_TO)
        correlation = names.text_of(self.received.headers, names.CORRELATION)
        return None if to is None or correlation is None else f"{to}/{correlation}"

    @property
    def transaction(self) -> Collected:
        """With `delivery="exactly-once"`: what is sent by it is seen if and only if this message is acknowledged."""
        if self._sends is None:
            raise InvalidInputError('a message has a transaction with delivery="exactly-once" only')
        return self._sends

    def ack(self) -> None:
        """It is done and does not come again; what the handler does afterwards says no more."""
        self._settle(Acknowledged())

    def retry(self, after: Duration | None = None, reason: str = "retry was asked for") -> None:
        """It comes again: `after` that long, or when its turn is by the subscription's `Retries`."""
        try:
            after_ms = None if after is None else duration_ms(after)
        except ValueError as error:
            raise InvalidInputError(f"after: {error}") from None
        self._settle(Again(reason, after_ms, is_asked_for=True))

    def reject(self, reason: str = "rejected") -> None:
        """It goes to the dead letters at once."""
        self._settle(Rejected(reason))

    def extend(self, by: Duration) -> None:
        """Its deadline is that long from now."""
        try:
            by_ms = duration_ms(by)
        except ValueError as error:
            raise InvalidInputError(f"by: {error}") from None
        self._its_desk().extend(by_ms)

    def reply(self, value: bytes | None) -> Any:
        """Answers a request; in `penstock.aio` it is awaited."""
        token = self.reply_token
        if token is None or self._reply is None:
            raise InvalidInputError("the message is no request: it says nowhere to reply to")
        return self._reply(token, value)

    def _settle(self, verdict: Verdict) -> None:
        self._its_desk().settle(verdict)

    def _its_desk(self) -> Desk:
        if self._desk is None:
            raise InvalidInputError("the message was not handed out by a subscription: there is nothing to settle")
        return self._desk
