"""How often a message is tried, and how long is waited in between. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from penstock.durations import Duration, duration_ms
from penstock.sdk.errors import InvalidInputError

_MOST_DOUBLINGS = 1000
"""Beyond, a float overflows; every cap is reached long before."""


@dataclass(frozen=True, slots=True)
class Retries:
    """After a failure a message comes again: after `first`, then `factor` times as long, and so on up to `cap`.

    After `attempts` deliveries it goes to the dead letters. `jitter` is the part by which a delay is made longer or
    shorter by chance, so that what failed together does not come back together.
    """

    first: Duration = "1s"
    factor: float = 2.0
    cap: Duration = "10m"
    attempts: int = 8
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("first", self.first), ("cap", self.cap)):
            try:
                duration_ms(value)
            except ValueError as error:
                raise InvalidInputError(f"retries: {name}: {error}") from None
        if not self.factor >= 1:
            raise InvalidInputError(f"retries: factor is {self.factor}: it is 1 or more")
        if self.attempts < 1:
            raise InvalidInputError(f"retries: attempts is {self.attempts}: it is 1 or more, the first delivery counts")
        if not 0 <= self.jitter <= 1:
            raise InvalidInputError(f"retries: jitter is {self.jitter}: it is a part, from 0 to 1")

    def is_over(self, failures: int) -> bool:
        """Whether a message that failed so often is not tried again."""
        return failures >= self.attempts

    def delay_ms(self, failures: int, chance: Callable[[], float] = random.random) -> int:
        """How long to wait after the n-th failure; `chance` gives numbers from 0 to 1."""
        assert failures >= 1
        cap_ms = duration_ms(self.cap)
        grown = duration_ms(self.first) * float(self.factor) ** min(failures - 1, _MOST_DOUBLINGS)
        wanted = min(grown, cap_ms)
        return round(wanted * (1 + self.jitter * (2 * chance() - 1)))
