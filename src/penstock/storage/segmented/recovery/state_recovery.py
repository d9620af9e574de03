"""Producers and transactions after a start: the newest sound snapshot, and the aborted transactions below it.

What lies behind the snapshot comes with the replay of the log. A list of aborted transactions that is missing or
damaged cannot be made from its segment alone, because a transaction may have begun in any earlier one: then everything
below the snapshot is read once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from penstock.logs import fields
from penstock.storage.aborted import AbortedEntry, read_aborted
from penstock.storage.files import Files
from penstock.storage.producers import ProducerState
from penstock.storage.segmented.recovery.scan import Damage, survey
from penstock.storage.segmented.segment import ABORTED, PRODUCERS, Segment, segment_name
from penstock.storage.snapshots import read_snapshot

logger = logging.getLogger(__name__)

_SNAPSHOT = re.compile(r"(\d{20})\.producers")


def restore_producers(
    files: Files, folder: Path, names: Iterable[str], trusted: int, first_offset: int, producers: ProducerState
) -> int:
    """Loads the newest sound snapshot of what was synced, of the files in the folder; gives the offset from which
    batches must be replayed. What lies below `first_offset` is no longer in the segments.
    """
    snapshots = [name for name in names if _SNAPSHOT.fullmatch(name)]
    for base_offset in sorted((int(name[:20]) for name in snapshots), reverse=True):
        path = folder / (segment_name(base_offset) + PRODUCERS)
        if base_offset > trusted:
            files.remove(path)
            continue
        try:
            producers.restore(read_snapshot(files.read(path) or b""))
        except ValueError as error:
            logger.warning("ignoring an unreadable producer snapshot", extra=fields(file=str(path), reason=str(error)))
            files.remove(path)
            continue
        if base_offset < first_offset:
            producers.forget_before_gap()
        return base_offset
    return 0


def producers_at(
    files: Files, folder: Path, segments: Sequence[Segment], end_offset: int, max_producers: int, now_ms: int
) -> ProducerState:
    """Producers and open transactions as they were when the log, now longer, ended at `end_offset`; changes nothing."""
    producers = ProducerState(max_producers)
    replay_from = 0
    names = [name for name in files.list_folder(folder) if _SNAPSHOT.fullmatch(name) and int(name[:20]) <= end_offset]
    for name in sorted(names, reverse=True):
        try:
            producers.restore(read_snapshot(files.read(folder / name) or b""))
        except ValueError:
            continue  # the next start says so
        replay_from = int(name[:20])
        if replay_from < segments[0].base_offset:
            producers.forget_before_gap()
        break
    for segment in segments:
        if segment.next_offset <= replay_from:
            continue
        position = segment.index.position_of(max(0, replay_from - segment.base_offset))
        for found in survey(segment.file, position, segment.size, below_offset=segment.next_offset):
            if isinstance(found, Damage) or found.header.base_offset < replay_from:
                continue
            if found.header.base_offset >= end_offset:
                break
            if found.header.producer_id >= 0:
                producers.replay(found.batch, found.header, now_ms)
    return producers


def restore_aborted(files: Files, segments: Sequence[Segment], replay_from: int, producers: ProducerState) -> bool:
    """Loads the aborted transactions whose markers lie below `replay_from`; False if they had to be looked for."""
    known: list[AbortedEntry] = []
    ends = [following.base_offset for _, following in pairwise(segments)]
    for segment, end in zip(segments, [*ends, replay_from], strict=True):
        if segment.base_offset < replay_from:
            found = _load(files, segment, min(end, replay_from))
            if found is None:
                _look_for_aborted(segments, replay_from, producers)
                return False
            known += found
    for entry in known:
        if entry.marker_offset < replay_from:
            producers.aborted.add(entry)
    return True


def _load(files: Files, segment: Segment, end: int) -> list[AbortedEntry] | None:
    """The list beside a segment; None, with a line in the log, if it does not reach to `end` or is damaged."""
    content = files.read(segment.path(ABORTED))
    reason = "missing"
    if content is not None:
        try:
            reaches_to, entries = read_aborted(content)
            if reaches_to >= end:
                return entries
            reason = f"it reaches to {reaches_to} instead of {end}"
        except ValueError as error:
            reason = str(error)
    logger.warning(
        "scanning the whole log for aborted transactions",
        extra=fields(file=str(segment.path(ABORTED)), reason=reason),
    )
    return None


def _look_for_aborted(segments: Sequence[Segment], end_offset: int, producers: ProducerState) -> None:
    replayed = ProducerState(producers.max_producers)
    for segment in segments:
        for found in survey(segment.file, 0, segment.file.size(), segment.base_offset - 1):
            if not isinstance(found, Damage) and found.header.producer_id >= 0:
                if found.header.base_offset >= end_offset:
                    break
                replayed.replay(found.batch, found.header, 0)
    producers.aborted = replayed.aborted
