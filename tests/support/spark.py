"""Topics through Spark: frames, and what was in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, Message, Producer

from support.broker_process import BrokerProcess
from support.class_archive import quick_jvm
from support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FLUSH_AFTER = 50_000


def small_settings() -> dict[str, str]:
    """Settings of a Spark that is quick to start."""
    return {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.defaultJavaOptions": quick_jvm(),
    }


def small_spark() -> list[str]:
    """The same as options of commands of the pipeline."""
    settings = [word for name, value in small_settings().items() for word in ("--conf", f"{name}={value}")]
    return ["--master", "local[2]", "--memory", "700m", *settings]


def table(spark: SparkSession, broker: BrokerProcess, topic: str, **options: object) -> DataFrame:
    frame: DataFrame = _with(spark.read.format("penstock"), broker, {"subscribe": topic} | options).load()
    return frame


def stream(spark: SparkSession, broker: BrokerProcess, topic: str, **options: object) -> DataFrame:
    frame: DataFrame = _with(spark.readStream.format("penstock"), broker, {"subscribe": topic} | options).load()
    return frame


def save(frame: DataFrame, broker: BrokerProcess, **options: object) -> None:
    _with(frame.write.format("penstock"), broker, options).mode("append").save()


def run_stream(
    frame: DataFrame, broker: BrokerProcess, topic: str, checkpoint: object, **options: object
) -> list[dict[str, Any]]:
    """Writes what is there to a topic and gives the progress of each micro-batch."""
    writer = frame.writeStream.format("penstock").trigger(availableNow=True)
    query = _with(writer, broker, {"topic": topic, "checkpointLocation": checkpoint} | options).start()
    assert query.awaitTermination(120)
    return [dict(progress) for progress in query.recentProgress]


def send(broker: BrokerProcess, topic: str, values: list[bytes], partition: int = 0, **more: Any) -> None:
    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error

    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5})
    for number, value in enumerate(values):
        if number % _FLUSH_AFTER == 0:
            assert producer.flush(PATIENCE_S) == 0
        producer.produce(topic, value, partition=partition, on_delivery=report, **more)
    assert producer.flush(PATIENCE_S) == 0


def values(frame: DataFrame) -> list[Any]:
    """Bytes or None, in the order of partitions and offsets."""
    rows = frame.orderBy("topic", "partition", "offset").select("value").collect()
    return [None if row.value is None else bytes(row.value) for row in rows]


def _with(builder: Any, broker: BrokerProcess, options: dict[str, Any]) -> Any:
    builder = builder.option("kafka.bootstrap.servers", broker.kafka)
    for name, value in options.items():
        builder = builder.option(name, str(value))
    return builder
