"""How messages end that are settled one by one: at least once, or at most once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future

from penstock.logs import fields
from penstock.sdk.errors import ClientError, SendError
from penstock.sdk.message import Again, Message, Verdict
from penstock.sdk.ports import Inbox, Outbox, Outgoing, Receipt
from penstock.sdk.receive.engine import Engine
from penstock.sdk.receive.forwarding import Dead, Done, Fate, Later, Layout, dead_letter_of, retry_of
from penstock.sdk.receive.handing import Entry, Handout, Tenure

log = logging.getLogger(__name__)

_AGAIN_MS = 1000
"""After about so long something that did not work is tried again."""
_REFUSALS = 3


class Forwarding:
    """Sends failed messages on, until they are durable. One that a broker refuses for later, again and again, is a dead
    letter; the first refusals may be meant for another message that was sent together with it.
    """

    def __init__(self, engine: Engine, layout: Layout, outbox: Outbox) -> None:
        self._engine = engine
        self._layout = layout
        self._outbox = outbox

    def forward(
        self, message: Message, fate: Later | Dead, done: Callable[[], None], wanted: Callable[[], bool]
    ) -> None:
        """`done` is called once it is durable, in any thread; nothing is sent any more once it is not `wanted`."""
        outgoing, refusals = outgoing_of(message, self._layout, fate), 0

        def try_it() -> None:
            if not wanted():
                return
            try:
                self._outbox.send_soon(outgoing).add_done_callback(answered)
            except ClientError as error:
                failed(error)

        def answered(future: Future[Receipt]) -> None:
            error = future.exception()
            if error is None:
                self._tell(message, fate)
                done()
            else:
                failed(error)

        def failed(error: BaseException) -> None:
            nonlocal refusals
            log.warning(
                "a failed message could not be sent on; it stays in hand",
                extra=fields(message=message, topic=outgoing.topic, error=error),
            )
            refusals += isinstance(error, SendError) and not error.is_retriable
            if refusals >= _REFUSALS and isinstance(fate, Later):
                self.forward(message, Dead(fate.failures, fate.error), done, wanted)
            else:
                # Not all at the same time: those who were refused together part.
                self._engine.later(_AGAIN_MS * (0.5 + self._engine.chance()), try_it)

        try_it()

    def _tell(self, message: Message, fate: Later | Dead) -> None:
        tell(self._engine, message, fate)


def outgoing_of(message: Message, layout: Layout, fate: Later | Dead) -> Outgoing:
    if isinstance(fate, Later):
        return retry_of(message, layout, fate.failures, fate.error, fate.after_ms)
    return dead_letter_of(message, layout, fate.failures, fate.error)


def tell(engine: Engine, message: Message, fate: Later | Dead) -> None:
    """The hooks, and for a dead letter the log."""
    if isinstance(fate, Later):
        engine.hooks.retried(message, fate.error, fate.after_ms)
        return
    log.warning("a message is a dead letter", extra=fields(message=message, error=fate.error))
    engine.hooks.dead_lettered(message, fate.error)


def tell_handled(engine: Engine, handout: Handout) -> None:
    engine.hooks.handled(handout.message, (engine.clock.monotonic_ms() - handout.began_ms) / 1000)


class OneByOne:
    """At least once: a message counts as read when it was acknowledged, or is durable as a retry or a dead letter."""

    is_transactional = False
    outlives_tenure = False
    needs_polling = False

    def __init__(self, engine: Engine, layout: Layout, outbox: Outbox) -> None:
        self._engine = engine
        self._forwarding = Forwarding(engine, layout, outbox)

    def arrived(self, entries: Sequence[Entry]) -> None:
        self._engine.queue(entries)

    def end(self, handout: Handout, verdict: Verdict, fate: Fate) -> None:
        entry = handout.entry
        if isinstance(fate, Done):
            tell_handled(self._engine, handout)
            self._engine.settled(entry)
            return
        self._forwarding.forward(
            handout.message,
            fate,
            done=lambda: self._engine.settled(entry),
            wanted=lambda: entry.tenure.ledger.is_ours,
        )

    def forget(self, tenures: Set[Tenure], are_lost: bool) -> None:
        pass


class Beforehand:
    """At most once: a message counts as read before its handler is called. One that fails is gone, unless its handler
    has asked for it again, or has rejected it.
    """

    is_transactional = False
    outlives_tenure = True

    def __init__(self, engine: Engine, layout: Layout, outbox: Outbox, inbox: Inbox) -> None:
        self._engine = engine
        self._forwarding = Forwarding(engine, layout, outbox)
        self._inbox = inbox
        self._arrived: list[Entry] = []
        self._is_committing = False

    @property
    def needs_polling(self) -> bool:
        return self._is_committing

    def arrived(self, entries: Sequence[Entry]) -> None:
        self._arrived.extend(entries)
        self._commit()

    def end(self, handout: Handout, verdict: Verdict, fate: Fate) -> None:
        if isinstance(fate, Done):
            tell_handled(self._engine, handout)
        elif isinstance(verdict, Again) and not verdict.is_asked_for:
            log.warning("a message has failed and is gone", extra=fields(message=handout.message, error=verdict.error))
        else:
            done = lambda: self._engine.settled(handout.entry)  # noqa: E731
            self._forwarding.forward(handout.message, fate, done=done, wanted=lambda: True)
            return
        self._engine.settled(handout.entry)

    def forget(self, tenures: Set[Tenure], are_lost: bool) -> None:
        for entry in [entry for entry in self._arrived if entry.tenure in tenures]:
            self._arrived.remove(entry)
            self._engine.dropped(entry)

    def _commit(self) -> None:
        """In the polling thread, as everything that touches the inbox: one commit at a time."""
        if self._is_committing or not self._arrived:
            return
        entries, self._arrived = self._arrived, []
        self._is_committing = True
        positions = {entry.tenure.place: entry.offset + 1 for entry in entries}

        def done(is_committed: bool) -> None:
            self._is_committing = False
            if is_committed:
                self._engine.queue(entries)
            else:
                # What is not ours any more is handled by somebody else.
                self._arrived = [entry for entry in entries if entry.tenure.ledger.is_ours] + self._arrived
                for entry in entries:
                    if not entry.tenure.ledger.is_ours:
                        self._engine.dropped(entry)
            self._engine.later(0 if is_committed else _AGAIN_MS, self._commit)

        self._inbox.commit(positions, done)
