"""How long the answer to a failed login waits: longer with each one from the same address, up to a bound.

The delay falls by half for each minute without a failure, and a success changes nothing: otherwise a guesser with one
password of its own could make each guess quick again. The table has a bound; the address remembered longest goes first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

_FORGIVEN_AFTER_S = 60.0


class _Failures(NamedTuple):
    weight: float
    last_s: float


class FailedLogins:
    """Failures by address."""

    def __init__(self, delay_s: float, max_delay_s: float, max_hosts: int) -> None:
        self._delay_s = delay_s
        self._max_delay_s = max_delay_s
        self._max_hosts = max_hosts
        self._by_host: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_host)

    def note(self, host: str, now_s: float) -> float:
        """Counts a failure; how long its answer has to wait."""
        before = self._by_host.pop(host, None)
        count = 0.0 if before is None else before.weight - (now_s - before.last_s) / _FORGIVEN_AFTER_S
        self._by_host[host] = found = _Failures(max(0.0, count) + 1, now_s)
        if len(self._by_host) > self._max_hosts:
            self._by_host.popitem(last=False)
        # A large exponent would overflow long after the bound is reached.
        return min(self._max_delay_s, self._delay_s * math.pow(2.0, min(found.weight - 1, 60)))
