"""The subscriptions of a stub: each is in force from the moment it is made."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sdk.errors import InvalidInputError
from penstock.sdk.receive.subscription import Subscription
from penstock.testing.core import StubCore


class Stepping:
    """Has the methods of the SDK's `Subscriptions`."""

    def __init__(self, core: StubCore) -> None:
        self._core = core
        self._makers: list[Callable[[], Subscription]] = []
        self._is_stopped = False

    def add(self, make: Callable[[], Subscription]) -> None:
        self._makers.append(make)
        if not self._is_stopped:
            make()

    def start(self) -> None:
        if not self._makers:
            raise InvalidInputError("there is nothing to start: subscribe to something first")
        if self._is_stopped:
            self._is_stopped = False
            for make in self._makers:
                make()

    def stop(self, grace_s: float) -> None:
        self.drain()
        self.leave()

    def drain(self) -> None:
        """No more handlers are called; what waits for one is given back."""
        self._is_stopped = True
        for each in self._core.stepped:
            each.drain()

    def leave(self) -> None:
        """After that: commits what is settled, and leaves the groups."""
        for each in self._core.stepped:
            each.subscription.leave()
        self._core.stepped.clear()
