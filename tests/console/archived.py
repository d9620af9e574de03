"""A lake beside a broker: topics that are archived, in part deleted by the broker, or not archived at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.lake import archive_all, archiver_of

SOLD, PAID, LATE = "lake-sold", "lake-paid", "lake-late"


@contextmanager
def lake_beside(broker: BrokerProcess, folder: Path) -> Iterator[Path]:
    """SOLD has two partitions, of which the lake has offsets 0 to 19 and the log 10 to 29; PAID is archived whole, LATE
    not at all. The archiver's tasks run in this process. The topics are deleted afterwards: other files create them on
    the same broker.
    """
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    made = admin.create_topics([NewTopic(SOLD, 2), NewTopic(PAID, 1), NewTopic(LATE, 1)])
    for each in made.values():
        each.result(30)
    for partition in range(2):
        _send(broker, SOLD, partition, range(20))
    _send(broker, PAID, 0, range(5))
    archive_all(archiver_of(broker, folder, SOLD, PAID))
    for partition in range(2):
        _send(broker, SOLD, partition, range(20, 30))
    _send(broker, LATE, 0, range(3))
    for each in admin.delete_records([TopicPartition(SOLD, index, 10) for index in range(2)]).values():
        each.result(30)
    yield folder
    for each in admin.delete_topics([SOLD, PAID, LATE]).values():
        each.result(30)


def _send(broker: BrokerProcess, topic: str, partition: int, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in numbers:
        body = json.dumps({"number": number, "card": f"4711-{number}"})
        headers: dict[str, str | bytes | None] = {
            "penstock-biz-id": f"{topic}-{partition}-{number}",
            "penstock-tags": "big" if number % 5 == 0 else "small",
        }
        producer.produce(topic, body, key=f"k{number}", partition=partition, headers=headers)
    assert producer.flush(30) == 0
