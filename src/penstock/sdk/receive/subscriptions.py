"""The subscriptions of one client: started and stopped together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.sdk.errors import InvalidInputError
from penstock.sdk.receive.subscription import Subscription

LOOK_S = 0.2
"""How often somebody who waits for their end looks."""


class Subscriptions:
    """Each is made when it is started: a subscription runs once, a client can be started again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._makers: list[Callable[[], Subscription]] = []
        self._running: list[Subscription] = []
        self._is_started = False

    def add(self, make: Callable[[], Subscription]) -> None:
        """One more; it starts at once if the others have been."""
        with self._lock:
            self._makers.append(make)
            if self._is_started:
                self._running.append(_started(make))

    def start(self) -> None:
        """Returns at once; a second call does nothing."""
        with self._lock:
            if not self._makers:
                raise InvalidInputError("there is nothing to start: subscribe to something first")
            if not self._is_started:
                self._is_started = True
                self._running = [_started(make) for make in self._makers]

    def stop(self, grace_s: float) -> None:
        """Waits so long for handlers that run."""
        with self._lock:
            running, self._running = self._running, []
            self._is_started = False
        for subscription in running:
            subscription.ask_to_stop(grace_s)
        for subscription in running:
            subscription.wait()

    def is_over(self) -> bool:
        """Whether they were stopped; raises what has ended a subscription by itself."""
        with self._lock:
            for subscription in self._running:
                if subscription.failure is not None:
                    raise subscription.failure
            return not self._is_started


def _started(make: Callable[[], Subscription]) -> Subscription:
    subscription = make()
    subscription.start()
    return subscription
