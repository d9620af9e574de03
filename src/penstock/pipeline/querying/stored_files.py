"""Parquet files of a lake as frames: read by Spark itself, or from S3 by its tasks through Arrow.

Spark reads S3 only with Hadoop's connector and Amazon's library, which are no part of PySpark. Where these were added,
Spark reads, and skips what a query does not need; otherwise Arrow reads everything, because it is always there.

Rules:
- What is read is given: files by name, columns by the frame's schema. A file that lacks a column has null there.
- What a task has in memory is bounded: `BATCH_BYTES` of rows, besides what Arrow reads ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.lake.object_store import for_hadoop, is_s3

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BATCH_BYTES = 4 << 20
BATCH_ROWS = 10_000
TASK_BYTES = 64 << 20
"""Files are given to a task until they have so much."""

_CONNECTOR = "s3a"
_FORMAT = "penstock-stored"
_URI = "uri"
_FILES = "files"
_STORAGE = "storage."


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file."""

    path: str
    """Below the location's own."""
    size: int
    told: Mapping[str, str] = field(default_factory=dict)
    """Columns that are the same in every row, and not in the file."""


def frame_of(spark: SparkSession, location: LakeLocation, files: Iterable[StoredFile], schema: StructType) -> DataFrame:
    """The rows of files, with the columns of the schema; Spark leaves out what a query does not use."""
    root, reader = location.uri.rstrip("/"), spark.read.schema(schema)
    if is_s3(location.uri):
        if not _has_connector(spark):
            return _by_arrow(spark, location, files, schema)
        root = f"{_CONNECTOR}://{root.partition('://')[2]}"
        reader = reader.options(**for_hadoop(location.uri, location.storage))
    read = reader.option("basePath", root).parquet(*(f"{root}/{file.path}" for file in files))
    return read.select(*schema.fieldNames())


def _has_connector(spark: SparkSession) -> bool:
    """Whether this Spark has Hadoop's connector for S3."""
    from py4j.protocol import Py4JJavaError

    context = spark.sparkContext
    assert context._jvm is not None and context._jsc is not None
    try:
        context._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(_CONNECTOR, context._jsc.hadoopConfiguration())
    except Py4JJavaError:
        return False
    return True


def _by_arrow(
    spark: SparkSession, location: LakeLocation, files: Iterable[StoredFile], schema: StructType
) -> DataFrame:
    spark.dataSource.register(StoredFiles)
    reader = spark.read.format(_FORMAT).schema(schema).option(_URI, location.uri)
    for name, value in location.storage.items():
        # By their names Spark knows which of them are secret, and shows them nowhere.
        reader = reader.option(f"{_STORAGE}{name}", value)
    return reader.option(_FILES, json.dumps([asdict(file) for file in files])).load()


class StoredFiles(DataSource):
    """What Spark asks for the rows."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark.sql.pandas.types import to_arrow_schema

        given = {name.lower(): value for name, value in self.options.items()}
        storage = {name.removeprefix(_STORAGE): value for name, value in given.items() if name.startswith(_STORAGE)}
        files = [StoredFile(**each) for each in json.loads(given[_FILES])]
        return StoredFilesReader(LakeLocation(given[_URI], storage), files, to_arrow_schema(schema, timezone="UTC"))


class FilesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, files: Sequence[StoredFile]) -> None:
        super().__init__(files)
        self.files = tuple(files)


class StoredFilesReader(DataSourceReader):
    """Reads whole files, some to a task."""

    def __init__(self, location: LakeLocation, files: Sequence[StoredFile], schema: pa.Schema) -> None:
        self._location = location
        self._files = tuple(files)
        self._schema = schema

    def partitions(self) -> Sequence[FilesPartition]:
        return [FilesPartition(files) for files in shares(self._files, TASK_BYTES)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilesPartition):
            return
        import pyarrow.parquet as pq

        from penstock.pipeline.lake.record_files import opened

        filesystem, root = opened(self._location)
        for each in partition.files:
            file = pq.ParquetFile(f"{root}/{each.path}", filesystem=filesystem)
            for batch in _batches(file, [name for name in self._schema.names if name in file.schema_arrow.names]):
                yield _whole(batch, each.told, self._schema)


def shares(files: Iterable[StoredFile], most_bytes: int) -> list[list[StoredFile]]:
    """Files for each task, in their order: as many as have no more than so much together, and at least one."""
    found: list[list[StoredFile]] = []
    room = 0
    for file in files:
        if not found or file.size > room:
            found.append([])
            room = most_bytes
        found[-1].append(file)
        room -= file.size
    return found


def _batches(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        mean = max(1, group.total_byte_size // max(1, group.num_rows))
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // mean))
        yield from file.iter_batches(rows, row_groups=[number], columns=columns)


def _whole(batch: pa.RecordBatch, told: Mapping[str, str], schema: pa.Schema) -> pa.RecordBatch:
    """With all columns of a schema, in its order and of its types."""
    import pyarrow as pa

    def column(wanted: pa.Field) -> Any:
        if wanted.name in told:
            return pa.repeat(pa.scalar(told[wanted.name]), batch.num_rows).cast(wanted.type)
        if wanted.name in batch.schema.names:
            return batch.column(wanted.name).cast(wanted.type)
        return pa.nulls(batch.num_rows, wanted.type)

    return pa.RecordBatch.from_arrays([column(each) for each in schema], schema=schema)
