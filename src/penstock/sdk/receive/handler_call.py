"""The steps around one handler call, which a runner performs: claim business ids, call the handler, settle each
message.

Written once as a generator: the runner decides whether a step is called or awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from penstock.sdk.headers import error_text
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.message import Acknowledged, Failed, HandlerResult, Message
from penstock.sdk.receive.dedup_claims import DedupClaims
from penstock.sdk.receive.handler_runners import BlockingStep, HandlerStep, Steps
from penstock.sdk.receive.in_flight import DeliveryAttempt, HandlerCall
from penstock.sdk.receive.shared_retry_topic import SharedRetryRouter

Handler = Callable[[Any], Any]
"""Takes a `Message`, or a list of them with `batch`."""


class CallListener(Protocol):
    """Tracks handler calls; the dispatcher."""

    def begin(self, attempt: DeliveryAttempt) -> bool:
        """The handler is about to be called; False if the message is no longer wanted."""
        ...

    def settle_once(self, attempt: DeliveryAttempt, result: HandlerResult) -> Callable[[], None] | None:
        """What is left to do to settle the message, which may block if it holds a dedup claim; None if it was settled
        before.
        """
        ...

    def call_returned(self, call: HandlerCall) -> None:
        """The handler has returned."""


class HandlerSteps:
    """Creates the steps of handler calls."""

    def __init__(
        self, handler: Handler, claims: DedupClaims, hooks: Hooks, listener: CallListener, is_batch: bool
    ) -> None:
        self._handler = handler
        self._claims = claims
        self._hooks = hooks
        self._listener = listener
        self._is_batch = is_batch
        self._router: SharedRetryRouter | None = None

    def route_with(self, router: SharedRetryRouter) -> None:
        self._router = router

    def steps(self, call: HandlerCall) -> Steps:
        try:
            claimed = []
            for attempt in call.attempts:
                if self._router is not None and self._router.is_foreign(attempt.message):
                    yield from self._settle(attempt, (yield BlockingStep(partial(self._router.route, attempt.message))))
                    continue
                refusal = None
                if self._claims.applies_to(attempt):
                    try:
                        refusal = yield BlockingStep(partial(self._claims.claim, attempt))
                    except Exception as error:
                        refusal = Failed(error_text(error).decode(), counts_as_attempt=False)
                if refusal is None:
                    claimed.append(attempt)
                else:
                    yield from self._settle(attempt, refusal)
            begun = [attempt for attempt in claimed if self._listener.begin(attempt)]
            result: HandlerResult = Acknowledged()
            if begun:
                try:
                    with ExitStack() as surroundings:
                        for attempt in begun:
                            surroundings.enter_context(self._hooks.handling(attempt.message))
                        yield HandlerStep(self._call([attempt.message for attempt in begun]))
                except Exception as error:
                    result = Failed(error_text(error).decode(), cause=error)
            for attempt in claimed:
                yield from self._settle(attempt, result)
        finally:
            self._listener.call_returned(call)

    def _settle(self, attempt: DeliveryAttempt, result: HandlerResult) -> Steps:
        finish = self._listener.settle_once(attempt, result)
        if finish is None:
            return
        if not attempt.has_claim:
            finish()
            return
        try:
            yield BlockingStep(finish)
        except Exception:
            # The task was cancelled while it waited; the background thread finishes the work.
            return

    def _call(self, messages: list[Message]) -> Callable[[], Any]:
        given = messages if self._is_batch else messages[0]
        return lambda: self._handler(given)
