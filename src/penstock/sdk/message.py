"""A message as a handler receives it, the verbs that settle it, and the results that a handler can have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, Unpack

from penstock.durations import Duration, duration_ms
from penstock.sdk import headers as names
from penstock.sdk.errors import BufferFullError, DecodeError, InvalidInputError, SettledError
from penstock.sdk.headers import Origin
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.payloads.decoders import cached_payload_type
from penstock.sdk.ports import Headers, Outgoing, Received
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose

DecodedT = TypeVar("DecodedT")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The message is done."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The delivery failed, or the handler asked for a retry."""

    error: str
    after_ms: int | None = None
    """When to retry; None: as the subscription's `Retries` say."""
    counts_as_attempt: bool = True
    """False if the message could not be tried at all."""
    is_requested: bool = False
    """The handler called `retry`; it did not raise or time out."""
    has_timed_out: bool = False
    """The deadline passed."""
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the handler raised."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message becomes a dead letter at once."""

    reason: str
    cause: DecodeError | None = field(default=None, compare=False, repr=False)
    """Why the message could not be decoded; None if the handler rejected it."""


@dataclass(frozen=True, slots=True)
class Misrouted:
    """Another subscription of the group handles the message: it moves to the retry topic that those members read."""

    retry_topic: str
    partitions: int


HandlerResult = Acknowledged | Failed | Rejected | Misrouted

Reply = Callable[[str, Value], Any]
"""Answers a request: takes the reply token and the value."""


class Settler(Protocol):
    """Receives what a handler decides about a message."""

    def settle(self, result: HandlerResult) -> None:
        """Raises `SettledError` if the message was settled before, or has timed out."""

    def extend(self, by_ms: int) -> None:
        """Raises `SettledError` likewise."""


MAX_TRANSACTION_MESSAGES = 100_000
"""Messages that one handler call can send in a transaction; they stay in memory until the commit."""


class MessageTransaction:
    """Collects what a handler sends with `delivery="exactly-once"`.

    The messages become visible if and only if the handled message is acknowledged: one transaction commits both.
    """

    def __init__(self, codecs: Codecs = JSON_ONLY) -> None:
        self._codecs = codecs
        self._kept: list[Outgoing] = []
        self._is_open = True

    def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> None:
        """Send a message in the transaction. The arguments are those of `Client.send`.

        Raises:
            InvalidInputError: An argument is invalid.
            SettledError: The handled message is already settled.
            BufferFullError: The handler sent more than 100,000 messages.
        """
        if not self._is_open:
            raise SettledError("the message is already settled: its transaction accepts no more messages")
        if len(self._kept) >= MAX_TRANSACTION_MESSAGES:
            raise BufferFullError(f"the transaction is full: the handler has sent {MAX_TRANSACTION_MESSAGES} messages")
        self._kept.append(compose(topic, value, self._codecs, **options))

    def close(self) -> tuple[Outgoing, ...]:
        """Accept no more messages and return those collected."""
        self._is_open = False
        return tuple(self._kept)


