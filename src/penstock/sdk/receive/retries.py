"""The retry policy: how often a message is tried, and how long to wait in between. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from penstock.durations import Duration, duration_ms
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.validation import check_number, check_whole_number

_MAX_EXPONENT = 1000
"""A float overflows beyond; every cap is reached long before."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and when to retry a failed message.

    The delay after the first failure is `first`; each further delay is `factor` times longer, up to `cap`. After
    `attempts` deliveries the message becomes a dead letter.

    Args:
        first: The delay after the first failure.
        factor: How much longer each further delay is.
        cap: The longest delay.
        attempts: The number of deliveries, including the first. `Retries(attempts=1)` does not retry.
        jitter: The fraction by which each delay varies at random, so that messages that failed together do not return
            together.

    Raises:
        InvalidInputError: A value is out of range.

    Example:
        ```python
        retries = penstock.Retries(first="1s", factor=2, cap="10m", attempts=8)
        ```
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
        check_number("retries: factor", self.factor, "a number of 1 or more", lambda value: 1 <= value < inf)
        check_whole_number("retries: attempts", self.attempts, 1)
        check_number("retries: jitter", self.jitter, "a fraction from 0 to 1", lambda value: 0 <= value <= 1)

    def is_over(self, failures: int) -> bool:
        """Whether a message with this many failures is not tried again."""
        return failures >= self.attempts

    def delay_ms(self, failures: int, chance: Callable[[], float] = random.random) -> int:
        """The delay after the n-th failure; `chance` returns numbers from 0 to 1."""
        assert failures >= 1
        cap_ms = duration_ms(self.cap)
        grown = duration_ms(self.first) * float(self.factor) ** min(failures - 1, _MAX_EXPONENT)
        wanted = min(grown, cap_ms)
        return round(wanted * (1 + self.jitter * (2 * chance() - 1)))
