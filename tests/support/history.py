"""The whole history of a group at work, and the judge over it.

Everything has a time on the one monotonic clock of the machine, so that what several processes say can be put in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Assigned:
    """A member was given partitions, and begins to read them where the group has left off."""

    at_ns: int
    member: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Consumed:
    """A member has dealt with a message."""

    at_ns: int
    member: str
    partition: int
    offset: int
    payload: str


@dataclass(frozen=True, slots=True)
class Committing:
    """A member is about to commit that everything below the offset is done."""

    at_ns: int
    member: str
    partition: int
    offset: int


Event = Assigned | Consumed | Committing


@dataclass(slots=True)
class History:
    """What was acknowledged to producers, by partition and offset, and what the members did."""

    produced: dict[tuple[int, int], str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def consumed(self) -> set[tuple[int, int]]:
        return {(event.partition, event.offset) for event in self.events if isinstance(event, Consumed)}

    @property
    def missing(self) -> set[tuple[int, int]]:
        """Acknowledged messages that nobody has seen."""
        return self.produced.keys() - self.consumed


def faults(history: History, committed: Mapping[int, int] | None = None) -> list[str]:
    """What should not have happened, in words; `committed` is what the broker has at the end."""
    found = [f"skipped: {partition}@{offset} was never seen" for partition, offset in sorted(history.missing)]
    done = _Done()
    place: dict[tuple[str, int], int] = {}
    seen: dict[tuple[int, int], str] = dict(history.produced)
    for event in sorted(history.events, key=lambda event: event.at_ns):
        match event:
            case Assigned(_, member, partitions):
                for partition in partitions:
                    place.pop((member, partition), None)
            case Consumed(_, member, partition, offset, payload):
                if seen.setdefault((partition, offset), payload) != payload:
                    found.append(f"changed: {member} saw {payload!r} at {partition}@{offset}")
                expected = place.get((member, partition))
                if expected is None:
                    if offset > done.frontier(partition):
                        found.append(
                            f"gap: {member} began {partition} at {offset}, "
                            f"but only what is below {done.frontier(partition)} is done"
                        )
                elif offset < expected:
                    found.append(f"order: {member} saw {partition}@{offset} after {expected - 1}")
                elif offset > expected:
                    found.append(f"gap: {member} went from {partition}@{expected - 1} to {offset}")
                place[member, partition] = offset + 1
                done.add(partition, offset)
            case Committing(_, member, partition, offset):
                if offset > done.frontier(partition):
                    found.append(f"ahead: {member} commits {partition}@{offset}, done is {done.frontier(partition)}")
    for partition, offset in (committed or {}).items():
        if offset > done.frontier(partition):
            found.append(f"ahead: the group has committed {partition}@{offset}, done is {done.frontier(partition)}")
    return found


class _Done:
    """What anybody has dealt with, partition by partition."""

    def __init__(self) -> None:
        self._offsets: dict[int, set[int]] = defaultdict(set)
        self._frontiers: dict[int, int] = defaultdict(int)

    def add(self, partition: int, offset: int) -> None:
        self._offsets[partition].add(offset)

    def frontier(self, partition: int) -> int:
        """Everything below is done."""
        offsets, frontier = self._offsets[partition], self._frontiers[partition]
        while frontier in offsets:
            offsets.discard(frontier)
            frontier += 1
        self._frontiers[partition] = frontier
        return frontier
