"""`StubClient`: the client of an application in its tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, cast

from penstock.clock import ManualClock
from penstock.durations import Duration
from penstock.sdk.client import Client
from penstock.sdk.core import Core
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Message
from penstock.sdk.receive.subscriptions import Subscriptions
from penstock.sdk.send.composing import Extras, Payload, compose, seconds_of
from penstock.testing.looking import Looking
from penstock.testing.queued import QueuedCore
from penstock.testing.stepping import Stepping


class StubClient(Looking, Client):
    """A `penstock.Client` with topics in memory, for tests: no broker, no threads, no waiting.

    Handlers are called inside `run` and `advance`, in the thread of the test, one after the other. Time stands still
    until `advance` moves it; retries and delays come exactly when they are due. Retries, dead letters, dedup, rates and
    what handlers may say are the SDK's own code.

        stub = StubClient()
        shop.subscribe_all(stub)                     # code of yours that takes a Client
        stub.send("orders", b"42", delay="30m")
        stub.advance("29m")                          # nothing yet
        stub.advance("1m")                           # its handler was called
    """

    _stub: QueuedCore

    def __init__(self, *, partitions: int = 1, hooks: Sequence[Hooks] = (), clock: ManualClock | None = None) -> None:
        """Topics are made when they are first named, with so many partitions."""
        self._stub = QueuedCore(partitions, hooks, clock)
        # The client asks its core and its subscriptions for everything: these answer from memory.
        self._core = cast("Core", self._stub)
        self._subscriptions = cast("Subscriptions", Stepping(self._stub))

    def run(self) -> None:
        """Calls handlers until nothing is left that is due now."""
        self._stub.take(self._stub.working())

    def advance(self, by: Duration) -> None:
        """Lets time pass; whatever is due on the way is delivered and handled at its own moment."""
        self._stub.take(self._stub.passing(seconds_of("by", by)))

    def request(self, topic: str, value: Payload, *, timeout: Duration = 30, **extras: Unpack[Extras]) -> Message:
        """As the real one; handlers are called until the answer is there, and time passes if it has to."""
        timeout_s = seconds_of("timeout", timeout)
        return Message(self._stub.take(self._stub.asking(compose(topic, value, **extras), timeout_s)))
