"""What writers know of what they wrote, what lies in the table, and whether the two agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from support.producers import Origin
from support.pulse import Tally, tally

_NUMBERS = 1_000_000_000
"""A writer writes its numbers, and the value of a record says whose number it is."""
_SHOWN = 10


def value_of(writer: int, number: int) -> int:
    return writer * _NUMBERS + number


def writer_of(value: int) -> int:
    return value // _NUMBERS


class Row(NamedTuple):
    """A record as it lies in the table."""

    id: int
    value: int
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Ledger:
    """What one writer was told of its values. Only the writer's own thread changes it."""

    acknowledged: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """By value: partition and offset; None if the client was only told that it had sent this before."""
    unknown: set[int] = field(default_factory=set)
    """It may be there, once."""
    not_stored: set[int] = field(default_factory=set)
    """Rolled back, or failed before the commit: it must never be seen."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All but the first line should be zero."""

    rows: int
    acknowledged: int
    unknown: int
    """Nobody told their writer whether they are stored."""
    unknown_stored: int
    rolled_back: int
    skipped: int = 0
    """Ids below `next_id` without a row."""
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    moved: int = 0
    """Not where their writer was told."""
    ghosts: int = 0
    """Rolled back, or never written, and there all the same."""
    resent: int = 0
    """Sent anew by the client, in a later epoch of its producer: not a fault of the broker."""
    examples: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        wrong = (self.skipped, self.lost, self.doubled, self.out_of_order, self.moved, self.ghosts)
        return self.rows > 0 and self.acknowledged > 0 and not any(wrong)


def judge(ledgers: Mapping[int, Ledger], rows: Sequence[Row], next_id: int) -> Verdict:
    """`ledgers` by writer; `rows` by id; `next_id` is what the row of the queue says."""
    there = {row.id for row in rows}
    skipped = [number for number in range(1, next_id) if number not in there]
    beyond = [row for row in rows if row.id >= next_id]
    tallies: list[Tally] = []
    ghosts = [row for row in rows if writer_of(row.value) not in ledgers]
    unknown_stored = 0
    for writer, ledger in ledgers.items():
        own = [row for row in rows if writer_of(row.value) == writer]
        origins: dict[tuple[int, int], Origin] = {(0, row.id - 1): (row.producer_id, row.producer_epoch) for row in own}
        tallies.append(tally(ledger.acknowledged, [(0, row.id - 1, row.value) for row in own], origins))
        known = ledger.acknowledged.keys() | ledger.unknown
        ghosts += [row for row in own if row.value not in known]
        unknown_stored += len({row.value for row in own} & ledger.unknown)
    return Verdict(
        rows=len(rows),
        acknowledged=sum(each.acknowledged for each in tallies),
        unknown=sum(len(ledger.unknown) for ledger in ledgers.values()),
        unknown_stored=unknown_stored,
        rolled_back=sum(len(ledger.not_stored) for ledger in ledgers.values()),
        skipped=len(skipped) + len(beyond),
        lost=sum(each.lost for each in tallies),
        doubled=sum(each.doubled for each in tallies),
        out_of_order=sum(each.out_of_order for each in tallies),
        moved=sum(each.moved for each in tallies),
        ghosts=len(ghosts),
        resent=sum(each.resent for each in tallies),
        examples=(
            *(f"skipped: no row has the id {number}" for number in skipped[:_SHOWN]),
            *(f"skipped: {row} is not below next_id, {next_id}" for row in beyond[:_SHOWN]),
            *(f"must not be there: {row}" for row in ghosts[:_SHOWN]),
            *(example for each in tallies for example in each.examples),
        ),
    )
