"""Putting a copy of what was written in the place of bytes that are damaged.

A replica has the same batches, byte by byte, as long as neither of the two was compacted. So a copy fits if it is whole
batches with sound CRCs, of the same size as the damage, of the offsets that were lost and of the epochs that the log
knows for them. Writing it can be interrupted at any moment: what is then there is damage as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.storage.contract import DamagedRange
from penstock.storage.epochs import EpochHistory
from penstock.storage.leader_batches import sound_batches
from penstock.storage.segmented.recovery.scan import Damage
from penstock.storage.segmented.segment import Segment


def damage_of(segments: Sequence[Segment]) -> list[DamagedRange]:
    return [_range(damage) for segment in segments for damage in segment.damage]


def find(segments: Sequence[Segment], wanted: DamagedRange) -> tuple[Segment, Damage] | None:
    """Where a damaged range lies; None if it is damaged no more."""
    for segment in segments:
        for damage in segment.damage:
            if _range(damage) == wanted:
                return segment, damage
    return None


def fits(damage: DamagedRange, batches: memoryview, epochs: EpochHistory) -> bool:
    if not damage.size or len(batches) != damage.size:
        return False
    position, next_offset = 0, damage.first_offset
    for header, batch in sound_batches(batches):
        if not next_offset <= header.base_offset <= header.last_offset < damage.resumes_at:
            return False
        if header.leader_epoch != epochs.epoch_at(header.base_offset):
            return False
        position += len(batch)
        next_offset = header.next_offset
    return position == damage.size


def write(segment: Segment, damage: Damage, batches: memoryview) -> None:
    """In a thread."""
    segment.file.write(damage.start, batches)
    segment.file.sync()


def _range(damage: Damage) -> DamagedRange:
    return DamagedRange(damage.first_offset, damage.resumes_at or damage.first_offset, damage.end - damage.start)
