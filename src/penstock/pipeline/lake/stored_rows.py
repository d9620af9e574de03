"""Records of one partition out of a lake, in order: what a task of a replay reads.

A row group has records of one partition, so a partition is a row of row groups, by their first offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.lake.selection import Selection
from penstock.pipeline.workers import Workers

if TYPE_CHECKING:
    import pyarrow as pa

_FILES_A_TASK = 50


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """One row group."""

    topic_id: str
    partition: int
    first: int
    last: int
    path: str
    number: int
    rows: int


def stored_in(location: LakeLocation, paths: Iterable[str]) -> list[Stored]:
    """The row groups of files, by their footers."""
    from penstock.pipeline.lake.record_files import row_groups

    return [
        Stored(*group.position, group.last, path, group.number, group.rows)
        for path in paths
        for group in row_groups(location, path)
    ]


def by_partition(
    workers: Workers, location: LakeLocation, selection: Selection, paths: list[str]
) -> Mapping[tuple[str, int], list[Stored]]:
    """What a lake has of each partition, by topic id and number, in order."""
    chunks = [paths[begin : begin + _FILES_A_TASK] for begin in range(0, len(paths), _FILES_A_TASK)]
    found: dict[tuple[str, int], list[Stored]] = defaultdict(list)
    for stored in workers.run(partial(stored_in, location), chunks) if chunks else ():
        for each in stored:
            if selection.of_partition(each.partition):
                found[each.topic_id, each.partition].append(each)
    return {key: sorted(found[key]) for key in sorted(found)}


def wanted_rows(location: LakeLocation, stored: Iterable[Stored], selection: Selection) -> Iterator[pa.Table]:
    """The wanted rows with all their columns; a row group that has none is not read beyond what tells."""
    import pyarrow.parquet as pq

    from penstock.pipeline.lake.record_files import opened

    filesystem, root = opened(location)
    for each in stored:
        if _is_outside(each, selection):
            continue
        file = pq.ParquetFile(f"{root}/{each.path}", filesystem=filesystem)
        mask = selection.mask(file.read_row_group(each.number, columns=selection.columns))
        if mask.true_count:
            yield file.read_row_group(each.number).filter(mask)


def count_wanted(location: LakeLocation, selection: Selection, stored: list[Stored]) -> int:
    """How many rows are wanted."""
    import pyarrow.parquet as pq

    from penstock.pipeline.lake.record_files import opened

    filesystem, root = opened(location)
    total = 0
    for each in stored:
        if not _is_outside(each, selection):
            file = pq.ParquetFile(f"{root}/{each.path}", filesystem=filesystem)
            total += selection.mask(file.read_row_group(each.number, columns=selection.columns)).true_count
    return total


def _is_outside(stored: Stored, selection: Selection) -> bool:
    too_early = selection.first is not None and stored.last < selection.first
    too_late = selection.end is not None and stored.first >= selection.end
    return too_early or too_late
