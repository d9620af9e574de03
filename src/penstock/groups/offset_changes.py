"""Which committed offsets have changed since the last look.

It marks only that they have changed: a task that looks reads their state at that time. So it never holds more than
there are offsets, however many commits there were.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.ids import TopicPartition

Place = tuple[str, int]
"""A group and a partition of a topic."""


class OffsetChanges:
    """By topic."""

    def __init__(self) -> None:
        self._places: dict[str, set[Place]] = {}
        self._has_loaded = False

    def mark(self, group_id: str, at: TopicPartition) -> None:
        """An offset was committed or removed."""
        self._places.setdefault(at.topic, set()).add((group_id, at.partition))

    def mark_loaded(self) -> None:
        """A shard was loaded: all of its offsets may be news."""
        self._has_loaded = True

    def mark_again(self, topic: str, places: Iterable[Place]) -> None:
        """Marks offsets again that the caller took and could not process."""
        self._places.setdefault(topic, set()).update(places)

    def take(self) -> dict[str, set[Place]]:
        """What has changed; from now on it has not."""
        places, self._places = self._places, {}
        return places

    def take_loaded(self) -> bool:
        """Whether a shard was loaded since the last call."""
        has_loaded, self._has_loaded = self._has_loaded, False
        return has_loaded
