"""The steps around one handler call, which a runner performs: decode payloads, claim business ids, call the handler,
settle each message.

Written once as a generator: the runner decides whether a step is called or awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from penstock.sdk.errors import DecodeError
from penstock.sdk.headers import error_text
from penstock.sdk.hooks.base import HookChain
from penstock.sdk.message import Acknowledged, Failed, HandlerResult, Message, Rejected
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.receive.dedup_claims import DedupClaims
from penstock.sdk.receive.handler_runners import BlockingStep, HandlerStep, Steps
from penstock.sdk.receive.handler_signature import MESSAGE_ONLY, HandlerSignature, signature_of
from penstock.sdk.receive.in_flight import DeliveryAttempt, HandlerCall
from penstock.sdk.receive.shared_retry_topic import SharedRetryRouter
from penstock.sdk.validation import check_handler


class Handler:
    """The application's handler, and what it takes."""

    __slots__ = ("_is_batch", "_signature", "codecs", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        is_batch: bool,
        signature: HandlerSignature = MESSAGE_ONLY,
        codecs: Codecs = JSON_ONLY,
    ) -> None:
        self.function = function
        self.codecs = codecs
        """What payloads are decoded with."""
        self._is_batch = is_batch
        self._signature = signature

    def payload_of(self, message: Message) -> Any:
        """The decoded payload, or None if the handler takes messages only. Raises `DecodeError`."""
        wanted = self._signature.payload
        return None if wanted is None else self.codecs.decode(wanted, message.value, message.headers)

    def __call__(self, messages: list[Message], payloads: list[Any]) -> Any:
        return self._call(messages, payloads, None)

    def _call(self, messages: list[Message], payloads: list[Any], context: object) -> Any:
        given = {"message": messages, "payload": payloads}
        positional, named = [], {}
        for parameter in self._signature.parameters:
            if parameter.takes == "context":
                value = context
            else:
                values = given[parameter.takes]
                value = values if self._is_batch else values[0]
            if parameter.keyword is None:
                positional.append(value)
            else:
                named[parameter.keyword] = value
        return self.function(*positional, **named)


def new_handler(function: Callable[..., Any], *, is_awaited: bool, is_batch: bool, codecs: Codecs) -> Handler:
    """Check what an application registers. Raises `InvalidInputError`."""
    check_handler(function, is_awaited=is_awaited)
    return Handler(function, is_batch=is_batch, signature=signature_of(function, is_batch=is_batch), codecs=codecs)


class CallListener(Protocol):
    """Tracks handler calls; the dispatcher."""

    def begin(self, attempts: Iterable[DeliveryAttempt]) -> list[DeliveryAttempt]:
        """The handler is about to be called; those whose messages are still wanted."""
        ...

    def settle_together(self, attempts: Sequence[DeliveryAttempt], result: HandlerResult) -> Sequence[DeliveryAttempt]:
        """Settle what can be settled at once; those that have to be settled one by one."""
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

    def __init__(self, handler: Handler, claims: DedupClaims, hooks: HookChain, listener: CallListener) -> None:
        self._handler = handler
        self._claims = claims
        self._hooks = hooks
        self._listener = listener
        self._router: SharedRetryRouter | None = None

    def route_with(self, router: SharedRetryRouter) -> None:
        self._router = router

    def steps(self, call: HandlerCall) -> Steps:
        try:
            claimed: dict[DeliveryAttempt, Any] = {}
            """With their decoded payloads."""
            for attempt in call.attempts:
                if self._router is not None and self._router.is_foreign(attempt.message):
                    yield from self._settle(attempt, (yield BlockingStep(partial(self._router.route, attempt.message))))
                    continue
                payload, refusal = self._decoded(attempt.message)
                if refusal is None and self._claims.applies_to(attempt):
                    try:
                        refusal = yield BlockingStep(partial(self._claims.claim, attempt))
                    except Exception as error:
                        refusal = Failed(error_text(error).decode(), counts_as_attempt=False)
                if refusal is None:
                    claimed[attempt] = payload
                else:
                    yield from self._settle(attempt, refusal)
            begun = self._listener.begin(claimed)
            result: HandlerResult = Acknowledged()
            if begun:
                try:
                    with ExitStack() as surroundings:
                        for attempt in begun if self._hooks.observes("handling") else ():
                            surroundings.enter_context(self._hooks.handling(attempt.message))
                        messages = [attempt.message for attempt in begun]
                        yield HandlerStep(partial(self._handler, messages, [claimed[attempt] for attempt in begun]))
                except Exception as error:
                    result = Failed(error_text(error).decode(), cause=error)
            for attempt in self._listener.settle_together(list(claimed), result):
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

    def _decoded(self, message: Message) -> tuple[Any, HandlerResult | None]:
        """The payload of a message, or the result of one that has none."""
        try:
            return self._handler.payload_of(message), None
        except DecodeError as error:
            # A later attempt could not decode it either.
            return None, Rejected(error_text(error).decode(), cause=error)
        except Exception as error:
            return None, Failed(error_text(error).decode(), cause=error)
