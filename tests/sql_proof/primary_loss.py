"""The primary of one of three database groups is killed under load, and comes back: how long do clients pause?

    python -m tests.sql_proof.primary_loss --rounds 3

Two brokers; a topic of six partitions, two in each group. A producer sends messages without keys all the time, and a
consumer reads the partitions of the hurt group from their beginning again and again, from the database: nothing is kept
in memory. After each round every acknowledged message must be there once. Printed are

- *writes*: the longest time between two acknowledgements, whatever the partition, while the primary is away;
- *late*: how many of the messages sent meanwhile were acknowledged only after the primary was back;
- *reads*: the longest time between two messages that the consumer of the hurt partitions got;
- *back*: from the start of the primary until both of its partitions took a message again.

In brackets is what the same was in as much time before.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sql.passwords import new_key
from support.broker_process import BrokerProcess
from support.commands import said
from support.programs import PENSTOCK
from support.programs import run as run_command
from support.receiving import ends
from support.replicated import MariaDbPair
from support.stores import MariaDbProcess
from support.waiting import PATIENCE_S, until

TOPIC, SCHEMA = "orders", "messages"
PARTITIONS = 6
PAUSE_S = 0.002
"""Between two messages of the producer."""


class Sent(NamedTuple):
    """One acknowledged message; times are of the monotonic clock."""

    value: bytes
    partition: int
    sent_s: float
    told_s: float


class Round(NamedTuple):
    """What one loss of the primary cost. Seconds, but for counts."""

    writes: float
    writes_before: float
    reads: float
    reads_before: float
    back: float
    meanwhile: int
    late: int

    def __str__(self) -> str:
        return (
            f"writes {self.writes * 1000:.0f} ms ({self.writes_before * 1000:.0f}),"
            f" late {self.late} of {self.meanwhile},"
            f" reads {self.reads * 1000:.0f} ms ({self.reads_before * 1000:.0f}), back {self.back * 1000:.0f} ms"
        )


class Writer(threading.Thread):
    """Sends messages without keys until it is told to stop."""

    def __init__(self, kafka: str) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 2})
        self._is_over = threading.Event()
        self.told: list[Sent] = []
        self.errors: list[KafkaError] = []

    def run(self) -> None:
        number = 0
        while not self._is_over.wait(PAUSE_S):
            began = time.monotonic()

            def report(error: KafkaError | None, message: Message, began: float = began) -> None:
                if error is not None:
                    self.errors.append(error)
                else:
                    sent = Sent(message.value() or b"", message.partition() or 0, began, time.monotonic())
                    self.told.append(sent)

            self._producer.produce(TOPIC, b"%d" % number, on_delivery=report)
            self._producer.poll(0)
            number += 1
        self._producer.flush(PATIENCE_S)

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def took(self, partitions: Sequence[int], since_s: float) -> bool:
        """Whether each of the partitions has taken a message that was sent since then."""
        return {sent.partition for sent in self.told if sent.sent_s > since_s} >= set(partitions)


class Reader(threading.Thread):
    """Reads partitions from their beginning again and again until it is told to stop."""

    def __init__(self, kafka: str, partitions: Sequence[int]) -> None:
        super().__init__()
        self._partitions = partitions
        self._settings = {
            "bootstrap.servers": kafka,
            "group.id": "readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            # At the end of a partition it does not wait for more, but begins anew.
            "fetch.wait.max.ms": 5,
        }
        self._is_over = threading.Event()
        self.times: list[float] = []
        self.errors: list[KafkaError] = []

    def run(self) -> None:
        consumer = Consumer(self._settings)
        ended: set[int] = set()
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in self._partitions])
        while not self._is_over.is_set():
            for message in consumer.consume(200, 0.02):
                error = message.error()
                if error is None:
                    self.times.append(time.monotonic())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
                else:
                    self.errors.append(error)
            if ended == set(self._partitions):
                ended.clear()
                consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in self._partitions])
        consumer.close()

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def longest_gap(times: Sequence[float], since_s: float, until_s: float) -> float:
    """The longest time between two of them in a stretch of time, whose ends count as one."""
    within = [since_s, *sorted(each for each in times if since_s < each < until_s), until_s]
    return max(later - earlier for earlier, later in itertools.pairwise(within))


def knows_leaders(admin: AdminClient) -> bool:
    """Whether a broker knows the topic and who leads each partition."""
    found = admin.list_topics(TOPIC, PATIENCE_S).topics[TOPIC].partitions
    return len(found) == PARTITIONS and all(partition.leader > 0 for partition in found.values())


class Scene:
    """Three groups, two brokers, one topic; ends with `held`."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        default = MariaDbProcess(folder / "default")
        held.callback(default.kill)
        url = default.start().create_database("brokers")
        key_file = folder / "key"
        key_file.write_text(new_key())
        key_file.chmod(0o600)
        self.pairs = [MariaDbPair(folder / name) for name in ("second", "third")]
        for pair in self.pairs:
            held.callback(pair.kill)
            pair.start()
        brokers = [
            BrokerProcess(
                folder / f"broker-{number}",
                {"broker.id": number, "sql.key_file": str(key_file), "sql.cache_bytes": 0},
                env={"PENSTOCK_SQL_URL": url},
            )
            for number in (1, 2)
        ]
        for broker in brokers:
            held.callback(broker.kill)
            broker.start()
        self.kafka = ",".join(broker.kafka for broker in brokers)
        for name, pair in zip(("second", "third"), self.pairs, strict=True):
            primary, replica = pair.create_database(SCHEMA)
            command = [PENSTOCK, "dbnode", "add", name, "--primary", primary, "--replica", replica]
            said(run_command([*command, "-b", brokers[0].kafka]))
        admin = AdminClient({"bootstrap.servers": self.kafka})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_S)
        until(lambda: len(self._in_second()) == PARTITIONS // 3, "both brokers have opened their partitions")
        for broker in brokers:
            asked = AdminClient({"bootstrap.servers": broker.kafka})
            until(lambda asked=asked: knows_leaders(asked), "both brokers know the topic and its leaders")
        self.hurt = self._in_second()

    def _in_second(self) -> list[int]:
        """The partitions in the second group."""
        found = self.pairs[0].primary.administer("select partition_index from queue", SCHEMA)
        return [int(partition) for (partition,) in found]

    def lose_primary(self, writer: Writer, away_s: float) -> Round:
        """Kills the primary of the second group, and starts it again after a while."""
        pair = self.pairs[0]
        until(lambda: writer.took(range(PARTITIONS), 0), "every partition takes messages")
        pair.until_equal()
        reader = Reader(self.kafka, self.hurt)
        reader.start()
        until(lambda: len(reader.times) > 500, "the consumer reads")
        began_s = time.monotonic()
        time.sleep(away_s)
        killed_s = time.monotonic()
        pair.primary.kill()
        time.sleep(away_s)
        back_s = time.monotonic()
        pair.primary.start()
        started_s = time.monotonic()
        until(lambda: writer.took(self.hurt, back_s), "all partitions take messages again")
        took_s = time.monotonic()
        reader.stop()
        assert not reader.errors, reader.errors[:3]
        told = list(writer.told)
        meanwhile = [sent for sent in told if killed_s < sent.sent_s < back_s - 1]
        told_times = [sent.told_s for sent in told]
        return Round(
            writes=longest_gap(told_times, killed_s, back_s),
            writes_before=longest_gap(told_times, began_s, killed_s),
            reads=longest_gap(reader.times, killed_s, back_s),
            reads_before=longest_gap(reader.times, began_s, killed_s),
            back=took_s - started_s,
            meanwhile=len(meanwhile),
            late=sum(sent.told_s > back_s for sent in meanwhile),
        )

    def count(self) -> Counter[bytes]:
        """How often each message is in the topic."""
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": "count", "enable.auto.commit": False})
        count = sum(ends(self.kafka, TOPIC, PARTITIONS).values())
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        found: Counter[bytes] = Counter()
        while found.total() < count:
            messages = consumer.consume(1000, PATIENCE_S)
            assert messages, "the topic cannot be read to its end"
            found.update(message.value() or b"" for message in messages if message.error() is None)
        consumer.close()
        return found


def run(folder: Path, rounds: int, away_s: float) -> list[Round]:
    """AssertionError if a message was lost, doubled or refused."""
    done: list[Round] = []
    with ExitStack() as held:
        scene = Scene(folder, held)
        for _ in range(rounds):
            writer = Writer(scene.kafka)
            before = scene.count().total()
            writer.start()
            try:
                done.append(scene.lose_primary(writer, away_s))
            finally:
                writer.stop()
            assert not writer.errors, writer.errors[:3]
            assert scene.count().total() - before == len(writer.told)
            print(f"{len(writer.told)} acknowledged, each stored once: {done[-1]}", flush=True)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sql_proof.primary_loss",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--away", type=float, default=10, help="seconds until the primary is started again")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-primary-loss-"))
    try:
        run(folder, given.rounds, given.away)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
