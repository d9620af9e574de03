"""`StubClient`: the client of an application in its tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack, cast

from penstock.clock import ManualClock
from penstock.durations import Duration, duration_ms
from penstock.sdk.client import Client
from penstock.sdk.core import Core
from penstock.sdk.errors import InvalidInputError, NoReplyError
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Message
from penstock.sdk.names import dead_topic
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.receive.subscriptions import Subscriptions
from penstock.sdk.send.composing import Extras, Payload, compose
from penstock.testing.core import StubCore


class StubClient(Client):
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

    def __init__(self, *, partitions: int = 1, hooks: Sequence[Hooks] = (), clock: ManualClock | None = None) -> None:
        """Topics are made when they are first named, with so many partitions."""
        if partitions < 1:
            raise InvalidInputError(f"partitions is {partitions}: it is 1 or more")
        self.clock = clock or ManualClock()
        """Hand it to what shall live in the same time: `MemoryStore(clock=stub.clock)`."""
        self._stub = StubCore(partitions, hooks, self.clock)
        # The client asks its core and its subscriptions for everything: these answer from memory.
        self._core = cast("Core", self._stub)
        self._subscriptions = cast("Subscriptions", _Stepping(self._stub))

    def run(self) -> None:
        """Calls handlers until nothing is left that is due now."""
        self._stub.work()

    def advance(self, by: Duration) -> None:
        """Lets time pass; whatever is due on the way is delivered and handled at its own moment."""
        self._stub.pass_time(_ms("by", by))

    def messages(self, topic: str) -> list[Message]:
        """What is in a topic, oldest first; what waits for its time is not there yet."""
        self._stub.topics.make(topic)
        found = self._stub.topics.messages(topic)
        return [Message(each) for each in sorted(found, key=lambda each: each.timestamp_ms or 0)]

    def pending(self, topic: str) -> list[tuple[int, bytes | None]]:
        """What waits for its time in a topic, by due time: milliseconds from now, and the value."""
        now_ms = self.clock.now_ms()
        return [(each.due_ms - now_ms, each.outgoing.value) for each in self._stub.topics.pending(topic)]

    def dead_letters(self, group: str) -> list[Message]:
        """The messages that a group has given up."""
        return self.messages(dead_topic(group))

    def request(self, topic: str, value: Payload, *, timeout: Duration = 30, **extras: Unpack[Extras]) -> Message:
        """As the real one; handlers are called until the answer is there, and time passes if it has to."""
        timeout_ms = _ms("timeout", timeout)
        answer = self._stub.ask(compose(topic, value, **extras))
        self._stub.pass_time(timeout_ms, lambda: answer() is not None)
        found = answer()
        if found is None:
            raise NoReplyError(f"no answer to a request to {topic} has come within {timeout_ms / 1000:g} s")
        return Message(found)


def _ms(name: str, value: Duration) -> int:
    try:
        return duration_ms(value)
    except ValueError as error:
        raise InvalidInputError(f"{name}: {error}") from None


class _Stepping:
    """The subscriptions of a stub: each is in force from the moment it is made."""

    def __init__(self, core: StubCore) -> None:
        self._core = core
        self._makers: list[Callable[[], Subscription]] = []
        self._is_stopped = False

    def add(self, make: Callable[[], Subscription]) -> None:
        self._makers.append(make)
        if not self._is_stopped:
            make()

    def start(self) -> None:
        if not self._makers:
            raise InvalidInputError("there is nothing to start: subscribe to something first")
        if self._is_stopped:
            self._is_stopped = False
            for make in self._makers:
                make()

    def stop(self, grace_s: float) -> None:
        self._is_stopped = True
        for each in self._core.stepped:
            each.leave()
        self._core.stepped.clear()
