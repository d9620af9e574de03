"""What `StubClient` and `AsyncStubClient` share: how a test creates a stub and inspects it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar, cast

from penstock.clock import ManualClock
from penstock.sdk.client_core import ClientCore
from penstock.sdk.hooks.base import HookChain, Hooks, check_hooks
from penstock.sdk.message import Message
from penstock.sdk.payloads.codecs import Codec, Codecs
from penstock.sdk.receive.subscription import Subscriptions
from penstock.sdk.topic_names import dead_topic
from penstock.testing.stub_core import HandlerFailure, Raises, StubCore, StubSubscriptions

CoreT = TypeVar("CoreT", bound=StubCore)


class StubBase(Generic[CoreT]):
    """Replaces the core and the subscriptions of a client by ones that work in memory."""

    _core_type: type[CoreT]

    def __init__(
        self,
        *,
        partitions: int = 1,
        hooks: Sequence[Hooks] = (),
        clock: ManualClock | None = None,
        raises: Raises = AssertionError,
        codecs: Sequence[Codec] = (),
    ) -> None:
        """Create a stub.

        Args:
            partitions: The number of partitions of each topic. The stub creates a topic on first use.
            hooks: Objects that observe messages.
            clock: The clock to use; default: a new one.
            raises: Exception types of handlers that propagate out of `run`, `advance` and `request` and so fail the
                test. All other exceptions cause a retry, as with a cluster, and are listed in `failures`.
                `raises=Exception` lets every exception fail the test, `raises=()` none.
            codecs: Formats for typed payloads, as for `penstock.Client`.

        Raises:
            InvalidInputError: An argument is invalid.
        """
        check_hooks(hooks)
        self._hooks = HookChain(hooks)
        self._address = "memory"
        self._stub = self._core_type(partitions, (self._hooks,), clock, raises=raises)
        self._codecs = Codecs(codecs)
        self._stub_subscriptions = StubSubscriptions(self._stub)
        # A client uses its core and its subscriptions for everything.
        self._core = cast("ClientCore", self._stub)
        self._subscriptions = cast("Subscriptions", self._stub_subscriptions)

    @property
    def clock(self) -> ManualClock:
        """The clock of the stub. Pass it to whatever shares its time: `MemoryStore(clock=stub.clock)`."""
        return self._stub.clock

    @property
    def failures(self) -> list[HandlerFailure]:
        """What handlers have raised, in order."""
        return list(self._stub.failures)

    def messages(self, topic: str) -> list[Message]:
        """The messages in a topic, the oldest first, without delayed ones that are not due."""
        self._stub.topics.create(topic)
        found = self._stub.topics.messages(topic)
        return [Message(each, codecs=self._codecs) for each in sorted(found, key=lambda each: each.timestamp_ms or 0)]

    def pending(self, topic: str) -> list[tuple[int, bytes | None]]:
        """The delayed messages of a topic by due time, as (milliseconds from now, value)."""
        now_ms = self.clock.now_ms()
        return [(each.due_ms - now_ms, each.outgoing.value) for each in self._stub.topics.pending(topic)]

    def dead_letters(self, group: str) -> list[Message]:
        """The dead letters of a group."""
        return self.messages(dead_topic(group))
