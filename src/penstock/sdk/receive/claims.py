"""A subscription's side of dedup: claiming the business id of a message before its handler, and letting go after it."""

from __future__ import annotations

import logging
import time

from penstock.logs import fields
from penstock.sdk.message import Acknowledged, Again, Verdict
from penstock.sdk.receive.dedup import Busy, Dedup, Outcome
from penstock.sdk.receive.handing import Handout
from penstock.sdk.receive.plan import Plan

log = logging.getLogger(__name__)

LEASE_MARGIN_MS = 5_000
"""A lease outlives the deadline by that, so that what was done in time can be marked as done."""
_LOOK_AGAIN_MS = (1_000, 30_000)
"""A message that is being handled elsewhere is looked at again after as long as that has lasted, within these."""
_COMPLETE_WAITS_S = (0.2, 1.0, 3.0)
"""Between tries to mark as done what is done."""


class Claims:
    """Blocks, and is called where that is allowed. Without `dedup`, or for a message without an id, it does nothing."""

    def __init__(self, plan: Plan) -> None:
        self._dedup = plan.dedup
        self._group = plan.group
        self._lease_ms = plan.deadline_ms + LEASE_MARGIN_MS

    def wants(self, handout: Handout) -> bool:
        return self._dedup is not None and handout.message.biz_id is not None

    def claim(self, handout: Handout) -> Verdict | None:
        """None: the handler may be called. Otherwise it is not, and that is why."""
        dedup, biz_id = self._of(handout)
        try:
            claim = dedup.store.claim(self._group, biz_id, handout.entry.token, self._lease_ms)
        except Exception as error:
            log.warning("the dedup store does not answer", extra=fields(group=self._group, error=error))
            return Again(f"the dedup store does not answer: {error}", counts=False)
        if claim is Outcome.DONE:
            return Acknowledged()
        if isinstance(claim, Busy):
            least_ms, most_ms = _LOOK_AGAIN_MS
            after_ms = min(max(least_ms, self._lease_ms - claim.left_ms), most_ms)
            return Again(f"{biz_id} is being handled elsewhere", after_ms=after_ms, counts=False)
        handout.has_claim = True
        return None

    def conclude(self, handout: Handout, verdict: Verdict) -> Verdict:
        """Marks the id as done, or frees it; what has come too late is not acknowledged."""
        if not handout.has_claim:
            return verdict
        dedup, biz_id = self._of(handout)
        handout.has_claim = False
        if not isinstance(verdict, Acknowledged):
            try:
                dedup.store.release(self._group, biz_id, handout.entry.token)
            except Exception as error:
                # The lease ends by itself.
                log.warning("a claim was not released", extra=fields(group=self._group, biz_id=biz_id, error=error))
            return verdict
        if self._complete(dedup, biz_id, handout.entry.token):
            return verdict
        return Again(f"{biz_id} was claimed by another handler before this one had ended", counts=False)

    def extend(self, handout: Handout, by_ms: int) -> None:
        dedup, biz_id = self._of(handout)
        try:
            if not dedup.store.extend(self._group, biz_id, handout.entry.token, by_ms + LEASE_MARGIN_MS):
                log.warning("a claim was lost before it was extended", extra=fields(group=self._group, biz_id=biz_id))
        except Exception as error:
            log.warning("a claim was not extended", extra=fields(group=self._group, biz_id=biz_id, error=error))

    def _complete(self, dedup: Dedup, biz_id: str, token: str) -> bool:
        for wait_s in (*_COMPLETE_WAITS_S, None):
            try:
                return dedup.store.complete(self._group, biz_id, token, dedup.window_ms)
            except Exception as error:
                if wait_s is None:
                    # It is done: to try it again would do it twice for certain.
                    log.error(
                        "a business id was handled and could not be marked as done",
                        extra=fields(group=self._group, biz_id=biz_id, error=error),
                    )
                    return True
                time.sleep(wait_s)
        raise AssertionError("the last try returns")

    def _of(self, handout: Handout) -> tuple[Dedup, str]:
        biz_id = handout.message.biz_id
        assert self._dedup is not None and biz_id is not None
        return self._dedup, biz_id
