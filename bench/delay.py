"""Delayed messages on one broker: memory, lateness, firing throughput, a burst, a restart, bytes written.

    python -m bench.delay [--pending 10000000] [--rate 10000] [--seconds 30] [--burst 1000000]

Pending messages are due at random over thirty days, with 100 bytes each. Lateness is what the broker's own timestamp
says: when the message was appended to its log, minus when it was due.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.servers.penstock import PenstockServer
from bench.servers.process import Launch, ServerProcess
from bench.servers.usage import cpu_s, rss_mb

DAY_MS = 86_400_000
BODY = bytes(100)
TIMEOUT_S = 600.0


def now_ms() -> int:
    return int(time.time() * 1000)


def send(address: str, topic: str, dues: Iterator[int]) -> int:
    """Sends a message for each due time; gives how many, all of them acknowledged."""
    failed: list[KafkaError] = []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 50,
            "batch.num.messages": 2000,
            "queue.buffering.max.messages": 200_000,
            "enable.idempotence": True,
        }
    )
    count = 0
    for due in dues:
        headers = [("penstock-deliver-at", b"%d" % due)]
        while True:
            try:
                producer.produce(topic, BODY, partition=0, headers=headers, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
        if count % 1000 == 0:
            producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0 and not failed, failed[:1]
    return count


def lateness(address: str, topic: str, count: int) -> tuple[list[int], float, float]:
    """How late each message was delivered, ascending; when the first and the last were."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    late: list[int] = []
    first, last = 1 << 62, 0
    deadline = time.monotonic() + TIMEOUT_S
    while len(late) < count and time.monotonic() < deadline:
        for message in consumer.consume(5000, timeout=0.5):
            if message.error() is None:
                delivered = message.timestamp()[1]
                late.append(delivered - int(dict(message.headers())["penstock-deliver-at"]))
                first, last = min(first, delivered), max(last, delivered)
    consumer.close()
    assert len(late) == count, f"{len(late)} of {count} arrived"
    late.sort()
    return late, first / 1000, last / 1000


def shares(late: list[int]) -> str:
    named = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    parts = [f"{name} {late[min(len(late) - 1, int(len(late) * share))]} ms" for name, share in named]
    return ", ".join([*parts, f"max {late[-1]} ms, earliest {late[0]} ms"])


def written(pid: int) -> int:
    return int(psutil.Process(pid).io_counters().write_chars)


def measure_pending(launch: Launch, server: ServerProcess, count: int) -> ServerProcess:
    """Memory, bytes written and the time of a restart with many messages pending; gives the broker after it."""
    chance = random.Random(1)
    idle_mb, before = rss_mb(server.pid), written(server.pid)
    start_ms, began, cpu = now_ms(), time.monotonic(), cpu_s(server.pid)
    dues = (start_ms + chance.randrange(DAY_MS // 24, 30 * DAY_MS) for _ in range(count))
    send(launch.address, "pending", dues)
    took, cpu = time.monotonic() - began, cpu_s(server.pid) - cpu
    print(f"pending: {count:,} messages in {took:.0f} s, {count / took:,.0f} a second, {cpu:.0f} s of CPU")
    time.sleep(5)
    held = rss_mb(server.pid) - idle_mb
    print(f"memory: {held:.1f} MB above the idle broker's {idle_mb:.1f} MB: {held * 1e6 / count:.2f} bytes a message")
    ratio = (written(server.pid) - before) / (count * len(BODY))
    print(f"written: {ratio:.2f} bytes for each byte of payload")
    server.kill()
    began = time.monotonic()
    again = ServerProcess(launch)
    send(launch.address, "pending", iter([now_ms() + 100]))
    lateness(launch.address, "pending", 1)
    print(f"restart after kill -9: {time.monotonic() - began:.2f} s until the next message was delivered")
    print(f"memory after the restart: {rss_mb(again.pid):.1f} MB")
    return again


def measure_rate(address: str, rate: int, seconds: int) -> None:
    """Lateness at so many due a second."""
    count = rate * seconds
    lead_ms = 5_000 + count // 20
    start_ms = now_ms() + lead_ms
    chance = random.Random(2)
    send(address, "rate", (start_ms + chance.randrange(seconds * 1000) for _ in range(count)))
    assert now_ms() < start_ms, "sending took longer than expected"
    late, first, last = lateness(address, "rate", count)
    print(f"rate: {count / (last - first):,.0f} a second for {last - first:.0f} s; late by {shares(late)}")


def measure_burst(address: str, count: int) -> None:
    """Everything due within one second."""
    start_ms = now_ms() + 5_000 + count // 15
    chance = random.Random(3)
    send(address, "burst", (start_ms + chance.randrange(1000) for _ in range(count)))
    assert now_ms() < start_ms, "sending took longer than expected"
    late, first, last = lateness(address, "burst", count)
    took = last - first
    print(f"burst: {count:,} due in one second, delivered within {took:.1f} s, {count / took:,.0f} a second")
    print(f"burst: late by {shares(late)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.delay")
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--burst", type=int, default=1_000_000)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-delay-"))
    launch = PenstockServer().prepare(folder / "broker")
    server = ServerProcess(launch)
    try:
        send(launch.address, "warm", iter([now_ms() + 10]))
        server = measure_pending(launch, server, wanted.pending)
        measure_rate(launch.address, wanted.rate, wanted.seconds)
        measure_burst(launch.address, wanted.burst)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
