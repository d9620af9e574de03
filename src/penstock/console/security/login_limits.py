"""How often a login may fail: by user and by address, within a window. Bounded in memory."""

from __future__ import annotations

from collections import OrderedDict, deque

from penstock.clock import Clock
from penstock.console.errors import BusyError
from penstock.console.settings import SecuritySettings

_ADDRESS_FACTOR = 5
"""Several users may share an address."""
_REFUSED = "refused"


class LoginLimits:
    """Counts failed logins."""

    def __init__(self, settings: SecuritySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def check(self, user: str, address: str) -> None:
        """BusyError if there were too many failures; the password is not even looked at then."""
        self._check("user", user)
        self._check("address", address)

    def check_address(self, address: str) -> None:
        """The same before the console knows the user: an attacker cannot lock other users out by failing."""
        self._check("address", address)

    def is_first_refusal(self, address: str) -> bool:
        """Whether an address is refused for the first time within the window: the others need no line in the audit
        log, which strangers could fill.
        """
        if self._recent((_REFUSED, address)):
            return False
        self._failed(_REFUSED, address)
        return True

    def failed(self, user: str, address: str) -> None:
        self._failed("user", user)
        self._failed("address", address)

    def failed_address(self, address: str) -> None:
        self._failed("address", address)

    def succeeded(self, user: str) -> None:
        self._failures.pop(("user", user), None)

    def _check(self, kind: str, name: str) -> None:
        failures = self._recent((kind, name))
        if len(failures) >= self._limit(kind):
            wait_s = (failures[0] + self._settings.login_window_ms - self._clock.monotonic_ms()) / 1000
            raise BusyError(f"too many failed logins; try again in {max(1, round(wait_s))} s")

    def _failed(self, kind: str, name: str) -> None:
        failures = self._recent((kind, name))
        failures.append(self._clock.monotonic_ms())
        while len(failures) > self._limit(kind):
            failures.popleft()
        self._failures[kind, name] = failures
        self._failures.move_to_end((kind, name))
        while len(self._failures) > self._settings.max_tracked_logins:
            self._failures.popitem(last=False)

    def _limit(self, kind: str) -> int:
        return self._settings.login_attempts * (_ADDRESS_FACTOR if kind == "address" else 1)

    def _recent(self, key: tuple[str, str]) -> deque[float]:
        failures = self._failures.get(key, deque())
        oldest = self._clock.monotonic_ms() - self._settings.login_window_ms
        while failures and failures[0] <= oldest:
            failures.popleft()
        return failures
