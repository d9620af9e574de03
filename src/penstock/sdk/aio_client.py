"""`penstock.aio.Client`: the client for applications on an event loop.

Nothing here waits in the loop's thread: librdkafka's threads answer futures of the loop, and the few calls that block
are made in threads beside it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from penstock.durations import Duration
from penstock.sdk.core import GRACE_S, Core
from penstock.sdk.counters import Counters
from penstock.sdk.errors import InvalidInputError, NoReplyError
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Message
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.receive.plan import Plan, plan_of
from penstock.sdk.receive.runners import LoopRunner, Runner
from penstock.sdk.receive.subscriptions import LOOK_S, Subscriptions
from penstock.sdk.receive.terms import Terms
from penstock.sdk.send.composing import (
    Extras,
    HeadersGiven,
    Payload,
    compose,
    compose_cancel,
    compose_rescheduled,
    seconds_of,
)
from penstock.sdk.send.requests import REPLY_TOPIC, compose_reply
from penstock.sdk.send.sending import Sending
from penstock.sdk.send.transactions import Transaction
from penstock.sdk.signals import SIGNALS
from penstock.sdk.timers_wanted import TimersWanted, wanted_of
from penstock.sdk.waiting import WaitingMessage

Handling = TypeVar("Handling", bound=Callable[[Any], Any])
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Client:
    """Sends and receives messages on an event loop. `penstock.Client` says more about each method.

    Close it, or use it in an `async with`: what it still holds is sent then.
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
    ) -> None:
        """The parameters are those of `penstock.Client`."""
        self._core = Core(bootstrap, client_id, sending, hooks, settings, reply_topic)
        self._subscriptions = Subscriptions()
        self._loop: asyncio.AbstractEventLoop | None = None
        """On which handlers run: the one on which they were started."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def counters(self) -> Counters:
        """How many messages were sent, failed, were dropped, are buffered and spilled."""
        return self._core.counters

    async def send(self, topic: str, value: Payload, **extras: Unpack[Extras]) -> Receipt:
        """Sends a message and returns when it is durable; raises `SendError` if it is not after all tries."""
        return await self._send(compose(topic, value, **extras))

    def send_soon(self, topic: str, value: Payload, **extras: Unpack[Extras]) -> asyncio.Future[Receipt]:
        """Sends a message and returns at once; the future has the `Receipt` once it is durable, or a `SendError`.

        To be called on the event loop. Bad input is raised here, as by `send`.
        """
        return asyncio.wrap_future(self._core.send(compose(topic, value, **extras)))

    async def cancel(self, topic: str, timer_id: str, *, key: Payload = None, partition: int | None = None) -> None:
        """Cancels the message that waits under this name; if none does, nothing happens."""
        outgoing = compose_cancel(topic, timer_id, key=key, partition=partition)
        await asyncio.gather(*map(self._send, await self._beside(self._core.each_partition, outgoing)))

    async def reschedule(self, topic: str, timer_id: str, value: Payload, /, **extras: Unpack[Extras]) -> Receipt:
        """Replaces the message that waits under this name: another time, and the value as it shall be then."""
        return await self._send(compose_rescheduled(topic, timer_id, value, extras))

    async def timers(self, topic: str, **wanted: Unpack[TimersWanted]) -> list[WaitingMessage]:
        """The messages that wait for their time, the first due ones first; what is delivered or cancelled is not there.

        Those that are due in a window (`due_from`, `due_until`: a datetime or milliseconds since 1970), at most
        `limit`; or, with `timer_id`, what waits under that name.
        """
        return await self._beside(self._core.waiting, wanted_of(topic, **wanted))

    def transaction(self, transactional_id: str | None = None) -> AbstractAsyncContextManager[Transaction]:
        """Messages that are seen all or not at all: `async with client.transaction() as transaction: ...`.

        `transaction.send(...)` is not awaited; the end of the block commits, an exception aborts.
        """
        return self._transaction(transactional_id)

    async def request(
        self,
        topic: str,
        value: Payload,
        *,
        timeout: Duration = 30,  # noqa: ASYNC109 (as in penstock.Client)
        **extras: Unpack[Extras],
    ) -> Message:
        """Sends a request and returns its answer; raises `NoReplyError` if none has come in time."""
        timeout_s = seconds_of("timeout", timeout)
        outgoing = compose(topic, value, **extras)
        # The first request makes the reply topic and begins to listen, which takes a while.
        name, answer = await self._beside(self._core.ask, outgoing, self._core.room_s)
        try:
            return Message(await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s))
        except TimeoutError:
            raise NoReplyError(f"no answer to a request to {topic} has come within {timeout_s:g} s") from None
        finally:
            self._core.requests.forget(name)

    async def reply(self, token: str, value: Payload, *, headers: HeadersGiven | None = None) -> Receipt:
        """Answers the request that a reply token stands for; returns when the answer is durable."""
        return await self._send(compose_reply(token, value, headers))

    @overload
    def subscribe(self, topics: str | Sequence[str], handler: Handling, **terms: Unpack[Terms]) -> Handling: ...

    @overload
    def subscribe(
        self, topics: str | Sequence[str], handler: None = None, **terms: Unpack[Terms]
    ) -> Callable[[Handling], Handling]: ...

    def subscribe(self, topics: str | Sequence[str], handler: Any = None, **terms: Unpack[Terms]) -> Any:
        """Has a coroutine function called for each message; as a method, or as a decorator of the function.

        `Terms` says what can be said about a subscription. The function is called from `start` or `run` on, as a task.
        When it returns the message is acknowledged; an exception means: again later.
        """
        plan = plan_of(topics, **terms)

        def register(handler: Handling) -> Handling:
            if not inspect.iscoroutinefunction(handler):
                raise InvalidInputError(f"{handler!r} cannot be a handler: a coroutine function (async def) can")
            self._subscriptions.add(lambda: self._core.subscription(plan, handler, self._new_runner(plan), self.reply))
            return handler

        return register if handler is None else register(handler)

    async def start(self) -> None:
        """Starts what was subscribed to, and returns; what is subscribed to later starts at once."""
        self._loop = asyncio.get_running_loop()
        self._subscriptions.start()

    async def stop(self, grace: Duration = GRACE_S) -> None:
        """Calls no more handlers, waits so long for those that run, and leaves the groups."""
        await self._beside(self._subscriptions.stop, seconds_of("grace", grace))

    async def run(self) -> None:
        """Starts, waits for SIGINT, SIGTERM, `stop` or its task's cancellation, and stops."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, asked.set)
        try:
            await self.start()
            while not asked.is_set() and not self._subscriptions.is_over():
                with suppress(TimeoutError):
                    await asyncio.wait_for(asked.wait(), LOOK_S)
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
            await self.stop()

    async def flush(self, timeout: Duration = GRACE_S) -> bool:  # noqa: ASYNC109 (as in penstock.Client)
        """Waits until all that was sent so far is answered; false if that took longer."""
        return await self._beside(self._core.flush, seconds_of("timeout", timeout))

    async def close(self, timeout: Duration = GRACE_S) -> None:  # noqa: ASYNC109 (as in penstock.Client)
        """Stops, sends what is left, for at most so long, and ends; what is left then fails, or stays spilled."""
        timeout_s = seconds_of("timeout", timeout)
        await self.stop(timeout_s)
        await self._beside(self._core.close, timeout_s)

    async def _send(self, outgoing: Outgoing) -> Receipt:
        if self._core.has_room_for(outgoing):
            return await asyncio.wrap_future(self._core.send(outgoing))
        # Room is waited for beside the loop.
        return await asyncio.wrap_future(await self._beside(self._core.send, outgoing, self._core.room_s))

    @asynccontextmanager
    async def _transaction(self, transactional_id: str | None) -> AsyncIterator[Transaction]:
        transaction = self._core.transactions.transaction(transactional_id)
        begun = await self._beside(transaction.__enter__)
        try:
            yield begun
        except BaseException as error:
            if not await asyncio.shield(self._beside(transaction.__exit__, type(error), error, error.__traceback__)):
                raise
        else:
            await asyncio.shield(self._beside(transaction.__exit__, None, None, None))

    async def _beside(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        """A call that may block, in a thread beside the loop."""
        return await asyncio.to_thread(call, *args, **kwargs)

    def _new_runner(self, plan: Plan) -> Runner:
        assert self._loop is not None, "subscriptions are made when they are started"
        return LoopRunner(plan.group, self._loop)
