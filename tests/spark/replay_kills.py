"""A replay by command that is killed again and again: is every record of the history in the target, once?

As a script it prints the counts and exits with 1 if one is not zero that should be:

    python -m tests.spark.replay_kills --rounds 10
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.lake import archive_all, archiver_of
from support.messages import headers_of
from support.programs import PENSTOCK, dying_with_us, environment
from support.spark import send, small_spark
from support.waiting import until

PARTITIONS = 3
_PATIENCE_S = 180


@dataclass
class Counts:
    sent: int = 0
    killed: int = 0
    replayed: int = 0
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    disordered: int = 0

    @property
    def is_good(self) -> bool:
        return self.sent > 0 and self.killed > 0 and not (self.lost or self.doubled or self.altered or self.disordered)


def run(broker: BrokerProcess, topic: str, lake: Path, rounds: int, seed: int, rows: int) -> Counts:
    """Archives `rows` records of each partition, deletes them at the broker, and kills replays of them."""
    chance = random.Random(seed)
    target = f"{topic}-again"
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for name in (topic, target):
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    sent: dict[str, bytes] = {}
    for number in range(PARTITIONS):
        values = [b"%d-%d-" % (number, each) + chance.randbytes(chance.randrange(40)) for each in range(rows)]
        send(broker, topic, values, number)
        sent |= {f"{topic}/{number}/{offset}": value for offset, value in enumerate(values)}
    archive_all(archiver_of(broker, lake, topic))
    for deleted in admin.delete_records([TopicPartition(topic, number, rows) for number in range(PARTITIONS)]).values():
        deleted.result(30)
    counts = Counts(sent=len(sent))
    for _ in range(rounds):
        counts.killed += _kill_one(broker, topic, target, lake, chance)
    for _ in range(2):
        # The second has nothing to do.
        assert _start(broker, topic, target, lake).wait(_PATIENCE_S) == 0
    _compare(broker, target, sent, counts)
    return counts


def _start(
    broker: BrokerProcess, topic: str, target: str, lake: Path, complaints: int | None = None
) -> subprocess.Popen[bytes]:
    command = [PENSTOCK, "pipeline", "replay", topic, "--bootstrap", broker.kafka, "--to", target]
    command += ["--lake", str(lake), *small_spark()]
    return subprocess.Popen(dying_with_us(command), stdout=subprocess.DEVNULL, stderr=complaints, env=environment())


def _kill_one(broker: BrokerProcess, topic: str, target: str, lake: Path, chance: random.Random) -> int:
    """Kills a replay some time after it has begun to send; whether it was at work."""
    consumer = consumer_of(broker)
    before = _ends(consumer, target)
    process = _start(broker, topic, target, lake, subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or _ends(consumer, target) > before, "a first record", _PATIENCE_S)
        time.sleep(chance.uniform(0, 0.5))
    finally:
        process.kill()
        process.wait(_PATIENCE_S)
        consumer.close()
    return int(process.returncode == -signal.SIGKILL)


def _ends(consumer: Consumer, topic: str) -> int:
    return sum(consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=30)[1] for each in range(PARTITIONS))


def _compare(broker: BrokerProcess, target: str, sent: dict[str, bytes], counts: Counts) -> None:
    found: Counter[str] = Counter()
    for number in range(PARTITIONS):
        last = -1
        for location, value in _records(broker, target, number):
            offset = int(location.rpartition("/")[2])
            found[location] += 1
            counts.altered += sent.get(location) != value
            counts.disordered += offset <= last
            last = offset
    counts.replayed = found.total()
    counts.lost = len(sent.keys() - found.keys())
    counts.doubled = sum(count - 1 for count in found.values())


def _records(broker: BrokerProcess, target: str, partition: int) -> Iterator[tuple[str, bytes]]:
    """What a committed record is a copy of, and its value."""
    consumer = consumer_of(broker, **{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(target, partition, 0)])
    try:
        while True:
            message = until(lambda: consumer.poll(0.2), "a record or the end")
            if message is None or message.error() is not None:
                return
            origin = dict(headers_of(message))["penstock-replay-of"]
            yield (origin or b"").decode(), message.value() or b""
    finally:
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=300_000, help="of each partition")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "broker")
        try:
            broker.start()
            counts = run(broker, "kills", Path(folder) / "lake", options.rounds, options.seed, options.rows)
        finally:
            broker.kill()
    print(counts)
    sys.exit(0 if counts.is_good else 1)


if __name__ == "__main__":
    main()
