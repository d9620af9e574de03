"""Each message that is sent is counted and shown to the hooks: here, whichever way it goes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from penstock.clock import Clock
from penstock.sdk.counters import Tally
from penstock.sdk.errors import SendError
from penstock.sdk.hooks import Hooks
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.outboxes import ClosableOutbox


class Watch:
    """Goes around whatever sends."""

    def __init__(self, hooks: Hooks, tally: Tally, clock: Clock) -> None:
        self._hooks = hooks
        self._tally = tally
        self._clock = clock

    def send(self, outgoing: Outgoing, send: Callable[[Outgoing], Future[Receipt]]) -> Future[Receipt]:
        """Sends the message as the hooks want it, and tells them what became of it."""
        began_ms = self._clock.monotonic_ms()
        shown = self._hooks.sending(outgoing)

        def tell(future: Future[Receipt]) -> None:
            seconds = (self._clock.monotonic_ms() - began_ms) / 1000
            error = future.exception()
            if error is None:
                receipt = future.result()
                if not receipt.is_spilled:
                    self._tally.count(sent=1)
                self._hooks.sent(shown, receipt, seconds)
            elif isinstance(error, SendError):
                self._tally.count(failed=1)
                self._hooks.failed(shown, error, seconds)

        future = send(shown)
        future.add_done_callback(tell)
        return future


class WatchedOutbox:
    """An outbox, watched."""

    def __init__(self, inner: ClosableOutbox, watch: Watch) -> None:
        self.inner = inner
        self.watch = watch

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        """Waits so long for room; the future has the receipt once the message is durable, or a `SendError`."""
        return self.watch.send(outgoing, lambda shown: self.inner.send_soon(shown, room_s))
