"""`penstock.Client`: the client for applications that use threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload

from penstock.durations import Duration
from penstock.sdk.backend import Backend
from penstock.sdk.client_core import GRACE_S, ClientCore
from penstock.sdk.counters import Counters
from penstock.sdk.errors import InvalidInputError, NoReplyError, SendError
from penstock.sdk.hooks.base import HookChain, Hooks, check_hooks
from penstock.sdk.kafka.backend import KafkaBackend
from penstock.sdk.message import Message
from penstock.sdk.payloads.codecs import Codec, Codecs
from penstock.sdk.ports import Receipt
from penstock.sdk.receive.handler_call import Handler, new_handler
from penstock.sdk.receive.handler_runners import ThreadRunner
from penstock.sdk.receive.subscription import CHECK_S, Subscriptions, SubscriptionStatus
from penstock.sdk.receive.subscription_options import SubscriptionOptions, ValidatedOptions, validate_options
from penstock.sdk.send.outgoing_message import (
    HeadersInput,
    Payload,
    SendEntry,
    SendOptions,
    Value,
    compose,
    compose_cancel,
    compose_many,
    compose_rescheduled,
    seconds_of,
)
from penstock.sdk.send.request_reply import REPLY_TOPIC, compose_reply
from penstock.sdk.send.send_outcome import Receipts
from penstock.sdk.send.sending_options import Sending
from penstock.sdk.send.transactions import Transaction
from penstock.sdk.signals import stopping
from penstock.sdk.timers import TimerFilters, WaitingMessage, timer_query

OnResult = Callable[[Receipt | SendError], object]
"""Called with the outcome of one `send_soon`."""
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class Client:
    """Sends and receives messages. Safe for use by any number of threads.

    One client per process is enough. It connects on its own and reconnects after an outage. Close it, or use it in a
    `with` block, so that it sends the messages it still holds.

    Example:
        ```python
        with penstock.Client("localhost:9092") as client:
            client.send("orders", b"order 7", key="ann", delay="30m")
        ```
    """

    def __init__(
        self,
        bootstrap: str = "localhost:9092",
        *,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        settings: Mapping[str, Any] | None = None,
        reply_topic: str = REPLY_TOPIC,
        codecs: Sequence[Codec] = (),
    ) -> None:
        """Create a client. It connects when it is first used.

        Args:
            bootstrap: `HOST:PORT` of a broker, or several separated by commas.
            client_id: The name of the application. Brokers log it, and every message carries it in the header
                `penstock-sender`.
            sending: Delivery guarantee, batching, and what to do while the cluster is unreachable.
            hooks: Objects that observe messages, such as `PrometheusHooks()`.
            settings: librdkafka settings for everything else, such as `security.protocol`.
            reply_topic: The topic for replies to requests of this client. The first request creates it.
            codecs: Formats for typed payloads beside JSON. The first one encodes what this client sends and decodes
                messages that do not say how they are encoded.

        Raises:
            InvalidInputError: An argument is invalid, or librdkafka rejects a setting.
            SpillError: The folder of `Spill` cannot be used.
        """
        self._assemble(
            partial(KafkaBackend, bootstrap, client_id, settings),
            address=bootstrap,
            client_id=client_id,
            sending=sending,
            hooks=hooks,
            reply_topic=reply_topic,
            codecs=codecs,
        )

    def _assemble(
        self,
        new_backend: Callable[[], Backend],
        *,
        address: str,
        client_id: str | None = None,
        sending: Sending | None = None,
        hooks: Sequence[Hooks] = (),
        reply_topic: str = REPLY_TOPIC,
        codecs: Sequence[Codec] = (),
    ) -> None:
        """What clients of all backends have. `address` is shown to people, so it has no password."""
        check_hooks(hooks)
        self._address = address
        self._hooks = HookChain(hooks)
        self._codecs = Codecs(codecs)
        self._core = ClientCore(
            new_backend, sender=client_id, sending=sending, hooks=(self._hooks,), reply_topic=reply_topic
        )
        self._subscriptions = Subscriptions()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> Counters:
        """The number of messages sent, failed, dropped and refused since the start, and buffered and spilled now."""
        return self._core.counters

    @property
    def address(self) -> str:
        """Where messages go to and come from: the brokers that the client was created with."""
        return self._address

    @property
    def subscriptions(self) -> tuple[SubscriptionStatus, ...]:
        """What was registered with `subscribe`, and how it is doing."""
        return self._subscriptions.statuses()

    @property
    def hooks(self) -> tuple[Hooks, ...]:
        """The objects that observe messages."""
        return self._hooks.hooks

    def add_hooks(self, *hooks: Hooks) -> None:
        """Add hooks to those that the client was created with. They observe messages from now on.

        Args:
            *hooks: Objects such as `PrometheusHooks()`.

        Raises:
            InvalidInputError: An argument is not an object of `Hooks`.
        """
        check_hooks(hooks)
        self._hooks.add(hooks)

    def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> Receipt:
        """Send a message and wait until it is durable.

        Args:
            topic: The topic to send to.
            value: The payload: bytes, text (sent as UTF-8) or None; a dataclass or a pydantic model, which a codec
                encodes.
            **options: See `SendOptions`: `key`, `headers`, `partition`, `timestamp`, `delay`, `deliver_at`, `schedule`,
                `timer_id`, `tags`, `biz_id` and `codec`.

        Returns:
            Where the message is stored. With `Spill`, `is_spilled` says that it is stored on this machine for now.

        Raises:
            InvalidInputError: An argument is invalid. Nothing was sent.
            BufferFullError: The buffer stayed full for all tries.
            SendError: The broker refused the message, or all tries failed.
            ClosedError: The client is closed.
        """
        return self._core.send(compose(topic, value, self._codecs, **options), self._core.room_s).result()

    def send_soon(
        self, topic: str, value: Value, *, on_result: OnResult | None = None, **options: Unpack[SendOptions]
    ) -> Future[Receipt]:
        """Send a message and return at once.

        Args:
            topic: The topic to send to.
            value: The payload.
            on_result: Called with the `Receipt` or the `SendError`, in a thread of the client. It must return quickly
                and must not wait for the client.
            **options: See `SendOptions`.

        Returns:
            A future that holds the `Receipt` once the message is durable, or a `SendError`.

        Raises:
            InvalidInputError: An argument is invalid. Nothing was sent.
            ClosedError: The client is closed.
        """
        if on_result is not None and not callable(on_result):
            raise InvalidInputError(f"on_result must be a function that takes the result, not {on_result!r}")
        future = self._core.send(compose(topic, value, self._codecs, **options))
        if on_result is not None:
            future.add_done_callback(lambda done: on_result(_result_of(done)))
        return future

    def send_many(self, topic: str, messages: Iterable[Value | SendEntry], **options: Unpack[SendOptions]) -> Receipts:
        """Send many messages and wait until all of them are durable. Takes a fraction of the time of `send_soon` for
        each.

        Messages of a partition keep their order. Each stands for itself: use `transaction` for messages that have to
        become visible together.

        Args:
            topic: The topic to send to.
            messages: Payloads, or entries such as `{"value": b"order 7", "key": "ann"}`, whose options take the place
                of those of the call. They must fit into the buffer (`Keep`, `Drop`) together.
            **options: See `SendOptions`; they hold for every message.

        Returns:
            The receipts, in the order of the messages.

        Raises:
            InvalidInputError: An argument or a message is invalid; the text says which. Nothing was sent.
            SendManyError: Some messages were not stored; `results` says for each what became of it.
            ClosedError: The client is closed.

        Example:
            ```python
            client.send_many("orders", [b"order 7", {"value": b"order 8", "key": "bob", "delay": "30m"}], key="ann")
            ```
        """
        composed = compose_many(topic, messages, self._codecs, **options)
        return self._core.send_many(topic, composed, self._core.room_s).result()

    def send_many_soon(
        self, topic: str, messages: Iterable[Value | SendEntry], **options: Unpack[SendOptions]
    ) -> Future[Receipts]:
        """Send many messages and return at once.

        Args:
            topic: The topic to send to.
            messages: As for `send_many`.
            **options: See `SendOptions`; they hold for every message.

        Returns:
            A future that holds the receipts once all messages are durable, or a `SendManyError`.

        Raises:
            InvalidInputError: An argument or a message is invalid; the text says which. Nothing was sent.
            ClosedError: The client is closed.
        """
        return self._core.send_many(topic, compose_many(topic, messages, self._codecs, **options))

    def cancel(self, topic: str, timer_id: str, *, key: Payload = None, partition: int | None = None) -> list[Receipt]:
        """Cancel a delayed message.

        A timer id belongs to a partition. Pass the key (or the partition) that the message was sent with. Without
        either, the client sends the request to all partitions.

        The broker logs a cancellation without looking for its timer, so the result does not say whether a message was
        waiting. Call `timers(topic, timer_id=...)` first if you need to know. A message that was already delivered
        stays delivered.

        Args:
            topic: The topic that the message waits in.
            timer_id: The name that the message was sent with.
            key: The key that the message was sent with.
            partition: The partition that the message waits in.

        Returns:
            One receipt for each partition that the request was sent to. With `Spill`, `is_spilled` says that the
            request has not reached the cluster yet.

        Raises:
            InvalidInputError: An argument is invalid.
            TopicError: The topic does not exist (only without key and partition).
            SendError: A partition did not accept the request.
        """
        outgoing = compose_cancel(topic, timer_id, key=key, partition=partition)
        futures = [self._core.send(each, self._core.room_s) for each in self._core.each_partition(outgoing)]
        return [future.result() for future in futures]

    def reschedule(self, topic: str, timer_id: str, value: Value, /, **options: Unpack[SendOptions]) -> Receipt:
        """Replace the message that waits under a timer id, or add one if none does.

        The broker stores messages and does not edit them, so you pass the value again.

        Args:
            topic: The topic that the message waits in.
            timer_id: The name of the message.
            value: The new payload.
            **options: See `SendOptions`. Requires one of `delay`, `deliver_at` and `schedule`, and the key or partition
                of the message to replace.

        Returns:
            The receipt of the new message.

        Raises:
            InvalidInputError: No time is given, or an argument is invalid.
            SendError: The broker refused the message, or all tries failed.
        """
        return self._core.send(
            compose_rescheduled(topic, timer_id, value, options, self._codecs), self._core.room_s
        ).result()

    def timers(self, topic: str, **filters: Unpack[TimerFilters]) -> list[WaitingMessage]:
        """List delayed messages that are not delivered or cancelled, by due time.

        Args:
            topic: The topic that the messages wait in.
            **filters: See `TimerFilters`: `timer_id`, or a window of `due_from` and `due_until` with a `limit` (100);
                `partition`.

        Returns:
            The messages, the earliest first.

        Raises:
            InvalidInputError: A filter is invalid.
            TopicError: The topic does not exist, or no broker answers.
        """
        return self._core.read_timers(timer_query(topic, **filters))

    def transaction(self, transactional_id: str | None = None) -> AbstractContextManager[Transaction]:
        """Send messages that become visible together or not at all.

        The end of the block commits, an exception aborts.

        Args:
            transactional_id: At most one transaction of an id is open anywhere: a client that begins one aborts the
                transaction that an earlier client left open. Default: an id of this client's own.

        Returns:
            A context manager that yields a `Transaction`.

        Raises:
            TransactionError: The transaction did not commit. If `is_unknown` is true, the outcome is not known.
            FencedError: Another client took over the id.

        Example:
            ```python
            with client.transaction() as transaction:
                transaction.send("orders", b"order 7")
                transaction.send("invoices", b"invoice 7")
            ```
        """
        return self._core.transactions.transaction(transactional_id, self._codecs)

    def request(self, topic: str, value: Value, *, timeout: Duration = 30, **options: Unpack[SendOptions]) -> Message:
        """Send a request and wait for its reply.

        The handler of the request answers with `message.reply(value)`, or passes `message.reply_token` to another
        process that calls `client.reply(token, value)`. The first reply counts.

        Args:
            topic: The topic to send the request to.
            value: The payload of the request.
            timeout: How long to wait for the reply.
            **options: See `SendOptions`.

        Returns:
            The reply.

        Raises:
            NoReplyError: No reply arrived in time.
            SendError: The request could not be sent.
            TopicError: The reply topic could not be created or read.
        """
        timeout_s = seconds_of("timeout", timeout)
        name, answer = self._core.ask(compose(topic, value, self._codecs, **options), self._core.room_s)
        try:
            return Message(answer.result(timeout_s), codecs=self._codecs)
        except TimeoutError:
            raise NoReplyError(f"no reply to the request to {topic} within {timeout_s:g} s") from None
        finally:
            self._core.requests.forget(name)

    def reply(self, token: str, value: Value, *, headers: HeadersInput | None = None) -> Receipt:
        """Answer the request that a reply token stands for.

        Args:
            token: `Message.reply_token` of the request.
            value: The payload of the reply.
            headers: Headers of the reply.

        Returns:
            The receipt of the reply, once it is durable.

        Raises:
            InvalidInputError: The token is malformed.
            SendError: The reply could not be sent.
        """
        return self._core.send(compose_reply(token, value, headers, self._codecs), self._core.room_s).result()

    @overload
    def subscribe(
        self, topics: str | Sequence[str], handler: HandlerT, **options: Unpack[SubscriptionOptions]
    ) -> HandlerT: ...

    @overload
    def subscribe(
        self, topics: str | Sequence[str], handler: None = None, **options: Unpack[SubscriptionOptions]
    ) -> Callable[[HandlerT], HandlerT]: ...

    def subscribe(
        self, topics: str | Sequence[str], handler: Any = None, **options: Unpack[SubscriptionOptions]
    ) -> Any:
        """Register a function that is called for each message. Use it as a method or as a decorator.

        Threads of the client call the handler once you call `start` or `run`. Returning acknowledges the message; an
        exception causes a retry.

        Args:
            topics: The name of a topic, or a list of names.
            handler: A function that takes a `Message`, or what the annotation says: a dataclass or a pydantic model to
                get the decoded payload, or two parameters to get both (lists with `batch`). Leave it out to use the
                decorator.
            **options: See `SubscriptionOptions`: `group` (required), `retries`, `deadline`, `concurrency`, `in_flight`,
                `rate`, `batch`, `ordered`, `dedup`, `tags`, `delivery` and `from_beginning`.

        Returns:
            The handler, or a decorator for it.

        Raises:
            InvalidInputError: An option is invalid, the handler cannot be called like that, or messages cannot be
                decoded to the type of its annotation.

        Example:
            ```python
            @client.subscribe("orders", group="billing", retries=penstock.Retries(attempts=5))
            def bill(order: Order, message: penstock.Message) -> None:
                ...
            ```
        """
        validated = validate_options(topics, **options)

        def register(handler: HandlerT) -> HandlerT:
            is_batch = validated.batch is not None
            self._register(validated, new_handler(handler, is_awaited=False, is_batch=is_batch, codecs=self._codecs))
            return handler

        return register if handler is None else register(handler)

    def _register(self, options: ValidatedOptions, handler: Handler) -> None:
        self._subscriptions.add(
            options,
            handler,
            lambda: self._core.subscription(
                options, handler, ThreadRunner(options.group, options.concurrency), self.reply
            ),
        )

    def start(self) -> None:
        """Start all subscriptions and return. Later subscriptions start at once.

        Raises:
            InvalidInputError: There is no subscription.
        """
        self._subscriptions.start()

    def stop(self, grace: Duration = GRACE_S) -> None:
        """Stop all subscriptions: call no more handlers, wait for running ones, commit and leave the groups.

        Args:
            grace: How long to wait for running handlers.
        """
        self._subscriptions.stop(seconds_of("grace", grace))

    def run(self) -> None:
        """Start all subscriptions, wait for SIGINT, SIGTERM or `stop`, and stop. A second signal does not wait for
        handlers.

        Raises:
            InvalidInputError: There is no subscription, or the cluster refuses what a subscription asks for.
        """
        with stopping() as asked:
            self.start()
            try:
                while not asked.wait(CHECK_S) and not self._subscriptions.is_over():
                    pass
            finally:
                self.stop()

    def flush(self, timeout: Duration = GRACE_S) -> bool:
        """Wait until all messages sent so far are answered.

        Args:
            timeout: How long to wait.

        Returns:
            False if the time was not enough.
        """
        return self._core.flush(seconds_of("timeout", timeout))

    def close(self, timeout: Duration = GRACE_S) -> None:
        """Stop all subscriptions, send the remaining messages and disconnect.

        Args:
            timeout: How long to wait for handlers, and then for messages. Messages that are left then fail, or stay in
                the spill folder.
        """
        timeout_s = seconds_of("timeout", timeout)
        self._subscriptions.stop(timeout_s)
        self._core.close(timeout_s)


def _result_of(future: Future[Receipt]) -> Receipt | SendError:
    error = future.exception()
    if error is None:
        return future.result()
    assert isinstance(error, SendError), error
    return error
