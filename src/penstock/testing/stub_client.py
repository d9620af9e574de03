"""`StubClient`: a `penstock.Client` without a broker."""

from __future__ import annotations

from typing import Unpack

from penstock.durations import Duration
from penstock.sdk.client import Client
from penstock.sdk.message import Message
from penstock.sdk.send.outgoing_message import SendOptions, Value, compose, seconds_of
from penstock.testing.stub_base import StubBase
from penstock.testing.sync_runner import SyncStubCore


class StubClient(StubBase[SyncStubCore], Client):
    """A `penstock.Client` for tests, with topics in memory: no broker, no threads, no waiting.

    The stub calls handlers inside `run`, `advance` and `request`, in the thread of the test, one after the other. Time
    stands still until `advance` moves it, so retries and delayed messages arrive exactly when they are due. Retries,
    dead letters, dedup, rate limits and the verbs of `Message` are the SDK's own code.

    Example:
        ```python
        stub = StubClient()
        shop.subscribe_all(stub)                     # your code, which takes a Client
        stub.send("orders", b"42", delay="30m")
        stub.advance("29m")                          # the handler has not run
        stub.advance("1m")                           # the handler has run
        ```
    """

    _core_type = SyncStubCore

    def run(self) -> None:
        """Call handlers until nothing is left that is due now."""
        self._stub.take(self._stub.working())

    def advance(self, by: Duration) -> None:
        """Move the clock. The stub delivers and handles everything that becomes due at its own time.

        Args:
            by: How far to move.

        Raises:
            InvalidInputError: `by` is not a duration.
        """
        self._stub.take(self._stub.passing(seconds_of("by", by)))

    def request(self, topic: str, value: Value, *, timeout: Duration = 30, **options: Unpack[SendOptions]) -> Message:
        """Send a request, call handlers and move the clock until the reply is there.

        Raises:
            NoReplyError: No handler replied within `timeout`.
        """
        timeout_s = seconds_of("timeout", timeout)
        asked = compose(topic, value, self._codecs, **options)
        return Message(self._stub.take(self._stub.asking(asked, timeout_s)), codecs=self._codecs)
