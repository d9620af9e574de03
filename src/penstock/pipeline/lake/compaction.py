"""Compaction of a lake: small files of a topic and day become larger ones, in the order of partition and offset.

Rules:
- No row is changed, and none is moved to another topic or day.
- A task has one row group of each file's in memory at a time, and what a file waits for to be written.
- The change is one version for each round: files out, files in. It is made only if all that go out are still there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.lake.delta import Change, Lake, LakeFile, LakeLocation
from penstock.pipeline.workers import Workers

if TYPE_CHECKING:
    import pyarrow as pa

TARGET_BYTES = 256 << 20
_ROUND_TASKS = 64
"""So many tasks at most are committed as one version."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Files that become one."""

    topic: str
    date: str
    files: tuple[LakeFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


def bins_of(files: Iterable[LakeFile], target_bytes: int) -> list[Bin]:
    """Files that are worth putting together: those of at most half the target, up to the target."""
    small = [file for file in files if file.size * 2 <= target_bytes]
    found = []
    for (topic, day), same in groupby(sorted(small, key=_location), key=lambda file: (file.topic, file.date)):
        taken: list[LakeFile] = []
        for file in same:
            if taken and sum(each.size for each in taken) + file.size > target_bytes:
                found.append(Bin(topic, day, tuple(taken)))
                taken = []
            taken.append(file)
        found.append(Bin(topic, day, tuple(taken)))
    return [each for each in found if len(each.files) > 1]


def compact(lake: Lake, workers: Workers, *, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Puts together what is small now."""
    lake.refresh()
    unknown = lake.unknown_columns()
    if unknown:
        raise PipelineError(f"{lake.location.uri} has columns that this version does not know: {', '.join(unknown)}")
    bins = bins_of(lake.files(), target_bytes)
    total = Compacted(0, 0, 0, 0)
    for begin in range(0, len(bins), _ROUND_TASKS):
        chosen = bins[begin : begin + _ROUND_TASKS]
        made = [file for files in workers.run(partial(rewrite, lake.location), chosen) for file in files]
        gone = [file for each in chosen for file in each.files]
        if sum(file.rows for file in made) != sum(file.rows for file in gone):
            raise PipelineError(
                f"compaction of {lake.location.uri} would change the number of rows; nothing was changed"
            )
        lake.commit(Change(added=made, removed=gone, changes_data=False), partial(_all_there, lake, gone))
        total = Compacted(
            total.files_before + len(gone),
            total.files_after + len(made),
            total.bytes_before + sum(file.size for file in gone),
            total.bytes_after + sum(file.size for file in made),
        )
    return total


def rewrite(location: LakeLocation, wanted: Bin) -> list[LakeFile]:
    """What a task does: row group by row group, in order."""
    from penstock.pipeline.lake.record_files import RecordFiles, row_groups

    groups = sorted(
        (group for file in wanted.files for group in row_groups(location, file.path)), key=lambda group: group.position
    )
    files = RecordFiles(location, wanted.topic, wanted.rows)
    try:
        before = None
        for group in groups:
            if before is not None and group.position[:2] != before[:2]:
                files.end_partition()
            before = group.position
            for batch in _whole(group.read()).to_batches():
                files.write_day(batch, date.fromisoformat(wanted.date))
        return files.close()
    except BaseException:
        files.discard()
        raise


def _whole(table: pa.Table) -> pa.Table:
    """With null in columns that are younger than the file."""
    import pyarrow as pa

    from penstock.pipeline.lake.record_table import FILE_SCHEMA

    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in FILE_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=FILE_SCHEMA)


def _all_there(lake: Lake, files: Iterable[LakeFile]) -> bool:
    now = {file.path for file in lake.files()}
    gone = [file.path for file in files if file.path not in now]
    if gone:
        raise PipelineError(
            f"{lake.location.uri}: another program replaced or removed {len(gone)} files meanwhile, such as "
            f"{gone[0]}; nothing was changed"
        )
    return True


def _location(file: LakeFile) -> tuple[str, str, str, int, int]:
    lowest = json.loads(file.stats)["minValues"]
    return file.topic, file.date, lowest.get("topic_id", ""), lowest.get("partition", 0), lowest.get("offset", 0)
