"""Hooks: what an application can see of its messages, for metrics and traces.

Rules: a hook is called in the thread (or task) that does the work, so it must be quick and must not block; a hook that
raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.sdk.errors import SendError
from penstock.sdk.headers import ORIGIN, SENDER, value_of
from penstock.sdk.ports import Outgoing, Receipt

if TYPE_CHECKING:
    from penstock.sdk.message import Message

log = logging.getLogger(__name__)


class Hooks:
    """What happens to messages. Every method does nothing by default: a class of yours has those that it wants."""

    def sending(self, outgoing: Outgoing) -> Outgoing:
        """A message is about to be sent; what is returned is sent in its place (it may have more headers)."""
        return outgoing

    def sent(self, outgoing: Outgoing, receipt: Receipt, seconds: float) -> None:
        """A message is durable; `seconds` have passed since it was given to the client."""

    def failed(self, outgoing: Outgoing, error: SendError, seconds: float) -> None:
        """A message did not become durable."""

    def received(self, message: Message) -> None:
        """A message has come from a broker; its handler is called later."""

    def handling(self, message: Message) -> AbstractContextManager[None]:
        """Surrounds each call of a handler, in the thread or task of the handler."""
        return nullcontext()

    def handled(self, message: Message, seconds: float) -> None:
        """A message was acknowledged; its handler took so long."""

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        """A message was not acknowledged, and comes again after that time."""

    def dead_lettered(self, message: Message, error: str) -> None:
        """A message has gone to the dead letters: it was rejected, or its last attempt has failed."""


class SignedHooks(Hooks):
    """Writes on every message who has sent it; retries and dead letters keep who was the first, if known."""

    def __init__(self, sender: str) -> None:
        self._header = (SENDER, sender.encode())

    def sending(self, outgoing: Outgoing) -> Outgoing:
        if any(value_of(outgoing.headers, name) is not None for name in (SENDER, ORIGIN)):
            return outgoing
        return replace(outgoing, headers=(*outgoing.headers, self._header))


class HookChain(Hooks):
    """Several hooks as one, each kept from harming the others and the messages."""

    def __init__(self, hooks: Sequence[Hooks] = ()) -> None:
        self._hooks = tuple(hooks)

    def sending(self, outgoing: Outgoing) -> Outgoing:
        for hook in self._hooks:
            try:
                outgoing = hook.sending(outgoing)
            except Exception:
                _complain(hook)
        return outgoing

    def sent(self, outgoing: Outgoing, receipt: Receipt, seconds: float) -> None:
        self._tell(lambda hook: hook.sent(outgoing, receipt, seconds))

    def failed(self, outgoing: Outgoing, error: SendError, seconds: float) -> None:
        self._tell(lambda hook: hook.failed(outgoing, error, seconds))

    def received(self, message: Message) -> None:
        self._tell(lambda hook: hook.received(message))

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        with ExitStack() as stack:
            for hook in self._hooks:
                stack.enter_context(_harmless(hook, message))
            yield

    def handled(self, message: Message, seconds: float) -> None:
        self._tell(lambda hook: hook.handled(message, seconds))

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        self._tell(lambda hook: hook.retried(message, error, after_ms))

    def dead_lettered(self, message: Message, error: str) -> None:
        self._tell(lambda hook: hook.dead_lettered(message, error))

    def _tell(self, tell: Callable[[Hooks], None]) -> None:
        for hook in self._hooks:
            try:
                tell(hook)
            except Exception:
                _complain(hook)


@contextmanager
def _harmless(hook: Hooks, message: Message) -> Iterator[None]:
    """What surrounds a handler: the handler's exceptions pass through and reach the hook, the hook's own end here."""
    try:
        surrounding = hook.handling(message)
        surrounding.__enter__()
    except Exception:
        _complain(hook)
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
                _complain(hook)
        raise
    try:
        surrounding.__exit__(None, None, None)
    except Exception:
        _complain(hook)


def _complain(hook: Hooks) -> None:
    log.exception("a hook has failed: %s", type(hook).__name__)
