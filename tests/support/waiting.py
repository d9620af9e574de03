"""Waiting for a condition instead of for an amount of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long anything may take on a loaded machine before a test gives up."""

_LOOK_S = 0.02


def until(look: Callable[..., T], what: str, patience_s: float = PATIENCE_S) -> T:
    """The first true value of `look`, which is called without arguments; fails with `what` was waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {patience_s:g} s")
        time.sleep(_LOOK_S)
