"""Parquet files of records: what archiving and compaction write, in tasks of Spark.

Rules:
- A file has records of one topic and one day, in the order of partition and offset; a row group has one partition.
- A file's name is used once. It is whole, and on the disk, before its task reports it.
- What waits in memory is bounded: `ROW_GROUP_BYTES` for each of `MOST_OPEN` files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.pipeline.lake.delta import LakeFile, LakeLocation, sync
from penstock.pipeline.lake.object_store import for_arrow, is_s3
from penstock.pipeline.lake.record_table import FILE_SCHEMA

ROW_GROUP_BYTES = 32 << 20
ROW_GROUP_ROWS = 200_000
MOST_OPEN = 16

_TOLD = ("topic_id", "partition", "offset", "timestamp")
"""Columns that have their range in the table's statistics."""
_FALSE_POSITIVES = 0.01
_DICTIONARY = ["topic_id", "partition", "leader_epoch", "timestamp_type", "headers.list.element.key"]


class RecordFiles:
    """The files that one task writes for one topic; `rows` is how many there will be at most."""

    def __init__(self, location: LakeLocation, topic: str, rows: int) -> None:
        self._filesystem, self._root = opened(location)
        self._location = location
        self._topic = topic
        self._rows = rows
        self._open: dict[date, _RecordFile] = {}
        self._done: list[LakeFile] = []

    def write(self, batch: pa.RecordBatch, *, today: date) -> None:
        """Records of one partition; those without a usable time are put with those of today."""
        days = pc.fill_null(batch.column("timestamp").cast(pa.date32()), pa.scalar(today, pa.date32()))
        found = sorted(pc.unique(days).to_pylist())
        for day in found:
            part = batch if len(found) == 1 else batch.filter(pc.equal(days, pa.scalar(day, pa.date32())))
            self.write_day(part, day)

    def write_day(self, batch: pa.RecordBatch, day: date) -> None:
        """Records of one partition that are known to belong to a day."""
        self._file(day).write(batch)

    def end_partition(self) -> None:
        """What comes next is of another partition."""
        for each in self._open.values():
            each.end_row_group()

    def close(self) -> list[LakeFile]:
        """The files, whole."""
        while self._open:
            self._close_oldest()
        return self._done

    def discard(self) -> None:
        """Gives up: files that were begun stay behind, unknown to the table."""
        for each in self._open.values():
            each.abandon()
        self._open.clear()

    def _file(self, day: date) -> _RecordFile:
        found = self._open.pop(day, None)
        if found is None:
            if len(self._open) >= MOST_OPEN:
                self._close_oldest()
            folder = f"topic={self._topic}/date={day.isoformat()}"
            # Only disks have folders; elsewhere this would leave an empty object of that name.
            if self._location.folder is not None:
                self._filesystem.create_dir(f"{self._root}/{folder}", recursive=True)
            found = _RecordFile(self._filesystem, self._root, f"{folder}/{uuid4()}.parquet", self._rows)
        # The last in line is the one that was used last.
        self._open[day] = found
        return found

    def _close_oldest(self) -> None:
        day = next(iter(self._open))
        path, size, rows, stats = self._open.pop(day).close()
        if self._location.folder is not None:
            sync((self._location.folder / path).parent)
        self._done.append(LakeFile(path, size, self._topic, day.isoformat(), rows, stats))


