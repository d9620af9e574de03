"""A broker under load that is killed again and again: is every acknowledged message there, in order, once?

As a script it prints the counts and exits with 1 if one is not zero that should be:

    python -m tests.durability.kill_rounds --rounds 50
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 3
SMALL_SEGMENTS = {"segment.bytes": "65536"}
TOPICS = {
    "plain": SMALL_SEGMENTS,
    "flushed": {**SMALL_SEGMENTS, "flush.messages": "1"},
    "compacted": {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "trimmed": {**SMALL_SEGMENTS, "retention.bytes": "200000"},
}
SETTINGS = {"log.retention_check_ms": 200, "log.compaction_check_ms": 200, "log.checkpoint_ms": 300}
"""Rolls, retention, compaction and checkpoints are under way whenever the broker is killed."""


class Killable(Protocol):
    """A broker process."""

    kafka: str

    def start(self) -> object: ...
    def kill(self) -> None: ...


@dataclass
class Counts:
    rounds: int = 0
    acknowledged: int = 0
    found: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0

    @property
    def is_good(self) -> bool:
        return self.acknowledged > 0 and not (self.lost or self.duplicated or self.out_of_order)


@dataclass
class Load:
    """Idempotent producers that send numbered messages to every topic until they are told to stop."""

    address: str
    acknowledged: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """(number, offset) of what was acknowledged, by topic and partition, in the order of the acknowledgements."""
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for topic in TOPICS:
            thread = threading.Thread(target=self._produce, args=(topic,), name=f"produce {topic}")
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Returns when everything that was sent is acknowledged or has failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, topic: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": 120_000,
            }
        )

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(str(error))
                return
            number = int((message.value() or b"").split(b" ", 1)[0])
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            self.acknowledged[topic, partition].append((number, offset))

        number = 0
        while not self._stop.is_set():
            try:
                producer.produce(
                    topic,
                    key=b"key-%d" % (number % 50),
                    value=b"%d " % number + b"x" * (number % 400),
                    partition=number % PARTITIONS,
                    on_delivery=delivered,
                )
            except BufferError:
                producer.poll(0.05)
                continue
            number += 1
            if number % 20 == 0:
                producer.poll(0.005)
        assert producer.flush(120) == 0, "messages were neither delivered nor failed"


def run(broker: Killable, rounds: int, seed: int) -> Counts:
    """Kills the broker `rounds` times under load; gives what was found afterwards."""
    chance = random.Random(seed)
    counts = Counts()
    _create_topics(broker.kafka)
    load = Load(broker.kafka)
    load.start()
    try:
        for _ in range(rounds):
            time.sleep(chance.uniform(0.2, 1.5))
            broker.kill()
            broker.start()
            counts.rounds += 1
    finally:
        load.stop()
    assert not load.failed, load.failed[:5]
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            _compare(topic, load.acknowledged[topic, partition], _consume(broker.kafka, topic, partition), counts)
    return counts


def _create_topics(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    wanted = [NewTopic(name, PARTITIONS, 1, config=config) for name, config in TOPICS.items()]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def _consume(address: str, topic: str, partition: int) -> tuple[int, list[tuple[int, int, bytes]]]:
    """The start of the partition, and (number, offset, key) of every message in it."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "count", "enable.auto.commit": False})
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        consumer.assign([TopicPartition(topic, partition, start)])
        found: list[tuple[int, int, bytes]] = []
        deadline = time.monotonic() + 60
        while consumer.position([TopicPartition(topic, partition)])[0].offset < end:
            if time.monotonic() > deadline:
                raise AssertionError(f"{topic}-{partition}: only {len(found)} messages before {end} could be read")
            for message in consumer.consume(1000, 0.5):
                if message.error():
                    raise KafkaException(message.error())
                offset = message.offset()
                found.append((int((message.value() or b"").split(b" ", 1)[0]), offset or 0, message.key() or b""))
            if found and found[-1][1] >= end - 1:
                break
        return start, found
    finally:
        consumer.close()


def _compare(
    topic: str,
    acknowledged: list[tuple[int, int]],
    consumed: tuple[int, list[tuple[int, int, bytes]]],
    counts: Counts,
) -> None:
    start, found = consumed
    offsets = [offset for _, offset, _ in found]
    numbers = [number for number, _, _ in found]
    counts.acknowledged += len(acknowledged)
    counts.found += len(found)
    counts.duplicated += len(numbers) - len(set(numbers))
    counts.out_of_order += sum(a >= b for a, b in pairwise(numbers))
    counts.out_of_order += sum(a >= b for a, b in pairwise(offsets))
    last_of_key = {key: number for number, _, key in found}
    there = set(numbers)
    at_offset = {offset: number for number, offset, _ in found}
    for number, offset in acknowledged:
        if number in there:
            # -1: the answer was lost with the broker, and the repeat came too late to say where the first copy is.
            counts.out_of_order += offset is not None and offset >= 0 and at_offset.get(offset) != number
        elif topic == "compacted":
            counts.lost += last_of_key.get(b"key-%d" % (number % 50), -1) < number
        elif topic != "trimmed" or offset < 0 or offset >= start:
            counts.lost += 1


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.broker_process import BrokerProcess

    parser = argparse.ArgumentParser(description="Kill a broker under load, again and again, and count the messages.")
    parser.add_argument("--rounds", type=int, default=30, help="how often the broker is killed")
    parser.add_argument("--seed", type=int, default=1, help="chooses the moments")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-kill-") as folder:
        broker = BrokerProcess(Path(folder), SETTINGS)
        broker.start()
        try:
            counts = run(broker, chosen.rounds, chosen.seed)
            status = broker.stop()
        except BaseException:
            print(broker.log_tail, file=sys.stderr)
            raise
        finally:
            broker.kill()
    print(
        f"rounds {counts.rounds}, acknowledged {counts.acknowledged}, found {counts.found}, lost {counts.lost},"
        f" duplicated {counts.duplicated}, out of order {counts.out_of_order}"
    )
    return 0 if counts.is_good and status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
