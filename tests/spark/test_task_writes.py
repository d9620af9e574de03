"""What a task of a write leaves behind when it dies, runs twice or runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.pipeline.failure import NotRepeatableError, PipelineError
from penstock.pipeline.source.task_write import TaskWrite
from penstock.pipeline.topics.row_records import OutgoingRecord
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.waiting import until

MakeTopic = Callable[..., str]


def rows(topic: str, first: int, count: int) -> Iterator[OutgoingRecord]:
    for number in range(first, first + count):
        yield OutgoingRecord(topic, b"%d" % number, None, 0, 0, [])


def read_all(broker: BrokerProcess, topic: str, level: str = "read_committed") -> list[int]:
    consumer = consumer_of(broker, **{"isolation.level": level, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return list(_numbers(consumer))
    finally:
        consumer.close()


def _numbers(consumer: Consumer) -> Iterator[int]:
    while True:
        message = until(lambda: consumer.poll(0.2), "a record or the end")
        assert message is not None
        if message.error() is not None:
            return
        value = message.value()
        assert value is not None
        yield int(value)


def test_an_attempt_that_dies_in_its_transaction_leaves_nothing(broker: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()
    kafka = {"bootstrap.servers": broker.kafka}

    def dying() -> Iterator[OutgoingRecord]:
        yield from rows(topic, 0, 100)
        until(lambda: read_all(broker, topic, "read_uncommitted"), "rows are on their way")
        raise RuntimeError("as wanted")

    with pytest.raises(RuntimeError):
        TaskWrite(kafka, f"{topic}.0").once(dying(), 7)
    assert TaskWrite(kafka, f"{topic}.0").once(rows(topic, 0, 100), 7) == 100
    assert read_all(broker, topic) == list(range(100))
    assert len(read_all(broker, topic, "read_uncommitted")) > 100


def test_an_attempt_after_the_commit_writes_nothing(broker: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()
    task = TaskWrite({"bootstrap.servers": broker.kafka}, f"{topic}.0")
    assert task.once(rows(topic, 0, 10), 0) == 10
    assert task.once(rows(topic, 0, 10), 0) == 10
    assert task.once(rows(topic, 10, 10), 1) == 10
    # Rows of a task that come in another order are the same rows.
    assert task.once(reversed(list(rows(topic, 10, 10))), 1) == 10
    assert read_all(broker, topic) == list(range(20))


def test_of_two_attempts_at_once_the_later_writes(broker: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()
    kafka = {"bootstrap.servers": broker.kafka}

    def overtaken() -> Iterator[OutgoingRecord]:
        yield from rows(topic, 0, 50)
        assert TaskWrite(kafka, f"{topic}.0").once(rows(topic, 0, 100), 0) == 100
        yield from rows(topic, 50, 50)

    with pytest.raises(PipelineError, match=f"write {topic}.0: "):
        TaskWrite(kafka, f"{topic}.0").once(overtaken(), 0)
    assert read_all(broker, topic) == list(range(100))


def test_other_rows_the_second_time_are_an_error(broker: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()
    task = TaskWrite({"bootstrap.servers": broker.kafka}, f"{topic}.0")
    task.once(rows(topic, 0, 10), 0)
    for others in (rows(topic, 0, 9), rows(topic, 1, 10), rows(topic, 0, 0)):
        with pytest.raises(NotRepeatableError, match="was written before, with 10 rows"):
            task.once(others, 0)
    task.once(rows(topic, 10, 1), 1)
    with pytest.raises(PipelineError, match="batch 1 was written before batch 0"):
        task.once(rows(topic, 0, 10), 0)
    assert read_all(broker, topic) == list(range(11))
