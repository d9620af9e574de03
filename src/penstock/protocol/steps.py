"""Coding a large message step by step, so that the event loop can serve other requests in between.

A coder is a generator that pauses after every so many entries and returns its result at the end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

ENTRIES_A_STEP = 256
"""A power of two: counters are masked with it."""


def run(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