class _RecordFile:
    """One file on its way."""

    def __init__(self, filesystem: fs.FileSystem, root: str, path: str, rows: int) -> None:
        self._filesystem = filesystem
        self._root = root
        self._path = path
        bloom = {"ndv": max(1, min(rows, ROW_GROUP_ROWS)), "fpp": _FALSE_POSITIVES}
        self._writer = pq.ParquetWriter(
            f"{root}/{path}",
            FILE_SCHEMA,
            filesystem=filesystem,
            compression="zstd",
            use_dictionary=_DICTIONARY,
            write_statistics=[*_TOLD, "biz_id"],
            bloom_filter_options={"key": bloom, "biz_id": bloom},
        )
        self._disk = _ToDisk(Path(root, path)) if isinstance(filesystem, fs.LocalFileSystem) else None
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._group_rows = 0
        self._stats = _Statistics()

    def write(self, batch: pa.RecordBatch) -> None:
        self._stats.add(batch)
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        self._group_rows += batch.num_rows
        if self._bytes >= ROW_GROUP_BYTES or self._group_rows >= ROW_GROUP_ROWS:
            self.end_row_group()

    def end_row_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, FILE_SCHEMA)
            self._writer.write_table(table, row_group_size=table.num_rows)
            if self._disk is not None:
                self._disk.begin()
        self._waiting, self._bytes, self._group_rows = [], 0, 0

    def close(self) -> tuple[str, int, int, str]:
        """Path, size, rows and statistics."""
        self.end_row_group()
        self._writer.close()
        if self._disk is not None:
            self._disk.finish()
        size = self._filesystem.get_file_info(f"{self._root}/{self._path}").size
        return self._path, size, self._stats.rows, self._stats.told()

    def abandon(self) -> None:
        self._waiting = []
        self._writer.close()
        if self._disk is not None:
            self._disk.close()


class _ToDisk:
    """Sees a file to the disk while it is written: what is left to wait for at its end is little."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY)
        self._begun = 0

    def begin(self) -> None:
        """With what was written since it was last called; does not wait."""
        end = os.fstat(self._handle).st_size
        # Tells the kernel that these pages will not be needed: it begins to write those that are not on the disk yet.
        os.posix_fadvise(self._handle, self._begun, end - self._begun, os.POSIX_FADV_DONTNEED)
        self._begun = end

    def finish(self) -> None:
        try:
            os.fsync(self._handle)
        finally:
            self.close()

    def close(self) -> None:
        os.close(self._handle)


class _Statistics:
    """What the table says of a file, so that it need not be opened to see that it has nothing that is wanted."""

    def __init__(self) -> None:
        self.rows = 0
        self._lowest: dict[str, Any] = {}
        self._highest: dict[str, Any] = {}
        self._nulls: dict[str, int] = dict.fromkeys(_TOLD, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in _TOLD:
            column = batch.column(name)
            self._nulls[name] += column.null_count
            ends = pc.min_max(column).as_py()
            if ends["min"] is not None:
                self._lowest[name] = min(ends["min"], self._lowest.get(name, ends["min"]))
                self._highest[name] = max(ends["max"], self._highest.get(name, ends["max"]))

    def told(self) -> str:
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: _told(value) for name, value in self._lowest.items()},
                "maxValues": {name: _told(value) for name, value in self._highest.items()},
                "nullCount": self._nulls,
            }
        )


def opened(location: LakeLocation) -> tuple[fs.FileSystem, str]:
    """The file system of a lake, and the lake's folder in it."""
    if location.folder is not None:
        return fs.LocalFileSystem(), str(location.folder.absolute())
    if is_s3(location.uri) and location.storage:
        return fs.S3FileSystem(**for_arrow(location.storage)), location.uri.split("://", 1)[1].rstrip("/")
    found, root = fs.FileSystem.from_uri(location.uri)
    return found, root


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One of a file's, to be read when its turn comes."""

    position: tuple[str, int, int]
    """Topic id, partition, first offset."""
    last: int
    """Offset."""
    file: pq.ParquetFile
    number: int
    rows: int

    def read(self) -> pa.Table:
        return self.file.read_row_group(self.number)


def row_groups(location: LakeLocation, path: str) -> Iterator[RowGroup]:
    """Those of a file."""
    filesystem, root = opened(location)
    file = pq.ParquetFile(f"{root}/{path}", filesystem=filesystem)
    names = [file.schema.column(index).path for index in range(len(file.schema))]
    indexes = [names.index(name) for name in ("topic_id", "partition", "offset")]
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        topic_id, partition, offset = (group.column(index).statistics for index in indexes)
        yield RowGroup((topic_id.min, partition.min, offset.min), offset.max, file, number, group.num_rows)


def _told(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
