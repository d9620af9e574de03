"""What was denied: counted always, logged at a bounded rate."""

from __future__ import annotations

import logging

from penstock.clock import Clock
from penstock.logs import fields
from penstock.net.caller import Caller
from penstock.security.acls import Operation, ResourceType

log = logging.getLogger(__name__)

LINES_PER_PERIOD = 20
PERIOD_MS = 10_000
_NAME_CHARS = 200


class Denials:
    """One for each broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counts: dict[tuple[Operation, ResourceType], int] = {}
        self._period_ends_ms = 0
        self._lines = 0
        self._unlogged = 0

    def note(self, caller: Caller, api: str, operation: Operation, type_: ResourceType, name: str) -> None:
        """A caller was denied something."""
        self.counts[operation, type_] = self.counts.get((operation, type_), 0) + 1
        now_ms = self._clock.now_ms()
        if now_ms >= self._period_ends_ms or now_ms < self._period_ends_ms - PERIOD_MS:
            if self._unlogged:
                log.warning("more requests were denied than are logged", extra=fields(unlogged=self._unlogged))
            self._period_ends_ms, self._lines, self._unlogged = now_ms + PERIOD_MS, 0, 0
        if self._lines >= LINES_PER_PERIOD:
            self._unlogged += 1
            return
        self._lines += 1
        log.warning(
            "a request was denied",
            extra=fields(
                principal=str(caller.principal),
                host=caller.host,
                api=api,
                operation=operation.name,
                resource=type_.name,
                name=name[:_NAME_CHARS],
            ),
        )
