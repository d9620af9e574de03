"""`AsyncStubClient`: a `penstock.aio.Client` without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from penstock.durations import Duration
from penstock.sdk.aio_client import Answer, Client, Given
from penstock.sdk.client_core import GRACE_S
from penstock.sdk.message import Message
from penstock.sdk.receive.handler_runners import Runner
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose, seconds_of
from penstock.testing.async_runner import AsyncStubCore
from penstock.testing.stub_base import StubBase


class AsyncStubClient(StubBase[AsyncStubCore], Client):
    """A `penstock.aio.Client` for tests, with topics in memory: no broker, no threads.

    The stub calls handlers inside `run`, `advance` and `request`, as tasks of the test's event loop, `concurrency` at a
    time. Time stands still until `advance` moves it, and while a handler runs: `run` and `advance` wait for handlers. A
    handler that awaits `advance` or `request` lets time pass; the stub cancels it if its deadline passes.

    Example:
        ```python
        stub = AsyncStubClient()
        shop.subscribe_all(stub)                     # your code, which takes a penstock.aio.Client
        await stub.send("orders", b"42", delay="30m")
        await stub.advance("29m")                    # the handler has not run
        await stub.advance("1m")                     # the handler has run
        ```
    """

    _core_type = AsyncStubCore

    async def start(self) -> None:
        """Start subscriptions again after `stop`; they start on their own before that."""
        self._stub_subscriptions.start()

    async def run(self) -> None:
        """Call handlers until nothing is left that is due now."""
        await self._stub.take(self._stub.working())

    async def advance(self, by: Duration) -> None:
        """Move the clock. The stub delivers and handles everything that becomes due at its own time.

        Raises:
            InvalidInputError: `by` is not a duration.
        """
        await self._stub.take(self._stub.passing(seconds_of("by", by)))

    async def request(
        self,
        topic: str,
        value: Value,
        *,
        timeout: Duration = 30,  # noqa: ASYNC109 (as in penstock.Client)
        **options: Unpack[SendOptions],
    ) -> Message:
        """Send a request, call handlers and move the clock until the reply is there.

        Raises:
            NoReplyError: No handler replied within `timeout`.
        """
        timeout_s = seconds_of("timeout", timeout)
        asked = compose(topic, value, self._codecs, **options)
        return Message(await self._stub.take(self._stub.asking(asked, timeout_s)), codecs=self._codecs)

    async def stop(self, grace: Duration = GRACE_S) -> None:
        """Stop all subscriptions: call no more handlers, wait for running ones, and leave the groups."""
        seconds_of("grace", grace)
        self._stub_subscriptions.drain()
        await self._stub.quiet()
        self._stub_subscriptions.leave()

    async def _in_thread(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        """Make the call here: nothing blocks in a stub."""
        return call(*args, **kwargs)

    def _new_runner(self, options: ValidatedOptions) -> Runner:
        return self._stub.runner
