"""Claims the business id of a message before its handler runs, and completes or releases it afterwards."""

from __future__ import annotations

import logging
import time

from penstock.sdk.dedup.store import ClaimedElsewhere, ClaimResult, Dedup
from penstock.sdk.message import Acknowledged, Failed, HandlerResult
from penstock.sdk.problem_log import OngoingProblem, error_line
from penstock.sdk.receive.in_flight import DeliveryAttempt
from penstock.sdk.receive.subscription_options import ValidatedOptions

log = logging.getLogger(__name__)

LEASE_MARGIN_MS = 5_000
"""How much longer a lease lasts than the deadline, so that a handler that finishes in time can mark its id as done."""
_RECHECK_MS = (1_000, 30_000)
"""How soon to check a claim of another consumer again: after as long as it has lasted, within these bounds."""
_COMPLETE_RETRY_WAITS_S = (0.2, 1.0, 3.0)
"""Between attempts to mark an id as done."""


class DedupClaims:
    """Blocks: call it where that is allowed. Does nothing without `dedup`, or for a message without a business id."""

    def __init__(self, options: ValidatedOptions) -> None:
        self._dedup = options.dedup
        self._group = options.group
        self._lease_ms = options.deadline_ms + LEASE_MARGIN_MS
        self._problem = OngoingProblem(
            log,
            f"group {options.group}: the dedup store does not answer; messages with a business id wait",
            f"group {options.group}: the dedup store answers again",
        )

    def applies_to(self, attempt: DeliveryAttempt) -> bool:
        return self._dedup is not None and attempt.message.biz_id is not None

    def claim(self, attempt: DeliveryAttempt) -> HandlerResult | None:
        """None if the handler may be called; otherwise the result of the message."""
        dedup, biz_id = self._store_and_id(attempt)
        try:
            claim = dedup.store.claim(self._group, biz_id, attempt.entry.token, self._lease_ms)
        except Exception as error:
            self._problem.report(error_line(error))
            return Failed(f"the dedup store does not answer: {error}", counts_as_attempt=False)
        self._problem.end()
        if claim is ClaimResult.DONE:
            return Acknowledged()
        if isinstance(claim, ClaimedElsewhere):
            min_ms, max_ms = _RECHECK_MS
            after_ms = min(max(min_ms, self._lease_ms - claim.lease_left_ms), max_ms)
            return Failed(f"{biz_id} is being handled by another consumer", after_ms=after_ms, counts_as_attempt=False)
        attempt.has_claim = True
        return None

    def finish(self, attempt: DeliveryAttempt, result: HandlerResult) -> HandlerResult:
        """Mark the id as done, or release it. A handler that finished after its claim expired does not acknowledge."""
        if not attempt.has_claim:
            return result
        dedup, biz_id = self._store_and_id(attempt)
        attempt.has_claim = False
        if not isinstance(result, Acknowledged):
            try:
                dedup.store.release(self._group, biz_id, attempt.entry.token)
            except Exception as error:
                # The lease expires on its own.
                self._warn(biz_id, f"could not release its claim, which expires with its lease: {error_line(error)}")
            return result
        if self._complete(dedup, biz_id, attempt.entry.token):
            return result
        return Failed(f"{biz_id} was claimed by another handler before this one finished", counts_as_attempt=False)

    def extend(self, attempt: DeliveryAttempt, by_ms: int) -> None:
        dedup, biz_id = self._store_and_id(attempt)
        try:
            if not dedup.store.extend(self._group, biz_id, attempt.entry.token, by_ms + LEASE_MARGIN_MS):
                self._warn(biz_id, "its claim expired before the extension; another consumer may handle it too")
        except Exception as error:
            self._warn(biz_id, f"could not extend its claim: {error_line(error)}")

    def _complete(self, dedup: Dedup, biz_id: str, token: str) -> bool:
        for wait_s in (*_COMPLETE_RETRY_WAITS_S, None):
            try:
                return dedup.store.complete(self._group, biz_id, token, dedup.window_ms)
            except Exception as error:
                if wait_s is None:
                    # The work is done: a retry would certainly repeat it.
                    log.error(
                        "group %s: business id %s was handled but could not be marked as done; another message with "
                        "it would be handled too: %s",
                        self._group,
                        biz_id,
                        error_line(error),
                    )
                    return True
                time.sleep(wait_s)
        raise AssertionError("the last try returns")

    def _warn(self, biz_id: str, what: str) -> None:
        log.warning("group %s: business id %s: %s", self._group, biz_id, what)

    def _store_and_id(self, attempt: DeliveryAttempt) -> tuple[Dedup, str]:
        biz_id = attempt.message.biz_id
        assert self._dedup is not None and biz_id is not None
        return self._dedup, biz_id
