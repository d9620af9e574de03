"""Spark's own connector against our broker, unchanged: tables and streams, rows compared one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.client.driver import DriverError
from bench.pipeline import topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000
PARTITIONS = 3
_LIMIT_S = 300


def conform(spark: SparkSession, address: str, folder: Path) -> list[str]:
    """What was tried; raises at the first thing that is not as it should be."""
    for topic in ("conform-written", "conform-streamed"):
        topics.create(address, topic, PARTITIONS)
    made = spark.range(ROWS).selectExpr(
        "cast(id as string) as key",
        "concat('value-', id) as value",
        "array(struct('number' as key, cast(cast(id as string) as binary) as value)) as headers",
    )
    _with(made.write.format("kafka"), address, topic="conform-written", includeHeaders="true").save()
    read = _with(spark.read.format("kafka"), address, subscribe="conform-written", includeHeaders="true").load()
    _compare(made, read, "written and read as a table")
    stream = _with(
        spark.readStream.format("kafka"),
        address,
        subscribe="conform-written",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(ROWS // 4),
        includeHeaders="true",
    ).load()
    writer = _with(
        stream.select("key", "value", "headers").writeStream.format("kafka"),
        address,
        topic="conform-streamed",
        includeHeaders="true",
        checkpointLocation=str(folder / "conform-checkpoint"),
    )
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(_LIMIT_S):
        query.stop()
        raise DriverError(f"a stream from topic to topic did not end within {_LIMIT_S} s")
    batches = len([each for each in query.recentProgress if each["numInputRows"]])
    again = _with(spark.read.format("kafka"), address, subscribe="conform-streamed", includeHeaders="true").load()
    _compare(made, again, "streamed from topic to topic")
    by_time = _with(
        spark.read.format("kafka"), address, subscribe="conform-written", startingTimestamp="0", minPartitions="6"
    ).load()
    if by_time.count() != ROWS:
        raise DriverError(f"by timestamp the connector found {by_time.count()} rows of {ROWS}")
    for topic in ("conform-written", "conform-streamed"):
        topics.delete(address, topic)
    return [
        f"The connector, unchanged, wrote {ROWS:,} rows with headers to our broker and read them again; a stream of it "
        f"carried them to another topic in {batches} micro-batches; by timestamp and in more tasks than partitions it "
        "read as many. Every row of the tables and the stream was compared."
    ]


def _compare(made: DataFrame, read: DataFrame, what: str) -> None:
    wanted = made.selectExpr("key", "value", "cast(headers[0].value as string) as number")
    found = read.selectExpr(
        "cast(key as string) key", "cast(value as string) value", "cast(headers[0].value as string) as number"
    )
    differing = wanted.exceptAll(found).count() + found.exceptAll(wanted).count()
    if differing:
        raise DriverError(f"{what}: {differing} rows differ")


def _with(builder: Any, address: str, **options: str) -> Any:
    return builder.option("kafka.bootstrap.servers", address).options(**options)
