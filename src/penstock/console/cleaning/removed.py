"""What a cleaning job has removed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Removed:
    """A count, and what was removed in words, where it is not the console's own history."""

    count: int = 0
    what: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be cleaned, and why."""


def all_removed(parts: Iterable[Removed]) -> Removed:
    """The sum of several."""
    every = list(parts)
    return Removed(
        sum(each.count for each in every),
        tuple(one for each in every for one in each.what),
        tuple(one for each in every for one in each.problems),
    )
