"""What happens around one call of a handler, as steps that a runner does.

Claim the business ids, call the handler, see to what was said of each message. Written once: whether a step is a call
or is awaited is the runner's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from penstock.sdk.headers import error_text
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Acknowledged, Again, Message, Verdict
from penstock.sdk.receive.claims import Claims
from penstock.sdk.receive.handing import Handout, Job
from penstock.sdk.receive.runners import Blocking, Calling, Steps

Handler = Callable[[Any], Any]
"""Gets a Message, or a list of them if the subscription has `batch`."""


class Bench(Protocol):
    """Whoever knows what is in hand."""

    def begin(self, handout: Handout) -> bool:
        """Its handler is called now; false if that is not wanted any more."""
        ...

    def decide(self, handout: Handout, verdict: Verdict) -> Callable[[], None] | None:
        """What is left to do about it, which may block if it has a claim; None if it was settled before."""
        ...

    def ended(self, job: Job) -> None:
        """The handler has returned."""


class Handling:
    """Makes the steps of a job."""

    def __init__(self, handler: Handler, claims: Claims, hooks: Hooks, bench: Bench, is_batch: bool) -> None:
        self._handler = handler
        self._claims = claims
        self._hooks = hooks
        self._bench = bench
        self._is_batch = is_batch

    def steps(self, job: Job) -> Steps:
        try:
            claimed = []
            for handout in job.handouts:
                refusal = None
                if self._claims.wants(handout):
                    try:
                        refusal = yield Blocking(partial(self._claims.claim, handout))
                    except Exception as error:
                        refusal = Again(error_text(error).decode(), counts=False)
                if refusal is None:
                    claimed.append(handout)
                else:
                    yield from self._conclude(handout, refusal)
            begun = [handout for handout in claimed if self._bench.begin(handout)]
            verdict: Verdict = Acknowledged()
            if begun:
                try:
                    with ExitStack() as surroundings:
                        for handout in begun:
                            surroundings.enter_context(self._hooks.handling(handout.message))
                        yield Calling(self._call([handout.message for handout in begun]))
                except Exception as error:
                    verdict = Again(error_text(error).decode())
            for handout in claimed:
                yield from self._conclude(handout, verdict)
        finally:
            self._bench.ended(job)

    def _conclude(self, handout: Handout, verdict: Verdict) -> Steps:
        left = self._bench.decide(handout, verdict)
        if left is None:
            return
        if not handout.has_claim:
            left()
            return
        try:
            yield Blocking(left)
        except Exception:
            # The task was cancelled while it waited; what was left to do is being done all the same.
            return

    def _call(self, messages: list[Message]) -> Callable[[], Any]:
        given = messages if self._is_batch else messages[0]
        return lambda: self._handler(given)
