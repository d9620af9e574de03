"""How fast something happens, measured as Kafka measures it, and how long to wait until it is slow enough again.

A `SampledRate` sums values in samples of one second and forgets samples that are older than the window. A window that
has only just begun counts as if it were whole, so a client that begins may use almost a whole window's quota at once.
A `TokenBucket` (KIP-599) fills at the rate of the quota, up to the quota of a whole window, and may be overdrawn once.
"""

from __future__ import annotations

import math
from collections import deque

SAMPLES = 11
SAMPLE_MS = 1000.0
WINDOW_MS = SAMPLES * SAMPLE_MS
_FULL_SAMPLES = SAMPLES - 1
BURST_S = _FULL_SAMPLES * SAMPLE_MS / 1000
"""Seconds of its quota that an entity can use at once if it has used nothing before."""


class _Sample:
    __slots__ = ("started_ms", "total")

    def __init__(self, started_ms: float) -> None:
        self.started_ms = started_ms
        self.total = 0.0


class SampledRate:
    """Values per second, over the last samples."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES)

    def record(self, value: float, now_ms: float) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1].started_ms >= SAMPLE_MS:
            samples.append(_Sample(now_ms))
        samples[-1].total += value

    def is_unused(self, now_ms: float) -> bool:
        """Whether nothing was recorded within the window."""
        return not self._samples or now_ms - self._samples[-1].started_ms >= WINDOW_MS

    def total(self, now_ms: float) -> float:
        """The sum of what was recorded within the window."""
        samples = self._samples
        while samples and now_ms - samples[0].started_ms >= WINDOW_MS:
            samples.popleft()
        return sum(sample.total for sample in samples)

    def measure(self, now_ms: float) -> float:
        """Values per second."""
        return self.total(now_ms) / self.window_ms(now_ms) * 1000

    def window_ms(self, now_ms: float) -> float:
        """The time that the rate is measured over; as if there were enough full samples if it has only begun."""
        if not self._samples:
            return _FULL_SAMPLES * SAMPLE_MS
        elapsed = now_ms - self._samples[0].started_ms
        missing = _FULL_SAMPLES - elapsed // SAMPLE_MS
        return elapsed + max(0.0, missing) * SAMPLE_MS

    def throttle_ms(self, limit: float, now_ms: float) -> float:
        """How long nothing must be added until the rate is at the limit; 0 if it is not above it."""
        rate = self.measure(now_ms)
        return 0.0 if rate <= limit else (rate - limit) / limit * self.window_ms(now_ms)


class TokenBucket:
    """Tokens that come at a rate and are taken by the piece; as long as there is no debt, any number can be taken."""

    __slots__ = ("_capacity", "_refilled_ms", "_tokens")

    def __init__(self) -> None:
        self._tokens = math.inf
        self._capacity = 0.0
        self._refilled_ms = -math.inf

    def tokens(self, rate: float, now_ms: float) -> float:
        """How many there are; below 0 if more were taken."""
        passed_ms = max(0.0, now_ms - self._refilled_ms)
        self._capacity = rate * WINDOW_MS / 1000
        self._tokens = min(self._capacity, self._tokens + passed_ms / 1000 * rate)
        self._refilled_ms = now_ms
        return self._tokens

    def take(self, count: float, rate: float, now_ms: float) -> None:
        """Takes tokens, whether there are any or not; a count below 0 gives some back."""
        self._tokens = self.tokens(rate, now_ms) - count

    def throttle_ms(self, rate: float, now_ms: float) -> float:
        """How long until there is no debt any more."""
        return max(0.0, -self.tokens(rate, now_ms) * 1000 / rate)

    def is_unused(self, now_ms: float) -> bool:
        """Whether it is full by now, so that a new one would be the same."""
        missing = self._capacity - self._tokens
        return (now_ms - self._refilled_ms) * self._capacity >= missing * WINDOW_MS
