"""Work that one of the processes that use a queue does for all of them: deliver messages that are due, and clean up.

Every process has a thread for it, and one of them works: the one that has the lease. The lease only saves work. Two
processes that both believe they have it do no harm, because each of these tasks is safe to do twice.
"""

from __future__ import annotations

import logging
import threading
import uuid
from abc import ABC, abstractmethod

from penstock.clock import Clock, SystemClock
from penstock.sdk.errors import ClientError
from penstock.sdk.problem_log import OngoingProblem

log = logging.getLogger(__name__)

LEASE_MS = 3_000
IDLE_MS = 50
"""How late a message may be that another process has just added."""
_RENEW_MS = 1_000
_RETRY_MS = 500


class Maintenance(ABC):
    """Works in a thread of its own from `start` until it is closed."""

    def __init__(self, address: str, due: threading.Event, clock: Clock | None = None) -> None:
        """`due` is set when there may be something to do sooner."""
        self.clock = clock or SystemClock()
        self.owner = uuid.uuid4().hex
        """The name under which this process has the lease."""
        self._address = address
        self._due = due
        self._has_lease = False
        self._renew_at_ms = float("-inf")
        self._is_closing = False
        self._problem = OngoingProblem(
            log, f"{address}: could not deliver delayed messages; trying again", f"{address}: delivers again"
        )
        self._thread = threading.Thread(target=self._run, name="penstock-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and leave the work to other processes."""
        self._is_closing = True
        self._due.set()
        self._thread.join()

    @abstractmethod
    def take_lease(self) -> bool:
        """Take or renew the lease; whether this process has it now."""

    @abstractmethod
    def release_lease(self) -> None:
        """Give the lease back, if that can be done; if not, it expires."""

    @abstractmethod
    def work(self, steady_ms: float) -> float:
        """Do what is due at a time of the monotonic clock; for how many milliseconds nothing else is due."""

    def _run(self) -> None:
        while not self._is_closing:
            try:
                wait_ms = self._step()
                self._problem.end()
            except ClientError as error:
                self._problem.report(error)
                self._renew_at_ms = float("-inf")
                wait_ms = _RETRY_MS
            except Exception:
                log.exception("a bug in the SDK: the maintenance of %s goes on", self._address)
                wait_ms = _RETRY_MS
            if wait_ms > 0:
                self._due.wait(wait_ms / 1000)
            self._due.clear()
        if self._has_lease:
            try:
                self.release_lease()
            except ClientError as error:
                log.debug("could not release the lease of %s: %s", self._address, error)

    def _step(self) -> float:
        steady_ms = self.clock.monotonic_ms()
        if steady_ms >= self._renew_at_ms:
            self._has_lease = self.take_lease()
            self._renew_at_ms = steady_ms + _RENEW_MS
        return self.work(steady_ms) if self._has_lease else self._renew_at_ms - steady_ms
