"""The offset that a position means in one partition."""

from __future__ import annotations

import pytest

from penstock.admin.positions import AtOffset, AtTime, Earliest, LastRecords, Latest, OffsetBounds, Position


@pytest.mark.parametrize(
    ("position", "since", "offset"),
    [
        (Earliest(), None, 5),
        (Latest(), None, 9),
        (AtOffset(7), None, 7),
        (AtOffset(2), None, 5),
        (AtOffset(50), None, 9),
        (LastRecords(3), None, 6),
        (LastRecords(100), None, 5),
        (LastRecords(0), None, 9),
        (AtTime(1), 8, 8),
        (AtTime(1), None, 9),
    ],
)
def test_a_position_is_an_offset_inside_what_the_partition_holds(
    position: Position, since: int | None, offset: int
) -> None:
    assert OffsetBounds(5, 9).offset_of(position, since) == offset


def test_every_position_in_an_empty_partition_is_its_end() -> None:
    for position in (Earliest(), Latest(), AtOffset(0), AtOffset(9), LastRecords(4), AtTime(0)):
        assert OffsetBounds(3, 3).offset_of(position, None) == 3
