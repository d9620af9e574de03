"""A worker that consumes, transforms and produces in transactions, as a program that can be killed.

Every line of its diary is an event: begun, and for each transaction `aborting` before an abort of its own choice,
`aborted` and `committed` after the broker has said so. SIGTERM makes it finish its transaction and leave.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from support import access
from support.group_member import Diary, Stop
from support.messages import place_of

POLL_S = 0.05
BATCH = 20
ASK_S = 1.5
STUCK_S = 2 * ASK_S
FENCED = 3
"""Exit status of a worker that can do nothing any more: whoever looks after it starts it again."""
STUCK = 4
"""The same, of one whose client does not come back: librdkafka's search for a group's coordinator is lost with its
connection, and the commit of offsets that waits for it has no end.
"""


class FencedError(Exception):
    """The producer is of no use any more."""


class Worker:
    def __init__(self, given: argparse.Namespace, diary: Diary, stop: Stop) -> None:
        self._given = given
        self._diary = diary
        self._stop = stop
        self._chance = random.Random(f"{given.seed}-{given.name}-{os.getpid()}")
        self._count = 0
        self._life = os.urandom(4).hex()
        """Process ids come again, in an hour with hundreds of restarts."""
        self._consumer = Consumer(
            {
                **access.librdkafka(given.bootstrap),
                "client.id": given.name,
                "group.id": given.group,
                "session.timeout.ms": 3000,
                "heartbeat.interval.ms": 300,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._producer = Producer(
            {
                **access.librdkafka(given.bootstrap),
                "client.id": given.name,
                "transactional.id": given.name,
                "transaction.timeout.ms": given.timeout_ms,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "compression.type": given.compression,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        self._retried(lambda: self._producer.init_transactions(ASK_S))
        self._consumer.subscribe([self._given.source])
        while not self._stop.asked:
            messages = [message for message in self._consumer.consume(BATCH, POLL_S) if message.error() is None]
            if messages:
                self._transform(messages)
        self._consumer.close()

    def _transform(self, messages: list[Message]) -> None:
        """One transaction, to whatever end; after an abort the consumer goes back to what is committed."""
        self._count += 1
        token = f"{self._given.name}.{self._life}.{self._count}"
        aborts = self._chance.random() < self._given.aborts
        try:
            self._producer.begin_transaction()
            for message in messages:
                partition, _ = place_of(message)
                value = f"{partition} {(message.value() or b'').decode()} {token}"
                self._producer.produce(self._given.target, value, partition=partition)
            self._producer.produce(self._given.audit, token, partition=self._count % self._given.audit_partitions)
            if aborts:
                self._producer.flush(ASK_S)  # so that there is something to be left out
                self._diary.write("aborting", token=token)
                self._abort(token)
                return
            ends = dict(map(place_of, messages))
            offsets = [TopicPartition(self._given.source, partition, last + 1) for partition, last in ends.items()]
            metadata = self._consumer.consumer_group_metadata()
            self._retried(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, ASK_S))
            self._retried(lambda: self._producer.commit_transaction(ASK_S))
            self._diary.write("committed", token=token)
        except KafkaException as raised:
            error = raised.args[0]
            self._diary.write("failed", token=token, error=str(error))
            if error.fatal() or not error.txn_requires_abort():
                raise FencedError(str(error)) from raised
            self._abort(token)

    def _abort(self, token: str) -> None:
        try:
            self._retried(lambda: self._producer.abort_transaction(ASK_S))
        except KafkaException as error:
            raise FencedError(str(error)) from error
        self._diary.write("aborted", token=token)
        self._go_back()

    def _go_back(self) -> None:
        """What was consumed for a transaction that is aborted is consumed again."""
        assigned = self._consumer.assignment()
        while assigned and not self._stop.asked:
            try:
                for place in self._consumer.committed(assigned, timeout=ASK_S):
                    self._consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
                return
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                self._diary.write("failed", error=str(error.args[0]))
                assigned = self._consumer.assignment()
                time.sleep(POLL_S)

    def _retried(self, ask: Callable[[], None]) -> None:
        """Asks again as long as the client says that it may."""
        while True:
            watch = threading.Timer(STUCK_S, self._give_up)
            watch.start()
            try:
                ask()
                return
            except KafkaException as raised:
                if not raised.args[0].retriable():
                    raise
                self._diary.write("failed", error=str(raised.args[0]))
            finally:
                watch.cancel()

    def _give_up(self) -> None:
        self._diary.write("stuck")
        os._exit(STUCK)


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "source", "target", "audit", "name", "diary"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--aborts", type=float, default=0.2)
    parser.add_argument("--timeout-ms", type=int, default=5000)
    parser.add_argument("--audit-partitions", type=int, default=2)
    parser.add_argument("--compression", default="none")
    given = parser.parse_args()
    diary, stop = Diary(given.diary), Stop()
    diary.write("begun", pid=os.getpid())
    try:
        Worker(given, diary, stop).run()
    except (FencedError, KafkaException) as error:
        diary.write("fenced", error=str(error))
        os._exit(FENCED)  # as a crash: nobody is told good-bye
    return 0


if __name__ == "__main__":
    sys.exit(main())
