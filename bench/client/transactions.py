"""Transactions through librdkafka: begin, produce, commit, again and again; with consumed offsets in them, or without.

Several producers are threads of this process: librdkafka does the work, and Python's lock is free while it waits.
In the end everything must stand in the log, each transaction with its marker, for a reader of committed messages.
"""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from bench.client.driver import DriverError
from bench.client.job import Job, Window, percentiles
from bench.client.kafka import COMMON
from bench.client.payload import pool

PATIENCE_S = 30.0


class Transactor:
    """One transactional producer that times its commits."""

    def __init__(self, job: Job, number: int) -> None:
        self._job = job
        self._body = pool(job.payload)[: job.size]
        self._lost = ""
        self.commits_ns: list[int] = []
        self.committed = 0
        self.producer = Producer(
            {
                "bootstrap.servers": job.address,
                "transactional.id": f"{job.group}-{number}",
                "linger.ms": 0,
                **COMMON,
                "on_delivery": self._delivered,
            }
        )
        self.producer.init_transactions(PATIENCE_S)

    def once(self) -> None:
        """One transaction of `count` messages."""
        self.producer.begin_transaction()
        for _ in range(self._job.count):
            self.send(self._body)
        self.commit()

    def send(self, body: bytes) -> None:
        self.producer.produce(self._job.topic, body)
        self.producer.poll(0)

    def commit(self) -> None:
        begin = time.monotonic_ns()
        self.producer.commit_transaction(PATIENCE_S)
        self.commits_ns.append(time.monotonic_ns() - begin)
        self.committed += 1
        if self._lost:
            raise DriverError(f"a message of a transaction was lost: {self._lost}")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._lost = str(error)


def transact(job: Job) -> dict[str, float]:
    """`members` producers side by side for `limit_s`, `count` messages a transaction."""
    transactors = [Transactor(job, number) for number in range(job.members)]
    for transactor in transactors:
        transactor.once()
        transactor.commits_ns.clear()
    failures: list[BaseException] = []

    def work(transactor: Transactor) -> None:
        try:
            while time.monotonic() < deadline:
                transactor.once()
        except (KafkaException, DriverError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(transactor,)) for transactor in transactors]
    window = Window(job.server_pids)
    deadline = time.monotonic() + job.limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _result(job, window, transactors, failures)


def transform(job: Job) -> dict[str, float]:
    """Read `count` messages of `topics[0]`, write each to `topic`, commit their offsets in the same transaction.

    It ends with the time or with the input, whichever is first. Messages are flushed before the offsets are sent: with
    both on the way at once librdkafka is told to come again by Kafka, and waits.
    """
    transactor = Transactor(job, 0)
    consumer = Consumer(
        {
            "bootstrap.servers": job.address,
            "group.id": job.group,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 1,
            **COMMON,
        }
    )
    source = job.topics[0]
    consumer.assign([TopicPartition(source, 0, 0)])

    _, left = consumer.get_watermark_offsets(TopicPartition(source, 0), timeout=PATIENCE_S)

    def once() -> None:
        nonlocal left
        messages = consumer.consume(job.count, PATIENCE_S)
        if len(messages) < job.count:
            raise DriverError(f"{len(messages)} of {job.count} messages came in time")
        left -= len(messages)
        transactor.producer.begin_transaction()
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            transactor.send(message.value() or b"")
        transactor.producer.flush(PATIENCE_S)
        after = TopicPartition(source, 0, (messages[-1].offset() or 0) + 1)
        transactor.producer.send_offsets_to_transaction([after], consumer.consumer_group_metadata(), PATIENCE_S)
        transactor.commit()

    once()
    transactor.commits_ns.clear()
    window = Window(job.server_pids)
    deadline = time.monotonic() + job.limit_s
    while time.monotonic() < deadline and left >= job.count:
        once()
    figures = _result(job, window, [transactor], [])
    consumer.close()
    return figures


def _result(job: Job, window: Window, transactors: list[Transactor], failures: list[BaseException]) -> dict[str, float]:
    took = [duration for transactor in transactors for duration in transactor.commits_ns]
    figures = window.close(len(took))
    if failures:
        raise DriverError(f"a transaction failed: {failures[0]}")
    _check(job, sum(transactor.committed for transactor in transactors) * (job.count + 1))
    return {**figures, **percentiles(took)}


def _check(job: Job, expected: int) -> None:
    """The last stable offset comes to `expected`; a broker may write its markers after it has answered."""
    reader = Consumer(
        {
            "bootstrap.servers": job.address,
            "group.id": job.group,
            "isolation.level": "read_committed",
            **COMMON,
        }
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        _, stable = reader.get_watermark_offsets(TopicPartition(job.topic, 0), timeout=PATIENCE_S)
        if stable == expected:
            break
        if time.monotonic() > deadline:
            raise DriverError(f"the last stable offset is {stable}, committed were {expected} with markers")
        time.sleep(0.02)
    reader.close()
