"""A view beside reading everything and filtering in the consumer: bytes over the network, and CPU of both ends.

    python -m bench.views [--records 400000] [--rounds 3]

Consumers that filter take messages a thousand at a time (`consume`) or one by one (`poll`, as most applications do).
Each record has one of a hundred tags, of which one is wanted. In the topic `mixed` every batch has all tags in it, so
that the broker has to look into each; in `apart` a batch has records of one tag, as producers of one tenant or one
kind of event send them. A view is read twice: the first time nothing is known of the tags yet.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.client.payload import random_pool
from bench.servers.penstock import PenstockServer
from bench.servers.process import ServerProcess
from bench.servers.usage import cpu_s

HEADER = "penstock-tags"
TAGS = 100
WANTED = b"tag-07"
BODY_BYTES = 200
BATCH_RECORDS = 500
CODECS = ("none", "lz4", "zstd")
MANY = 1000
TIMEOUT_S = 300.0


class Measured(NamedTuple):
    """One consumer that has read a topic to its end."""

    records: int
    network_bytes: int
    client_cpu_s: float
    broker_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.client_cpu_s + self.broker_cpu_s


def read(address: str, topic: str, end: int, broker: int, takes: int) -> None:
    """The consumer, in a process of its own: reads to the end, keeps what is wanted, says what that took."""
    received = 0

    def count(text: str) -> None:
        nonlocal received
        received = int(json.loads(text)["rx_bytes"])

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "statistics.interval.ms": 200,
            "stats_cb": count,
        }
    )
    place = TopicPartition(topic, 0, 0)
    consumer.assign([place])
    before, broker_before = time.process_time(), cpu_s(broker)
    kept = position = 0
    deadline = time.monotonic() + TIMEOUT_S
    while position < end and time.monotonic() < deadline:
        for message in _taken(consumer, takes):
            headers = cast("list[tuple[str, bytes]]", message.headers() or ())
            if any(name == HEADER and value == WANTED for name, value in headers):
                kept += 1
        position = consumer.position([place])[0].offset
    used, broker_used = time.process_time() - before, cpu_s(broker) - broker_before
    consumer.pause([place])  # or each empty answer would be counted
    last, settled = -1, time.monotonic() + 5
    while received != last and time.monotonic() < settled:
        last = received
        consumer.poll(0.5)
    consumer.close()
    print(json.dumps({"records": kept, "network_bytes": received, "client_cpu_s": used, "broker_cpu_s": broker_used}))


def _taken(consumer: Consumer, takes: int) -> Iterator[Message]:
    """Up to a thousand messages; asking where the consumer is after each would be a cost of its own."""
    if takes > 1:
        yield from consumer.consume(takes, timeout=0.2)
        return
    for _ in range(MANY):
        message = consumer.poll(0.2)
        if message is None:
            return
        yield message


def measured(server: ServerProcess, address: str, topic: str, end: int, takes: int = MANY) -> Measured:
    command = [sys.executable, "-m", "bench.views", "--read", address, topic, str(end), str(server.pid), str(takes)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S + 60)
    told: dict[str, Any] = json.loads(done.stdout)
    return Measured(**told)


def fill(address: str, topic: str, records: int, codec: str, *, apart: bool) -> None:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "linger.ms": 1000,
            "batch.num.messages": BATCH_RECORDS,
            "queue.buffering.max.messages": 2 * BATCH_RECORDS,
        }
    )
    pool, dice = random_pool(), random.Random(7)
    tags = [b"tag-%02d" % number for number in range(TAGS)]
    for number in range(records):
        tag = tags[number // BATCH_RECORDS % TAGS] if apart else dice.choice(tags)
        start = dice.randrange(len(pool) - BODY_BYTES)
        while True:
            try:
                producer.produce(topic, pool[start : start + BODY_BYTES], partition=0, headers=[(HEADER, tag)])
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(TIMEOUT_S):
        raise SystemExit("the records were not taken in time")


def create(address: str, base: str, view: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    settings = {"penstock.view.of": base, "penstock.view.tags": WANTED.decode()}
    new = [NewTopic(base, num_partitions=1, replication_factor=1), NewTopic(view, config=settings)]
    for made in admin.create_topics(new).values():
        made.result(30)


HEAD = """\
| topic, codec, view | network, MB: all | view | ratio | CPU-s (of them the broker): view | all, `consume` | ratio | \
all, `poll` | ratio |
|---|---|---|---|---|---|---|---|---|"""


def row(name: str, view: list[Measured], many: list[Measured], single: list[Measured]) -> str:
    def middle(runs: list[Measured], field: str) -> float:
        return float(statistics.median(getattr(each, field) for each in runs))

    def cpu(runs: list[Measured]) -> str:
        return f"{middle(runs, 'cpu_s'):.2f} ({middle(runs, 'broker_cpu_s'):.2f})"

    network, all_network = middle(view, "network_bytes"), middle(many, "network_bytes")
    cells = [name, f"{all_network / 1e6:.1f}", f"{network / 1e6:.2f}", f"**{all_network / network:.0f}**", cpu(view)]
    for runs in (many, single):
        cells += [cpu(runs), f"**{middle(runs, 'cpu_s') / max(middle(view, 'cpu_s'), 0.001):.1f}**"]
    return "| " + " | ".join(cells) + " |"


def run(records: int, rounds: int, codecs: list[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-views-"))
    launch = PenstockServer().prepare(folder / "server")
    server = ServerProcess(launch)
    try:
        _wait(launch.address)
        print(HEAD)
        for kind in ("mixed", "apart"):
            for codec in codecs:
                base = f"{kind}-{codec}"
                view = f"view-{base}"
                create(launch.address, base, view)
                fill(launch.address, base, records, codec, apart=kind == "apart")
                many = [measured(server, launch.address, base, records) for _ in range(rounds)]
                single = [measured(server, launch.address, base, records, takes=1) for _ in range(rounds)]
                first = [measured(server, launch.address, view, records)]
                again = [measured(server, launch.address, view, records) for _ in range(rounds)]
                if len({each.records for each in (*many, *single, *first, *again)}) != 1:
                    raise SystemExit(f"not all have seen the same records: {many + single + first + again}")
                print(row(f"{kind}, {codec}, first time", first, many, single), flush=True)
                print(row(f"{kind}, {codec}, again", again, many, single), flush=True)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.list_topics(timeout=30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.views")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=CODECS)
    parser.add_argument("--read", nargs=5, metavar=("ADDRESS", "TOPIC", "END", "PID", "TAKES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(*given.read[:2], *map(int, given.read[2:]))
    else:
        run(given.records, given.rounds, given.codecs)
