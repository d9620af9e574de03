"""What producers were told, what lies in the tables, what was handled, and whether all of it agrees. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from support.producers import Origin
from support.pulse import Tally, tally

TOPIC, GROUP = "proof", "proof"
_NUMBERS = 1_000_000_000
_DELAYED = _NUMBERS // 2
"""From here on the numbers of a writer are those of delayed messages."""
_SHOWN = 10

Place = tuple[int, int | None]
"""Partition and offset."""


def value_of(writer: int, number: int) -> int:
    return writer * _NUMBERS + number


def delayed_value_of(writer: int, number: int) -> int:
    return value_of(writer, _DELAYED + number)


def writer_of(value: int) -> int:
    return value // _NUMBERS


def is_delayed(value: int) -> bool:
    return value % _NUMBERS >= _DELAYED


class Row(NamedTuple):
    """A record as it lies in a table."""

    partition: int
    offset: int
    value: int
    producer_id: int
    producer_epoch: int


class Handled(NamedTuple):
    """What a consumer has written, in the transaction of a message."""

    value: int
    late_ms: int
    """After it was due; 0 for a message that was not delayed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All from `lost` on should be zero, but for `resent`."""

    rows: int
    acknowledged: int
    delayed: int
    handled: int
    lost: int = 0
    """Acknowledged, and not in a table."""
    doubled: int = 0
    out_of_order: int = 0
    """Of one key, which is one process."""
    moved: int = 0
    """Not where the producer was told."""
    ghosts: int = 0
    """Of no producer."""
    not_handled: int = 0
    handled_twice: int = 0
    handled_out_of_order: int = 0
    handled_ghosts: int = 0
    """Handled, and in no table."""
    early: int = 0
    resent: int = 0
    """Sent anew by librdkafka in a later epoch of its producer: not a fault of what it was sent to."""
    examples: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        stored = (self.lost, self.doubled, self.out_of_order, self.moved, self.ghosts)
        handled = (self.not_handled, self.handled_twice, self.handled_out_of_order, self.handled_ghosts, self.early)
        return self.acknowledged > 0 and self.handled > 0 and not any(stored) and not any(handled)


def judge(told: Mapping[int, Mapping[int, Place | None]], rows: Sequence[Row], handled: Sequence[Handled]) -> Verdict:
    """`told`: by writer, what was acknowledged and where; None for what is delayed. `handled` in order."""
    tallies = [_tallied(told[writer], [row for row in rows if writer_of(row.value) == writer]) for writer in told]
    stored = Counter(row.value for row in rows)
    # Also those that were due when they were stored, and so were given an offset.
    acknowledged_later = {value for of_writer in told.values() for value in of_writer if is_delayed(value)}
    lost_later = acknowledged_later - stored.keys()
    doubled_later = [value for value, times in stored.items() if times > 1 and is_delayed(value)]
    ghosts = [row for row in rows if writer_of(row.value) not in told]
    times = Counter(each.value for each in handled)
    not_handled = [value for value in stored if value not in times]
    resent = sum(each.resent for each in tallies)
    twice = [value for value, number in times.items() if number > max(1, stored[value])]
    strangers = [value for value in times if value not in stored]
    disorder = _out_of_order([each.value for each in handled])
    early = [each for each in handled if each.late_ms < 0]
    return Verdict(
        rows=len(rows),
        acknowledged=sum(map(len, told.values())),
        delayed=len(acknowledged_later),
        handled=len(handled),
        lost=sum(each.lost for each in tallies) + len(lost_later),
        doubled=sum(each.doubled for each in tallies) + len(doubled_later),
        out_of_order=sum(each.out_of_order for each in tallies),
        moved=sum(each.moved for each in tallies),
        ghosts=len(ghosts),
        not_handled=len(not_handled),
        handled_twice=len(twice),
        handled_out_of_order=len(disorder) if not resent else 0,
        handled_ghosts=len(strangers),
        early=len(early),
        resent=resent,
        examples=(
            *(f"lost, was delayed: {value}" for value in sorted(lost_later)[:_SHOWN]),
            *(f"doubled, was delayed: {value}" for value in doubled_later[:_SHOWN]),
            *(f"of no producer: {row}" for row in ghosts[:_SHOWN]),
            *(f"not handled: {value}" for value in not_handled[:_SHOWN]),
            *(f"handled twice: {value}" for value in twice[:_SHOWN]),
            *(f"handled, and nowhere: {value}" for value in strangers[:_SHOWN]),
            *(f"handled out of order: {before}, then {after}" for before, after in disorder[:_SHOWN]),
            *(f"early: {each}" for each in early[:_SHOWN]),
            *(example for each in tallies for example in each.examples),
        ),
    )


def _tallied(told: Mapping[int, Place | None], rows: Iterable[Row]) -> Tally:
    at_once = [row for row in rows if not is_delayed(row.value)]
    origins: dict[tuple[int, int], Origin] = {
        (row.partition, row.offset): (row.producer_id, row.producer_epoch) for row in at_once
    }
    return tally(
        {value: place for value, place in told.items() if place is not None and not is_delayed(value)},
        [(row.partition, row.offset, row.value) for row in at_once],
        origins,
    )


def _out_of_order(values: Iterable[int]) -> list[tuple[int, int]]:
    """Pairs of one writer in which the second came later and was sent earlier."""
    last: dict[int, int] = {}
    found = []
    for value in values:
        if is_delayed(value):
            continue
        before = last.get(writer_of(value))
        if before is not None and value < before:
            found.append((before, value))
        last[writer_of(value)] = value
    return found
