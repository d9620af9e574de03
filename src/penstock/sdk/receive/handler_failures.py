"""Logs the failures of handlers: the handler, the message, the error and what happens next."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.sdk.errors import DecodeError
from penstock.sdk.message import Failed, Message
from penstock.sdk.problem_log import SeenErrors, error_line, traceback_of
from penstock.sdk.receive.disposition import DeadLettered, Disposition, Retry
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.topic_names import dead_topic

log = logging.getLogger(__name__)

OnFailure = Callable[[Message, BaseException], None]
"""Called with each exception of a handler, once per message of the call."""


class HandlerFailures:
    """The failures of one subscription. The first error of a kind has a traceback, later ones have one line."""

    def __init__(
        self, options: ValidatedOptions, handler: Callable[..., object], on_failure: OnFailure | None = None
    ) -> None:
        self._options = options
        self._name = handler_name(handler)
        self._on_failure = on_failure
        self._kinds = SeenErrors()

    def failed(self, message: Message, result: Failed, disposition: Disposition) -> None:
        """Log that a handler did not settle a message; a retry that it requested is not a failure."""
        cause, options = result.cause, self._options
        what = f"group {options.group}: handler {self._name}"
        at = f"{where(message)} (attempt {message.attempt} of {options.retries.attempts})"
        follows = self._consequence(result, disposition)
        if cause is not None:
            is_new = self._kinds.is_new(cause)
            log.warning(
                "%s failed on %s: %s; %s",
                what,
                at,
                error_line(cause),
                follows,
                exc_info=traceback_of(cause) if is_new else None,
            )
            if self._on_failure is not None:
                self._on_failure(message, cause)
        elif result.has_timed_out:
            log.warning("%s did not settle %s within %g s; %s", what, at, options.deadline_ms / 1000, follows)
        elif result.is_requested:
            log.info("%s asked for a retry of %s: %s; %s", what, at, result.error, follows)
        else:
            log.info("group %s: %s was not handled: %s; %s", options.group, at, result.error, follows)

    def undecodable(self, message: Message, error: DecodeError) -> None:
        """Log that a message could not be decoded. Only an error of the application's own checks has a traceback."""
        cause = error.__cause__
        log.warning(
            "group %s: %s cannot be decoded for handler %s: %s; no retry",
            self._options.group,
            where(message),
            self._name,
            error_line(error),
            exc_info=traceback_of(cause) if cause is not None and self._kinds.is_new(cause) else None,
        )
        if self._on_failure is not None:
            self._on_failure(message, error)

    def _consequence(self, result: Failed, disposition: Disposition) -> str:
        if self._options.delivery == "at-most-once" and not result.is_requested:
            return "no retry (at-most-once)"
        if isinstance(disposition, Retry):
            return f"retry in {disposition.after_ms / 1000:g} s"
        return "no attempts left"


def dead_letter_line(group: str, message: Message, disposition: DeadLettered) -> str:
    """The log line for a dead letter."""
    often = "1 attempt" if disposition.failures == 1 else f"{disposition.failures} attempts"
    return (
        f"group {group}: {where(message)} became a dead letter after {often}: {' '.join(disposition.error.split())}; "
        f"kept in {dead_topic(group)} (penstock deadletter list {group})"
    )


def where(message: Message) -> str:
    """A message in log lines: `orders-0 offset 42`."""
    return f"{message.topic}-{message.partition} offset {message.offset}"


def handler_name(handler: Callable[..., object]) -> str:
    """A handler in log lines: `shop.billing.bill`."""
    inner = getattr(handler, "func", handler)
    name = getattr(inner, "__qualname__", None)
    return repr(handler) if name is None else f"{getattr(inner, '__module__', None) or ''}.{name}".lstrip(".")
