"""`AsyncStubClient`: the same for applications on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack, cast

from penstock.clock import ManualClock
from penstock.durations import Duration
from penstock.sdk.aio_client import Answer, Client, Given
from penstock.sdk.core import GRACE_S, Core
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Message
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.runners import Runner
from penstock.sdk.receive.subscriptions import Subscriptions
from penstock.sdk.send.composing import Extras, Payload, compose, seconds_of
from penstock.testing.looking import Looking
from penstock.testing.stepping import Stepping
from penstock.testing.tasks import TaskCore


class AsyncStubClient(Looking, Client):
    """A `penstock.aio.Client` with topics in memory, for tests: no broker, no threads.

    Handlers are called inside `run` and `advance`, as tasks of the test's own event loop, `concurrency` at a time. Time
    stands still until `advance` moves it, and while a handler runs: `run` and `advance` wait for handlers, whatever
    those wait for. A handler lets time pass by awaiting `advance` or `request` itself; if its deadline passes by that,
    it is cancelled. All else is as with `StubClient`.

        stub = AsyncStubClient()
        shop.subscribe_all(stub)                     # code of yours that takes a penstock.aio.Client
        await stub.send("orders", b"42", delay="30m")
        await stub.advance("29m")                    # nothing yet
        await stub.advance("1m")                     # its handler has run
    """

    _stub: TaskCore

    def __init__(self, *, partitions: int = 1, hooks: Sequence[Hooks] = (), clock: ManualClock | None = None) -> None:
        """Topics are made when they are first named, with so many partitions."""
        self._stub = TaskCore(partitions, hooks, clock)
        self._stepping = Stepping(self._stub)
        # The client asks its core and its subscriptions for everything: these answer from memory.
        self._core = cast("Core", self._stub)
        self._subscriptions = cast("Subscriptions", self._stepping)

    async def start(self) -> None:
        """Subscriptions are in force at once: needed only after `stop`."""
        self._stepping.start()

    async def run(self) -> None:
        """Calls handlers until nothing is left that is due now."""
        await self._stub.take(self._stub.working())

    async def advance(self, by: Duration) -> None:
        """Lets time pass; whatever is due on the way is delivered and handled at its own moment."""
        await self._stub.take(self._stub.passing(seconds_of("by", by)))

    async def request(
        self,
        topic: str,
        value: Payload,
        *,
        timeout: Duration = 30,  # noqa: ASYNC109 (as in penstock.Client)
        **extras: Unpack[Extras],
    ) -> Message:
        """As the real one; handlers are called until the answer is there, and time passes if it has to."""
        timeout_s = seconds_of("timeout", timeout)
        return Message(await self._stub.take(self._stub.asking(compose(topic, value, **extras), timeout_s)))

    async def stop(self, grace: Duration = GRACE_S) -> None:
        """Calls no more handlers, waits for those that run, and leaves the groups."""
        seconds_of("grace", grace)
        self._stepping.drain()
        await self._stub.quiet()
        self._stepping.leave()

    async def _beside(self, call: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        """Nothing blocks here."""
        return call(*args, **kwargs)

    def _new_runner(self, plan: Plan) -> Runner:
        return self._stub.runner