class Message:
    """One message.

    A handler that returns acknowledges the message; one that raises asks for a retry. The verbs `ack`, `retry` and
    `reject` do the same explicitly. The first verb counts; a second one raises `SettledError`.

    Example:
        ```python
        @client.subscribe("orders", group="billing")
        def bill(message: penstock.Message) -> None:
            if message.value is None:
                message.reject("an order needs a value")
        ```
    """

    __slots__ = ("_codecs", "_reply", "_settler", "_transaction", "received")

    def __init__(
        self,
        received: Received,
        settler: Settler | None = None,
        reply: Reply | None = None,
        transaction: MessageTransaction | None = None,
        codecs: Codecs = JSON_ONLY,
    ) -> None:
        self.received = received
        """The message as it arrived: from a retry topic if it was tried before."""
        self._codecs = codecs
        self._settler = settler
        self._reply = reply
        self._transaction = transaction

    def __repr__(self) -> str:
        return f"<Message {self.topic}-{self.partition} @{self.offset} attempt {self.attempt}>"

    @property
    def topic(self) -> str:
        """The topic that the message was sent to, also if it arrives from a retry topic."""
        return self.origin.topic

    @property
    def partition(self) -> int:
        """The partition in `topic`."""
        return self.origin.partition

    @property
    def offset(self) -> int:
        """The offset in `topic`."""
        return self.origin.offset

    @property
    def timestamp_ms(self) -> int | None:
        """When the message was sent, in milliseconds since 1970."""
        return self.origin.timestamp_ms

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        return self.received.key

    @property
    def value(self) -> bytes | None:
        """The payload, or None."""
        return self.received.value

    @property
    def headers(self) -> Headers:
        """All headers in order, including those of Penstock."""
        return self.received.headers

    def header(self, name: str) -> str | None:
        """A header as text; the last one if the name repeats, as Kafka's clients read it.

        Args:
            name: The name of the header.

        Returns:
            The text, in which bytes that are not UTF-8 are escaped; None if the header is absent or has no value.
        """
        return names.text_of(self.received.headers, name)

    def header_bytes(self, name: str) -> bytes | None:
        """Like `header`, as bytes."""
        return names.value_of(self.received.headers, name)

    def header_values(self, name: str) -> tuple[bytes | None, ...]:
        """All values of a header in order; empty if the header is absent."""
        return names.values_of(self.received.headers, name)

    def decode(self, kind: type[DecodedT]) -> DecodedT:
        """Decode the value, as for a handler that is annotated with this type.

        Args:
            kind: A dataclass or a pydantic model.

        Returns:
            An object of that type.

        Raises:
            DecodeError: The value is not such an object, or its codec is not known.
            InvalidInputError: Messages cannot be decoded to this type.

        Example:
            ```python
            price = client.request("prices", PriceRequest("tea")).decode(Price)
            ```
        """
        wanted: Any = kind
        decoded: DecodedT = self._codecs.decode(cached_payload_type(wanted), self.value, self.headers)
        return decoded

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the message was sent with."""
        return names.tags_of(self.received.headers)

    @property
    def biz_id(self) -> str | None:
        """The sender's business id, or None."""
        return names.text_of(self.received.headers, names.BIZ_ID)

    @property
    def attempt(self) -> int:
        """The number of this delivery, starting with 1."""
        return names.failures_of(self.received.headers) + 1

    @property
    def origin(self) -> Origin:
        """Topic, partition, offset and timestamp of the original message."""
        received = self.received
        return names.origin_of(received.headers) or Origin(
            received.base or received.topic, received.partition, received.offset, received.timestamp_ms
        )

    @property
    def error(self) -> str | None:
        """Why the previous delivery failed; None for the first one."""
        return names.text_of(self.received.headers, names.ERROR)

    @property
    def reply_token(self) -> str | None:
        """Text that lets any process answer with `client.reply`; None if the message is not a request."""
        to = names.text_of(self.received.headers, names.REPLY_TO)
        correlation = names.text_of(self.received.headers, names.CORRELATION)
        return None if to is None or correlation is None else f"{to}/{correlation}"

    @property
    def transaction(self) -> MessageTransaction:
        """With `delivery="exactly-once"`: sends messages that become visible only if this message is acknowledged.

        Raises:
            InvalidInputError: The subscription has another delivery guarantee.
        """
        if self._transaction is None:
            raise InvalidInputError('message.transaction requires delivery="exactly-once"')
        return self._transaction

    def ack(self) -> None:
        """Acknowledge the message. What the handler does afterwards no longer matters.

        Raises:
            SettledError: The message is already settled.
        """
        self._settle(Acknowledged())

    def retry(self, after: Duration | None = None, reason: str = "the handler asked for a retry") -> None:
        """Deliver the message again.

        Args:
            after: How long to wait; default: as the subscription's `Retries` say.
            reason: Text for the log and for the header `penstock-error`.

        Raises:
            InvalidInputError: `after` is not a duration.
            SettledError: The message is already settled.
        """
        try:
            after_ms = None if after is None else duration_ms(after)
        except ValueError as error:
            raise InvalidInputError(f"after: {error}") from None
        self._settle(Failed(reason, after_ms, is_requested=True))

    def reject(self, reason: str = "rejected") -> None:
        """Make the message a dead letter at once.

        Args:
            reason: Text for the log and for the header `penstock-error`.

        Raises:
            SettledError: The message is already settled.
        """
        self._settle(Rejected(reason))

    def extend(self, by: Duration) -> None:
        """Move the deadline.

        Args:
            by: The new deadline, from now.

        Raises:
            InvalidInputError: `by` is not a duration.
            SettledError: The message is already settled.
        """
        try:
            by_ms = duration_ms(by)
        except ValueError as error:
            raise InvalidInputError(f"by: {error}") from None
        self._settler_or_raise().extend(by_ms)

    def reply(self, value: Value) -> Any:
        """Answer a request. Await it in `penstock.aio`.

        Args:
            value: The payload of the reply: bytes, text, None, a dataclass or a pydantic model.

        Raises:
            InvalidInputError: The message is not a request, or the value cannot be encoded.
            SendError: The reply could not be sent.
        """
        token = self.reply_token
        if token is None or self._reply is None:
            raise InvalidInputError("the message is not a request: it has no reply token")
        return self._reply(token, value)

    def _settle(self, result: HandlerResult) -> None:
        self._settler_or_raise().settle(result)

    def _settler_or_raise(self) -> Settler:
        if self._settler is None:
            raise InvalidInputError("the message does not come from a subscription: nothing to settle")
        return self._settler
