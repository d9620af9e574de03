"""Waiting for a condition instead of for an amount of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long anything may take on a loaded machine before a test gives up."""

_LOOK_S = 0.02
_LONGEST_REST_S = 0.3
_REST = 4
"""How much longer than it computes for a look a test rests before the next: others want to compute too."""


def until(
    look: Callable[..., T],
    what: str,
    patience_s: float = PATIENCE_S,
    *,
    progress: Callable[[], object] | None = None,
) -> T:
    """The first true value of `look`, which is called without arguments; fails with `what` was waited for.

    Patience begins anew whenever `progress` gives another value: nobody can say how long work takes whose amount is not
    known, only that it goes on.
    """
    came_to = progress() if progress is not None else None
    deadline = time.monotonic() + patience_s
    while True:
        before_s = time.process_time()
        found = look()
        if found:
            return found
        if progress is not None and (now := progress()) != came_to:
            came_to = now
            deadline = time.monotonic() + patience_s
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {patience_s:g} s")
        time.sleep(min(max(_LOOK_S, _REST * (time.process_time() - before_s)), _LONGEST_REST_S))
