"""`penstock.Client`: what an application talks to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar, Unpack, overload

from penstock.durations import Duration
from penstock.sdk.core import GRACE_S, Core
from penstock.sdk.counters import Counters
from penstock.sdk.errors import InvalidInputError, NoReplyError, SendError
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Message
from penstock.sdk.ports import Receipt
from penstock.sdk.receive.plan import plan_of
from penstock.sdk.receive.runners import ThreadRunner
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
from penstock.sdk.signals import stopping
from penstock.sdk.timers_wanted import TimersWanted, wanted_of
from penstock.sdk.waiting import WaitingMessage

OnResult = Callable[[Receipt | SendError], object]
Handling = TypeVar("Handling", bound=Callable[[Any], Any])


class Client:
    """Sends and receives messages; safe to be used by any number of threads.

    One client is enough for a process. It connects by itself, and again when brokers were away. Close it, or use it in
    a `with`: what it still holds is sent then.
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
        """`bootstrap` is `HOST:PORT` of a broker, or of several with commas between.

        `client_id` is the application's name: brokers log it, and every message carries it as `penstock-sender`.
        `settings` are librdkafka's own, for what is not said here (`security.protocol`, `sasl.username` ...).
        `reply_topic` is where answers to requests of this client go; it is made with the first request.
        """
        self._core = Core(bootstrap, client_id, sending, hooks, settings, reply_topic)
        self._subscriptions = Subscriptions()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> Counters:
        """How many messages were sent, failed, were dropped, are buffered and spilled."""
        return self._core.counters

    def send(self, topic: str, value: Payload, **extras: Unpack[Extras]) -> Receipt:
        """Sends a message and returns when it is durable; raises `SendError` if it is not after all tries.

        `Extras` says what else can be said about a message. `InvalidInputError`: it could not be sent as it was given,
        nothing was sent.
        """
        return self._core.send(compose(topic, value, **extras), self._core.room_s).result()

    def send_soon(
        self, topic: str, value: Payload, *, on_result: OnResult | None = None, **extras: Unpack[Extras]
    ) -> Future[Receipt]:
        """Sends a message and returns at once; the future has the `Receipt` once it is durable, or a `SendError`.

        `on_result` is called with either, in a thread of the client: it must be quick and must not wait for the client.
        Bad input is raised here, as by `send`.
        """
        future = self._core.send(compose(topic, value, **extras))
        if on_result is not None:
            future.add_done_callback(lambda done: on_result(_result_of(done)))
        return future

    def cancel(self, topic: str, timer_id: str, *, key: Payload = None, partition: int | None = None) -> None:
        """Cancels the message that waits under this name; if none does, nothing happens.

        A name belongs to a partition: give the key (or the partition) that the message was sent with. Without either,
        all partitions are told. Returns when it is durable; a message that was delivered before stays delivered.
        """
        outgoing = compose_cancel(topic, timer_id, key=key, partition=partition)
        for future in [self._core.send(each, self._core.room_s) for each in self._core.each_partition(outgoing)]:
            future.result()

    def reschedule(self, topic: str, timer_id: str, value: Payload, /, **extras: Unpack[Extras]) -> Receipt:
        """Replaces the message that waits under this name: another time, and the value as it shall be then.

        The broker keeps messages, it does not change them: so the value is given again. Give the same key (or
        partition), and one of `delay`, `deliver_at` and `schedule`. If none waits under the name, this one does then.
        """
        return self._core.send(compose_rescheduled(topic, timer_id, value, extras), self._core.room_s).result()

    def timers(self, topic: str, **wanted: Unpack[TimersWanted]) -> list[WaitingMessage]:
        """The messages that wait for their time, the first due ones first; what is delivered or cancelled is not there.

        Those that are due in a window (`due_from`, `due_until`: a datetime or milliseconds since 1970), at most
        `limit`; or, with `timer_id`, what waits under that name.
        """
        return self._core.waiting(wanted_of(topic, **wanted))

    def transaction(self, transactional_id: str | None = None) -> AbstractContextManager[Transaction]:
        """Messages that are seen all or not at all: `with client.transaction() as transaction: transaction.send(...)`.

        The end of the block commits, an exception aborts. `TransactionError` says that it was not committed, and
        `FencedError` that another client has taken over the id. With an id of your own, at most one transaction of that
        id is going on anywhere: a client that begins one aborts what an earlier client has left open.
        """
        return self._core.transactions.transaction(transactional_id)

    def request(self, topic: str, value: Payload, *, timeout: Duration = 30, **extras: Unpack[Extras]) -> Message:
        """Sends a request and returns its answer; raises `NoReplyError` if none has come in time.

        Whoever handles the request answers with `message.reply(value)`, or hands `message.reply_token` to somebody who
        answers with `client.reply(token, value)`. The first answer counts; one that comes too late is passed over.
        """
        timeout_s = seconds_of("timeout", timeout)
        name, answer = self._core.ask(compose(topic, value, **extras), self._core.room_s)
        try:
            return Message(answer.result(timeout_s))
        except TimeoutError:
            raise NoReplyError(f"no answer to a request to {topic} has come within {timeout_s:g} s") from None
        finally:
            self._core.requests.forget(name)

    def reply(self, token: str, value: Payload, *, headers: HeadersGiven | None = None) -> Receipt:
        """Answers the request that a reply token stands for; returns when the answer is durable."""
        return self._core.send(compose_reply(token, value, headers), self._core.room_s).result()

    @overload
    def subscribe(self, topics: str | Sequence[str], handler: Handling, **terms: Unpack[Terms]) -> Handling: ...

    @overload
    def subscribe(
        self, topics: str | Sequence[str], handler: None = None, **terms: Unpack[Terms]
    ) -> Callable[[Handling], Handling]: ...

    def subscribe(self, topics: str | Sequence[str], handler: Any = None, **terms: Unpack[Terms]) -> Any:
        """Has a function called for each message; as a method, or as a decorator of the function.

        `Terms` says what can be said about a subscription. The function is called by threads of the client, from
        `start` or `run` on. When it returns the message is acknowledged; an exception means: again later.
        """
        plan = plan_of(topics, **terms)

        def register(handler: Handling) -> Handling:
            if not callable(handler) or inspect.iscoroutinefunction(handler):
                raise InvalidInputError(
                    f"{handler!r} cannot be a handler: a function can, a coroutine with penstock.aio"
                )
            self._subscriptions.add(
                lambda: self._core.subscription(plan, handler, ThreadRunner(plan.group, plan.concurrency), self.reply)
            )
            return handler

        return register if handler is None else register(handler)

    def start(self) -> None:
        """Starts what was subscribed to, and returns; what is subscribed to later starts at once."""
        self._subscriptions.start()

    def stop(self, grace: Duration = GRACE_S) -> None:
        """Calls no more handlers, waits so long for those that run, and leaves the groups."""
        self._subscriptions.stop(seconds_of("grace", grace))

    def run(self) -> None:
        """Starts, waits for SIGINT, SIGTERM or `stop`, and stops. A second signal does not wait for handlers."""
        with stopping() as asked:
            self.start()
            try:
                while not asked.wait(LOOK_S) and not self._subscriptions.is_over():
                    pass
            finally:
                self.stop()

    def flush(self, timeout: Duration = GRACE_S) -> bool:
        """Waits until all that was sent so far is answered; false if that took longer."""
        return self._core.flush(seconds_of("timeout", timeout))

    def close(self, timeout: Duration = GRACE_S) -> None:
        """Stops, sends what is left, for at most so long, and ends; what is left then fails, or stays spilled."""
        timeout_s = seconds_of("timeout", timeout)
        self._subscriptions.stop(timeout_s)
        self._core.close(timeout_s)


def _result_of(future: Future[Receipt]) -> Receipt | SendError:
    error = future.exception()
    if error is None:
        return future.result()
    assert isinstance(error, SendError), error
    return error
