"""What a table of offsets says, compared with what the coordinator has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.groups.offset_changes import Place
from penstock.storage.sql.offset_table import NO_OFFSET, Bounds, OffsetRow


def differences(rows: Iterable[OffsetRow], held: Mapping[Place, int], is_ours: Callable[[str], bool]) -> set[Place]:
    """Where the broker has to write; `is_ours` says of a group whether it is coordinated here.

    What a person has changed or inserted is none of it.
    """
    known = {(row.group_id, row.partition): row.known for row in rows if is_ours(row.group_id)}
    missing = {place for place, offset in held.items() if known.get(place) != offset}
    left_over = {place for place, offset in known.items() if place not in held and offset != NO_OFFSET}
    return missing | left_over


def refusal(row: OffsetRow, bounds: Bounds | None) -> str | None:
    """Why a group cannot be moved to where a person has set it; None if it can."""
    if bounds is None:
        return f"there is no partition {row.partition}"
    if not bounds.start <= row.committed <= bounds.end:
        return f"offset {row.committed} is outside of the log, which begins at {bounds.start} and ends at {bounds.end}"
    return None
