"""`format("penstock")`: what Spark is given when it asks for the data source by its name.

Spark imports this module to learn the name, so it is light: Arrow and the Kafka client are imported where they are
used.
"""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.datasource import DataSourceArrowWriter as TableWriter
from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.pipeline.failure import OptionError
from penstock.pipeline.topics.options import ReadOptions, parse_reading, parse_writing

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
    "tags": ArrayType(StringType()),
    "biz_id": StringType(),
    "due": TimestampType(),
}
_ALWAYS = tuple(COLUMNS)[:7]

# Loaded in the process that makes the reader only where Spark is set to push filters; it refuses a reader that takes
# them where it is not, and tells it in no other way.
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class PenstockSource(DataSource):
    """Topics of a Kafka-speaking broker."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """All columns that the options ask for; whether they are of a stream does not matter here."""
        names = list(_ALWAYS)
        options = {name.lower(): value for name, value in self.options.items()}
        if options.get("includeheaders", "false").lower() == "true":
            names.append("headers")
        decoded = [word.strip() for word in options.get("decode", "").split(",")]
        names += [name for name in COLUMNS if name in decoded and name not in names]
        return StructType([StructField(name, COLUMNS[name]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.pipeline.source.tables import NarrowedTable, TopicTable

        reading = parse_reading(self.options, streaming=False)
        kind = NarrowedTable if reading.push_filters and _PUSHING in sys.modules else TopicTable
        return kind(reading, _columns(schema, reading))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.pipeline.source.streams import TopicStream

        reading = parse_reading(self.options, streaming=True)
        return TopicStream(reading, _columns(schema, reading))

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        from penstock.pipeline.source.sink import TopicTableWriter
        from penstock.pipeline.topics.row_records import columns_to_write

        writing = parse_writing(self.options, streaming=False)
        _refuse(overwrite)
        return TopicTableWriter(writing, columns_to_write(schema, writing))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from penstock.pipeline.source.sink import TopicStreamWriter
        from penstock.pipeline.topics.row_records import columns_to_write

        writing = parse_writing(self.options, streaming=True)
        _refuse(overwrite)
        return TopicStreamWriter(writing, columns_to_write(schema, writing))


def _columns(schema: StructType, reading: ReadOptions) -> tuple[str, ...]:
    """The columns to make: those of a schema that the query was given, checked."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise OptionError(f"schema: there is no column {field.name}; known are {', '.join(COLUMNS)}")
        if field.dataType.simpleString() != COLUMNS[field.name].simpleString():
            raise OptionError(f"schema: {field.name} is a {COLUMNS[field.name].simpleString()}")
    return tuple(schema.fieldNames())


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise OptionError("a topic cannot be overwritten; use mode append (streams: outputMode append)")
