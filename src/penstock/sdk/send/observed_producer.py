"""Counts every message and reports it to the hooks, whichever producer sends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from penstock.clock import Clock
from penstock.sdk.counters import SendTally
from penstock.sdk.errors import SendError, SendManyError
from penstock.sdk.hooks.base import HookChain
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.buffered_producer import ClosableProducer
from penstock.sdk.send.send_outcome import Receipts


class SendObserver:
    """Wraps whatever sends."""

    def __init__(self, hooks: HookChain, tally: SendTally, clock: Clock) -> None:
        self._hooks = hooks
        self._tally = tally
        self._clock = clock

    def send(self, outgoing: Outgoing, send: Callable[[Outgoing], Future[Receipt]]) -> Future[Receipt]:
        """Send the message as the hooks return it, and report the result to them."""
        began_ms = self._clock.monotonic_ms()
        shown = self._hooks.sending(outgoing)

        def report(future: Future[Receipt]) -> None:
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
        future.add_done_callback(report)
        return future

    def send_many(
        self, messages: Sequence[Outgoing], send: Callable[[Sequence[Outgoing]], Future[Receipts]]
    ) -> Future[Receipts]:
        """The same for messages that are sent together; all results are reported when the last one is known."""
        began_ms = self._clock.monotonic_ms()
        hooks = self._hooks
        shown = [hooks.sending(each) for each in messages] if hooks.observes("sending") else messages

        def report(future: Future[Receipts]) -> None:
            seconds = (self._clock.monotonic_ms() - began_ms) / 1000
            error = future.exception()
            if error is None:
                receipts = future.result()
                self._tally.count(sent=len(receipts) - receipts.spilled)
                if hooks.observes("sent"):
                    for outgoing, receipt in zip(shown, receipts, strict=True):
                        hooks.sent(outgoing, receipt, seconds)
            elif isinstance(error, SendManyError):
                for outgoing, result in zip(shown, error.results, strict=True):
                    if isinstance(result, SendError):
                        self._tally.count(failed=1)
                        hooks.failed(outgoing, result, seconds)
                    else:
                        self._tally.count(sent=not result.is_spilled)
                        hooks.sent(outgoing, result, seconds)

        future = send(shown)
        future.add_done_callback(report)
        return future


class ObservedProducer:
    """A producer whose messages are observed."""

    def __init__(self, inner: ClosableProducer, observer: SendObserver) -> None:
        self.inner = inner
        self.observer = observer

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        """Wait up to `room_s` for room; the future holds the receipt once the message is durable, or a `SendError`."""
        return self.observer.send(outgoing, lambda shown: self.inner.send_soon(shown, room_s))

    def send_many(self, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        """The same for messages that are sent together: receipts, or `SendManyError`."""
        return self.observer.send_many(messages, lambda shown: self.inner.send_many(shown, room_s))
