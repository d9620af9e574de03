"""Hooks observe the messages of a client, for metrics and traces.

The SDK calls a hook in the thread or task that does the work, so a hook must return quickly. The SDK logs a hook that
raises, and continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.sdk.errors import InvalidInputError, SendError
from penstock.sdk.headers import ORIGIN, SENDER, value_of
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.problem_log import SeenErrors, error_line, traceback_of

if TYPE_CHECKING:
    from penstock.sdk.message import Message

log = logging.getLogger(__name__)

_EVENTS = ("sent", "failed", "received", "handled", "retried", "dead_lettered")
"""What hooks are told, and return nothing."""


class Hooks:
    """Observes messages. Subclass it and override the methods that you need.

    Example:
        ```python
        class Slow(penstock.Hooks):
            def handled(self, message: penstock.Message, seconds: float) -> None:
                if seconds > 1:
                    print(f"{message!r} took {seconds:.1f} s")

        client = penstock.Client(hooks=[Slow()])
        ```
    """

    def sending(self, outgoing: Outgoing) -> Outgoing:
        """Called before a message is sent.

        Returns:
            The message to send instead, for example with more headers.
        """
        return outgoing

    def sent(self, outgoing: Outgoing, receipt: Receipt, seconds: float) -> None:
        """Called when a message is durable, `seconds` after it was passed to the client."""

    def failed(self, outgoing: Outgoing, error: SendError, seconds: float) -> None:
        """Called when a message did not become durable."""

    def received(self, message: Message) -> None:
        """Called when a message arrives from a broker, before its handler runs."""

    def handling(self, message: Message) -> AbstractContextManager[None]:
        """Returns a context manager that wraps each handler call, in the thread or task of the handler."""
        return nullcontext()

    def handled(self, message: Message, seconds: float) -> None:
        """Called when a message was acknowledged, with the duration of its handler."""

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        """Called when a message will be delivered again after `after_ms`."""

    def dead_lettered(self, message: Message, error: str) -> None:
        """Called when a message became a dead letter: it was rejected, or its last attempt failed."""


def check_hooks(hooks: object) -> None:
    """Raises `InvalidInputError` unless it is a list of `Hooks` objects."""
    if isinstance(hooks, Hooks) or not isinstance(hooks, Iterable):
        raise InvalidInputError(f"hooks must be a list such as [PrometheusHooks()], not {hooks!r}")
    for hook in hooks:
        if isinstance(hook, type):
            raise InvalidInputError(f"hooks contains the class {hook.__name__}: pass an object, {hook.__name__}(...)")
        if not isinstance(hook, Hooks):
            raise InvalidInputError(f"hooks must contain objects of penstock.Hooks, not {hook!r}")


class SignedHooks(Hooks):
    """Adds the sender's client id to every message; retries and dead letters keep that of the original."""

    def __init__(self, sender: str) -> None:
        self._header = (SENDER, sender.encode())

    def sending(self, outgoing: Outgoing) -> Outgoing:
        if any(value_of(outgoing.headers, name) is not None for name in (SENDER, ORIGIN)):
            return outgoing
        return replace(outgoing, headers=(*outgoing.headers, self._header))


class HookChain(Hooks):
    """Several hooks as one; an error in one affects neither the others nor the messages."""

    def __init__(self, hooks: Sequence[Hooks] = ()) -> None:
        self._hooks: tuple[Hooks, ...] = ()
        self._kinds = SeenErrors()
        self._senders: tuple[Hooks, ...] = ()
        """Those with something to do when a message is sent; the same holds for the others."""
        self._surrounding: tuple[Hooks, ...] = ()
        self._informed: dict[str, tuple[Hooks, ...]] = {}
        self.add(hooks)

    @property
    def hooks(self) -> tuple[Hooks, ...]:
        return self._hooks

    def add(self, hooks: Sequence[Hooks]) -> None:
        """Hooks that are called behind the others."""
        self._hooks = (*self._hooks, *hooks)
        self._senders = self._overriding("sending")
        self._surrounding = self._overriding("handling")
        self._informed = {name: self._overriding(name) for name in _EVENTS}

    def _overriding(self, name: str) -> tuple[Hooks, ...]:
        """The hooks that do not leave a method as it is in `Hooks`: this class is in the way of every message."""
        inherited = getattr(Hooks, name)
        return tuple(hook for hook in self._hooks if getattr(getattr(hook, name), "__func__", None) is not inherited)

    def observes(self, event: str) -> bool:
        """Whether there is a hook, in this chain or in one that it has, with something to do at this event."""
        inherited = getattr(Hooks, event)
        return any(
            hook.observes(event)
            if isinstance(hook, HookChain)
            else getattr(getattr(hook, event), "__func__", None) is not inherited
            for hook in self._hooks
        )

    def sending(self, outgoing: Outgoing) -> Outgoing:
        for hook in self._senders:
            try:
                outgoing = hook.sending(outgoing)
            except Exception as error:
                _log_failure(hook, error, self._kinds)
        return outgoing

    def sent(self, outgoing: Outgoing, receipt: Receipt, seconds: float) -> None:
        self._call_all("sent", lambda hook: hook.sent(outgoing, receipt, seconds))

    def failed(self, outgoing: Outgoing, error: SendError, seconds: float) -> None:
        self._call_all("failed", lambda hook: hook.failed(outgoing, error, seconds))

    def received(self, message: Message) -> None:
        self._call_all("received", lambda hook: hook.received(message))

    def handling(self, message: Message) -> AbstractContextManager[None]:
        return self._around(message) if self._surrounding else nullcontext()

    def handled(self, message: Message, seconds: float) -> None:
        self._call_all("handled", lambda hook: hook.handled(message, seconds))

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        self._call_all("retried", lambda hook: hook.retried(message, error, after_ms))

    def dead_lettered(self, message: Message, error: str) -> None:
        self._call_all("dead_lettered", lambda hook: hook.dead_lettered(message, error))

    @contextmanager
    def _around(self, message: Message) -> Iterator[None]:
        with ExitStack() as stack:
            for hook in self._surrounding:
                stack.enter_context(_isolated(hook, message, self._kinds))
            yield

    def _call_all(self, event: str, call: Callable[[Hooks], None]) -> None:
        for hook in self._informed[event]:
            try:
                call(hook)
            except Exception as error:
                _log_failure(hook, error, self._kinds)


@contextmanager
def _isolated(hook: Hooks, message: Message, kinds: SeenErrors) -> Iterator[None]:
    """Wrap a handler call: the handler's exceptions reach the hook and pass through; those of the hook are logged."""
    try:
        surrounding = hook.handling(message)
        surrounding.__enter__()
    except Exception as failed:
        _log_failure(hook, failed, kinds)
        yield
        return
    try:
        yield
    except BaseException as error:
        try:
            surrounding.__exit__(type(error), error, error.__traceback__)
        except Exception as inner:
            # A context manager made of a generator raises the handler's exception again.
            if inner is not error:
                _log_failure(hook, inner, kinds)
        raise
    try:
        surrounding.__exit__(None, None, None)
    except Exception as failed:
        _log_failure(hook, failed, kinds)


def _log_failure(hook: Hooks, error: Exception, kinds: SeenErrors) -> None:
    """Log with a traceback for the first error of a kind: hooks run for every message."""
    trace = traceback_of(error) if kinds.is_new(error) else None
    log.error("hook %s failed: %s", type(hook).__name__, error_line(error), exc_info=trace)
