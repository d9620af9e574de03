"""An archiver that is killed again and again, at exact steps and at random: is every record in the lake, once?

Exact steps are those of an archiver whose tasks run in its own process; what is killed on Spark is the command, driver
and JVM, at random between its first batch and its last.

As a script it prints the counts and exits with 1 if one is not zero that should be:

    python -m tests.spark.archive_kills --rounds 50
    python -m tests.spark.archive_kills --rounds 10 --on-spark
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, dying_with_us, environment
from support.spark import small_spark

PARTITIONS = 3
STEPS = ("task", "files", "commit", "group")
_SUPPORT = Path(__file__).parents[1] / "support"
_PATIENCE_S = 120


@dataclass
class Counts:
    sent: int = 0
    killed: int = 0
    archived: int = 0
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    orphans: int = 0
    """Files that killed archivers left behind; vacuum's business."""

    @property
    def is_good(self) -> bool:
        return self.sent > 0 and self.killed > 0 and not (self.lost or self.doubled or self.altered)


def run(
    bootstrap: str, topic: str, lake: Path, rounds: int, seed: int, rows: int = 6000, *, on_spark: bool = False
) -> Counts:
    """Kills an archiver `rounds` times while records come; gives what the lake has in the end."""
    chance = random.Random(seed)
    counts = Counts()
    sent: dict[tuple[int, int], bytes] = {}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    for number in range(rounds):
        _send(bootstrap, topic, rows // rounds, chance, sent)
        if on_spark:
            counts.killed += _kill_on_spark(bootstrap, topic, lake, rows // rounds // 10, chance)
        elif number % 2 == 0:
            # Exact: in the first or second batch.
            step = STEPS[number // 2 % len(STEPS)]
            code = _archive(bootstrap, topic, lake, rows // rounds // 3, step, chance.choice((1, 2)))
            assert code == -signal.SIGKILL, f"the archiver did not die at {step} but ended with {code}"
            counts.killed += 1
        else:
            counts.killed += _kill_at_random(bootstrap, topic, lake, rows // rounds // 5, chance)
    if on_spark:
        assert _start_on_spark(bootstrap, topic, lake, rows, "--once").wait(_PATIENCE_S) == 0
    else:
        assert _archive(bootstrap, topic, lake, rows, "never", 1) == 0
    _compare(lake, sent, counts)
    return counts


def _send(bootstrap: str, topic: str, count: int, chance: random.Random, sent: dict[tuple[int, int], bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def note(error: object, message: object) -> None:
        assert error is None, error
        sent[message.partition(), message.offset()] = message.value()  # type: ignore[attr-defined]

    for _ in range(count):
        value = chance.randbytes(chance.randrange(40))
        producer.produce(topic, value, partition=chance.randrange(PARTITIONS), on_delivery=note)
    assert producer.flush(_PATIENCE_S) == 0


def _start(bootstrap: str, topic: str, lake: Path, most: int, step: str, times: int) -> subprocess.Popen[bytes]:
    script = [sys.executable, str(_SUPPORT / "archiver_child.py"), bootstrap, str(lake), topic]
    return subprocess.Popen([*script, str(most), step, str(times)])


def _archive(bootstrap: str, topic: str, lake: Path, most: int, step: str, times: int) -> int:
    return _start(bootstrap, topic, lake, most, step, times).wait(_PATIENCE_S)


def _kill_at_random(bootstrap: str, topic: str, lake: Path, most: int, chance: random.Random) -> int:
    """Whether the archiver was still at work when it was killed."""
    process = _start(bootstrap, topic, lake, most, "never", 1)
    time.sleep(chance.uniform(0.4, 1.6))
    process.kill()
    return int(process.wait(_PATIENCE_S) == -signal.SIGKILL)


def _start_on_spark(
    bootstrap: str, topic: str, lake: Path, most: int, *more: str, complaints: int | None = None
) -> subprocess.Popen[bytes]:
    command = [PENSTOCK, "pipeline", "archive", "--bootstrap", bootstrap, "--topics", topic, "--lake", str(lake)]
    command += ["--max-offsets", str(most), *small_spark(), *more]
    return subprocess.Popen(dying_with_us(command), stdout=subprocess.PIPE, stderr=complaints, env=environment())


def _kill_on_spark(bootstrap: str, topic: str, lake: Path, most: int, chance: random.Random) -> int:
    """Kills the command at any moment from its first batch on; whether it had not archived everything by then."""
    quiet = subprocess.DEVNULL
    process = _start_on_spark(bootstrap, topic, lake, most, "--interval", "0.1", complaints=quiet)
    assert process.stdout is not None
    try:
        assert b"records" in process.stdout.readline()
        time.sleep(chance.uniform(0, 2))
    finally:
        process.kill()
        said, _ = process.communicate(timeout=_PATIENCE_S)
    return int(not said or b"wait" in said.splitlines()[-1])


def _compare(lake: Path, sent: dict[tuple[int, int], bytes], counts: Counts) -> None:
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    paths = [Path(uri) for uri in DeltaTable(lake).file_uris()]
    found: dict[tuple[int, int], bytes] = {}
    for path in paths:
        for row in pq.ParquetFile(path).read(columns=["partition", "offset", "value"]).to_pylist():
            place = row["partition"], row["offset"]
            counts.doubled += place in found
            found[place] = row["value"]
    counts.sent, counts.archived = len(sent), len(found)
    counts.lost = len(sent.keys() - found.keys())
    counts.altered = sum(found[place] != sent.get(place) for place in found)
    counts.orphans = len(set(lake.glob("topic=*/date=*/*.parquet")) - set(paths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on-spark", action="store_true", help="kill the command with its Spark, at random")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "broker")
        try:
            broker.start()
            rows = options.rounds * 1500
            lake = Path(folder) / "lake"
            counts = run(broker.kafka, "kills", lake, options.rounds, options.seed, rows, on_spark=options.on_spark)
        finally:
            broker.kill()
    print(counts)
    sys.exit(0 if counts.is_good else 1)


if __name__ == "__main__":
    main()
