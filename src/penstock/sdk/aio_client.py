"""`penstock.aio.Client`: the client for applications that use asyncio.

Nothing here blocks the event loop: librdkafka's threads complete futures of the loop, and blocking calls run in
threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from penstock.durations import Duration
from penstock.sdk.backend import Backend
from penstock.sdk.client_core import GRACE_S, ClientCore
from penstock.sdk.counters import Counters
from penstock.sdk.errors import NoReplyError
from penstock.sdk.hooks.base import HookChain, Hooks, check_hooks
from penstock.sdk.kafka.backend import KafkaBackend
from penstock.sdk.message import Message
from penstock.sdk.payloads.codecs import Codec, Codecs
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.receive.handler_call import Handler, new_handler
from penstock.sdk.receive.handler_runners import LoopRunner, Runner
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
from penstock.sdk.signals import SIGNALS
from penstock.sdk.timers import TimerFilters, WaitingMessage, timer_query

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Client:
    """Sends and receives messages on an event loop. `penstock.Client` documents each method in full.

    Close it, or use it in an `async with` block, so that it sends the messages it still holds.

    Example:
        ```python
        async with penstock.aio.Client("localhost:9092") as client:
            await client.send("orders", b"order 7", key="ann")
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
        """Create a client. The arguments are those of `penstock.Client`."""
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
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that handlers run on: the one that `start` was called on."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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

    async def send(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> Receipt:
        """Send a message and wait until it is durable.

        Args:
            topic: The topic to send to.
            value: The payload: bytes, text (sent as UTF-8) or None; a dataclass or a pydantic model, which a codec
                encodes.
            **options: See `SendOptions`.

        Returns:
            Where the message is stored.

        Raises:
            InvalidInputError: An argument is invalid. Nothing was sent.
            SendError: The broker refused the message, or all tries failed.
        """
        return await self._send(compose(topic, value, self._codecs, **options))

    def send_soon(self, topic: str, value: Value, **options: Unpack[SendOptions]) -> asyncio.Future[Receipt]:
        """Send a message and return at once. Call it on the event loop.

        Returns:
            A future that holds the `Receipt` once the message is durable, or a `SendError`.

        Raises:
            InvalidInputError: An argument is invalid. Nothing was sent.
        """
        return asyncio.wrap_future(self._core.send(compose(topic, value, self._codecs, **options)))

    async def send_many(
        self, topic: str, messages: Iterable[Value | SendEntry], **options: Unpack[SendOptions]
    ) -> Receipts:
        """Send many messages and wait until all of them are durable. See `penstock.Client.send_many`.

        Returns:
            The receipts, in the order of the messages.

        Raises:
            InvalidInputError: An argument or a message is invalid; the text says which. Nothing was sent.
            SendManyError: Some messages were not stored; `results` says for each what became of it.
        """
        composed = compose_many(topic, messages, self._codecs, **options)
        if self._core.has_room_for(composed):
            return await asyncio.wrap_future(self._core.send_many(topic, composed))
        future = await self._in_thread(self._core.send_many, topic, composed, self._core.room_s)
        return await asyncio.wrap_future(future)

    def send_many_soon(
        self, topic: str, messages: Iterable[Value | SendEntry], **options: Unpack[SendOptions]
    ) -> asyncio.Future[Receipts]:
        """Send many messages and return at once. Call it on the event loop.

        Returns:
            A future that holds the receipts once all messages are durable, or a `SendManyError`.

        Raises:
            InvalidInputError: An argument or a message is invalid; the text says which. Nothing was sent.
        """
        return asyncio.wrap_future(self._core.send_many(topic, compose_many(topic, messages, self._codecs, **options)))

    async def cancel(
        self, topic: str, timer_id: str, *, key: Payload = None, partition: int | None = None
    ) -> list[Receipt]:
        """Cancel a delayed message. See `penstock.Client.cancel`.

        Returns:
            One receipt for each partition that the request was sent to. It does not say whether a message was waiting.

        Raises:
            TopicError: The topic does not exist (only without key and partition).
            SendError: A partition did not accept the request.
        """
        outgoing = compose_cancel(topic, timer_id, key=key, partition=partition)
        return await asyncio.gather(*map(self._send, await self._in_thread(self._core.each_partition, outgoing)))

    async def reschedule(self, topic: str, timer_id: str, value: Value, /, **options: Unpack[SendOptions]) -> Receipt:
        """Replace the message that waits under a timer id, or add one if none does. See `penstock.Client.reschedule`.

        Raises:
            InvalidInputError: No time is given, or an argument is invalid.
            SendError: The broker refused the message, or all tries failed.
        """
        return await self._send(compose_rescheduled(topic, timer_id, value, options, self._codecs))

    async def timers(self, topic: str, **filters: Unpack[TimerFilters]) -> list[WaitingMessage]:
        """List delayed messages that are not delivered or cancelled, by due time. See `penstock.Client.timers`.

        Raises:
            InvalidInputError: A filter is invalid.
            TopicError: The topic does not exist, or no broker answers.
        """
        return await self._in_thread(self._core.read_timers, timer_query(topic, **filters))

    def transaction(self, transactional_id: str | None = None) -> AbstractAsyncContextManager[Transaction]:
        """Send messages that become visible together or not at all: `async with client.transaction() as transaction:
        ...`.

        Do not await `transaction.send(...)`. The end of the block commits, an exception aborts.

        Raises:
            TransactionError: The transaction did not commit. If `is_unknown` is true, the outcome is not known.
            FencedError: Another client took over the id.
        """
        return self._transaction(transactional_id)

    async def request(
        self,
        topic: str,
        value: Value,
        *,
        timeout: Duration = 30,  # noqa: ASYNC109 (as in penstock.Client)
        **options: Unpack[SendOptions],
    ) -> Message:
        """Send a request and wait for its reply. See `penstock.Client.request`.

        Raises:
            NoReplyError: No reply arrived in time.
            SendError: The request could not be sent.
        """
        timeout_s = seconds_of("timeout", timeout)
        outgoing = compose(topic, value, self._codecs, **options)
        # The first request creates the reply topic and starts to listen, which takes a while.
        name, answer = await self._in_thread(self._core.ask, outgoing, self._core.room_s)
        try:
            async with asyncio.timeout(timeout_s):
                return Message(await asyncio.wrap_future(answer), codecs=self._codecs)
        except TimeoutError:
            raise NoReplyError(f"no reply to the request to {topic} within {timeout_s:g} s") from None
        finally:
            self._core.requests.forget(name)

    async def reply(self, token: str, value: Value, *, headers: HeadersInput | None = None) -> Receipt:
        """Answer the request that a reply token stands for. See `penstock.Client.reply`.

        Raises:
            InvalidInputError: The token is malformed.
            SendError: The reply could not be sent.
        """
        return await self._send(compose_reply(token, value, headers, self._codecs))

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
        """Register a coroutine function that is called for each message. Use it as a method or as a decorator.

        The handler runs as a task once you call `start` or `run`. Returning acknowledges the message; an exception
        causes a retry. See `penstock.Client.subscribe` for the arguments.

        Raises:
            InvalidInputError: An option is invalid, the handler is not a coroutine function that can be called like
                that, or messages cannot be decoded to the type of its annotation.
        """
        validated = validate_options(topics, **options)

        def register(handler: HandlerT) -> HandlerT:
            is_batch = validated.batch is not None
            self._register(validated, new_handler(handler, is_awaited=True, is_batch=is_batch, codecs=self._codecs))
            return handler

        return register if handler is None else register(handler)

    def _register(self, options: ValidatedOptions, handler: Handler) -> None:
        self._subscriptions.add(
            options,
            handler,
            lambda: self._core.subscription(options, handler, self._new_runner(options), self.reply),
        )

    async def start(self) -> None:
        """Start all subscriptions and return. Later subscriptions start at once."""
        self._loop = asyncio.get_running_loop()
        self._subscriptions.start()

    async def stop(self, grace: Duration = GRACE_S) -> None:
        """Stop all subscriptions: call no more handlers, wait up to `grace` for running ones, and leave the groups."""
        await self._in_thread(self._subscriptions.stop, seconds_of("grace", grace))

    async def run(self) -> None:
        """Start all subscriptions, wait for SIGINT, SIGTERM, `stop` or cancellation, and stop."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, asked.set)
        try:
            await self.start()
            while not asked.is_set() and not self._subscriptions.is_over():
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await asked.wait()
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
            await self.stop()

    async def flush(self, timeout: Duration = GRACE_S) -> bool:  # noqa: ASYNC109 (as in penstock.Client)
        """Wait up to `timeout` until all messages sent so far are answered; False if that took longer."""
        return await self._in_thread(self._core.flush, seconds_of("timeout", timeout))

    async def close(self, timeout: Duration = GRACE_S) -> None:  # noqa: ASYNC109 (as in penstock.Client)
        """Stop all subscriptions, send the remaining messages for up to `timeout`, and disconnect."""
        timeout_s = seconds_of("timeout", timeout)
        await self.stop(timeout_s)
        await self._in_thread(self._core.close, timeout_s)

    async def _send(self, outgoing: Outgoing) -> Receipt:
        if self._core.has_room_for((outgoing,)):
            return await asyncio.wrap_future(self._core.send(outgoing))
        # Wait for room in a thread, not on the loop.
        return await asyncio.wrap_future(await self._in_thread(self._core.send, outgoing, self._core.room_s))

    @asynccontextmanager
    async def _transaction(self, transactional_id: str | None) -> AsyncIterator[Transaction]:
        transaction = self._core.transactions.transaction(transactional_id, self._codecs)
        begun = await self._in_thread(transaction.__enter__)
        try:
            yield begun
        except BaseException as error:
            if not await asyncio.shield(self._in_thread(transaction.__exit__, type(error), error, error.__traceback__)):
                raise
        else:
            await asyncio.shield(self._in_thread(transaction.__exit__, None, None, None))

    async def _in_thread(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        """Make a call that may block, in a thread."""
        return await asyncio.to_thread(call, *args, **kwargs)

    def _new_runner(self, options: ValidatedOptions) -> Runner:
        assert self._loop is not None, "subscriptions are made when they are started"
        return LoopRunner(options.group, self._loop)
