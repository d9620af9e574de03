"""Rows to topics, exactly once: `write` and `writeStream` with `format("penstock")`.

A task is known by the write it belongs to and by its number, whichever attempt it is. Its transactional id and the name
of its group are made of them, and the group's offset, committed in the transaction that holds the rows, says which
batch it has written (docs/internals/pipeline.md, "Writing").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.pipeline.failure import PipelineError
from penstock.pipeline.source.task_write import TaskWrite
from penstock.pipeline.topics.marked_producer import forget
from penstock.pipeline.topics.options import WriteOptions
from penstock.pipeline.topics.row_records import rows_of

if TYPE_CHECKING:
    import pyarrow as pa

# Spark sets them for the tasks of a micro-batch.
_BATCH = "streaming.sql.batchId"
_QUERY = "sql.streaming.queryId"

_ONLY_BATCH = 0


class Written(WriterCommitMessage):
    """What a task did."""

    def __init__(self, name: str, rows: int) -> None:
        self.name = name
        self.rows = rows


class TopicTableWriter(DataSourceArrowWriter):
    """`write`: a write is atomic per task, and one with a `writeId` can be run again until it is whole."""

    def __init__(self, writing: WriteOptions, columns: Sequence[str]) -> None:
        self._writing = writing
        self._columns = tuple(columns)
        # Made once, on the driver: all tasks are sent the same.
        self._write_id = writing.write_id or str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _written(self._writing, self._columns, iterator, self._write_id, _ONLY_BATCH)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._writing.write_id is None:
            forget(self._writing.kafka, [each.name for each in messages if isinstance(each, Written) and each.rows])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # What is committed cannot be taken back, and what is not was aborted by its task, or will be by its time.
        pass


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """`writeStream`: a micro-batch that is run again writes what it had not written."""

    def __init__(self, writing: WriteOptions, columns: Sequence[str]) -> None:
        self._writing = writing
        self._columns = tuple(columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise PipelineError(f"this Spark tells its tasks neither {_QUERY} nor {_BATCH}: it cannot detect repeats")
        return _written(self._writing, self._columns, iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # Every task has committed its own part.
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # The batch will be run again, and is then completed.
        pass


def _written(
    writing: WriteOptions, columns: Sequence[str], batches: Iterator[pa.RecordBatch], write_id: str, number: int
) -> Written:
    name = f"penstock-spark.{write_id}.{_context().partitionId()}"
    rows = (row for batch in batches for row in rows_of(batch, columns, writing.topic))
    return Written(name, TaskWrite(writing.kafka, name).once(rows, number))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("rows are written by tasks of Spark only")
    return context
