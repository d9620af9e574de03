"""Many partitions: how long creating and deleting a topic takes, what other clients see meanwhile, start, stop, memory.

    python -m bench.partitions [--sizes 1000 5000 10000] [--records 0] [--kafka] [--every-ms 10]

Each size has a broker of its own. With `--records` every partition is given so many before the broker is stopped, in
requests of 200 partitions one after the other; by default they stay empty. While the topic is created, and again while
it is deleted, another client asks for the Metadata of a small topic and appends a record to it in turn, one request
every few milliseconds. The time of such a request counts from the moment it was due: one that hangs is not one slow
request but all those that it held up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client.driver import NotReady
from bench.client.wire import (
    create_topic,
    delete_topic,
    exchange,
    metadata_and_produce,
    metadata_request,
    produce_request,
    produce_to_all,
)
from bench.servers.kafka import KafkaServer
from bench.servers.penstock import PenstockServer
from bench.servers.process import Server, ServerProcess
from bench.servers.usage import cpu_s, rss_mb

SIZES = (1000, 5000, 10_000)
MANY, SMALL = "many", "small"
CACHE = Path(__file__).parent.parent / ".cache" / "bench"
LIMIT_S = 300.0
STOP_LIMIT_S = 120.0
SETTLE_S = 1.0


class Observer:
    """Another client: Metadata and Produce in turn, at a fixed pace, and how long each took from when it was due."""

    def __init__(self, address: tuple[str, int], every_s: float) -> None:
        self._address = address
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer")
        self.times_s: list[float] = []
        self.failure: Exception | None = None

    def _run(self) -> None:
        requests = (metadata_request(SMALL), produce_request(SMALL))
        try:
            with socket.create_connection(self._address, LIMIT_S) as link:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                due, sent = time.monotonic(), 0
                while not self._stop.is_set():
                    exchange(link, *requests[sent % 2])
                    sent += 1
                    self.times_s.append(time.monotonic() - due)
                    due += self._every_s
                    time.sleep(max(0.0, due - time.monotonic()))
        except OSError as error:
            self.failure = error

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was done to the broker while the other client was at work."""

    took_s: float
    cpu_s: float
    others_s: Sequence[float]

    def others_ms(self, share: float) -> float:
        ordered = sorted(self.others_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Measured:
    """One broker with one number of partitions."""

    server: str
    partitions: int
    creation: Step
    append_s: float
    """Until every partition had its records."""
    deletion: Step
    stop_s: float
    stop_cpu_s: float
    start_s: float
    start_cpu_s: float
    partition_kb: float
    """Resident memory that a partition takes, with its records."""
    open_files: int


HEAD = """\
| server, partitions | create s | CPU-s | others meanwhile: p50 ms | p99 | max | append s | stop s | CPU-s \
| start s | CPU-s | delete s | CPU-s | others meanwhile: p50 ms | p99 | max | memory a partition, KB | open files |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def row(found: Measured) -> str:
    cells = [f"{found.server}, {found.partitions:,}", *_cells(found.creation), f"{found.append_s:.2f}"]
    cells += [f"{found.stop_s:.2f}", f"{found.stop_cpu_s:.2f}", f"{found.start_s:.2f}", f"{found.start_cpu_s:.2f}"]
    cells += [*_cells(found.deletion), f"{found.partition_kb:.1f}", f"{found.open_files:,}"]
    return "| " + " | ".join(cells) + " |"


def _cells(step: Step) -> Iterator[str]:
    yield f"{step.took_s:.2f}"
    yield f"{step.cpu_s:.2f}"
    yield f"{1000 * statistics.median(step.others_s):.1f}"
    yield f"{step.others_ms(0.99):.1f}"
    yield f"{step.others_ms(1):.1f}"


def measure(server: Server, partitions: int, records: int, folder: Path, every_s: float) -> Measured:
    launch = server.prepare(folder)
    host, port = launch.address.rsplit(":", 1)
    address = host, int(port)
    process = ServerProcess(launch)
    try:
        _until_ready(process, address)
        time.sleep(SETTLE_S)
        memory_mb = rss_mb(process.pid)
        creation = _observed(process, address, every_s, lambda link: create_topic(link, MANY, partitions))
        began = time.monotonic()
        with socket.create_connection(address, LIMIT_S) as link:
            for _ in range(records):
                produce_to_all(link, MANY, partitions)
        append_s = time.monotonic() - began
        partition_kb = 1000 * (rss_mb(process.pid) - memory_mb) / partitions
        time.sleep(SETTLE_S)
        open_files = len(os.listdir(f"/proc/{process.pid}/fd"))
        stop_s, stop_cpu_s = _stopped(process)
        began = time.monotonic()
        process = ServerProcess(launch)
        _until_ready(process, address)
        start_s, start_cpu_s = time.monotonic() - began, cpu_s(process.pid)
        time.sleep(SETTLE_S)
        deletion = _observed(process, address, every_s, lambda link: delete_topic(link, MANY))
    finally:
        process.stop()
    return Measured(
        server.name,
        partitions,
        creation,
        append_s,
        deletion,
        stop_s,
        stop_cpu_s,
        start_s,
        start_cpu_s,
        partition_kb,
        open_files,
    )


def _observed(
    process: ServerProcess, address: tuple[str, int], every_s: float, act: Callable[[socket.socket], None]
) -> Step:
    with socket.create_connection(address, LIMIT_S) as link, Observer(address, every_s) as observer:
        cpu_before, began = cpu_s(process.pid), time.monotonic()
        act(link)
        took_s = time.monotonic() - began
        used_s = cpu_s(process.pid) - cpu_before
        # What the request has set off and its answer did not wait for is seen by others too.
        time.sleep(SETTLE_S)
    return Step(took_s, used_s, observer.times_s)


def _stopped(process: ServerProcess) -> tuple[float, float]:
    before, began = cpu_s(process.pid), time.monotonic()
    used_s = process.terminate(STOP_LIMIT_S)
    return time.monotonic() - began, used_s - before


def _until_ready(process: ServerProcess, address: tuple[str, int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        process.check()
        with contextlib.suppress(OSError, NotReady):
            metadata_and_produce(address, SMALL)
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"not ready within {LIMIT_S:.0f} s")
        time.sleep(0.005)


def run(servers: Sequence[Server], sizes: Sequence[int], records: int, every_s: float) -> None:
    print(HEAD)
    for size in sizes:
        for server in servers:
            folder = Path(tempfile.mkdtemp(prefix="penstock-partitions-"))
            try:
                print(row(measure(server, size, records, folder / "server", every_s)), flush=True)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.partitions")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--records", type=int, default=0, help="records that each partition is given")
    parser.add_argument("--kafka", action="store_true", help="measure Kafka beside it")
    parser.add_argument("--every-ms", type=float, default=10.0, help="pace of the other client")
    given = parser.parse_args()
    chosen: list[Server] = [PenstockServer(), KafkaServer(CACHE)] if given.kafka else [PenstockServer()]
    for each in chosen:
        each.obtain()
    run(chosen, given.sizes, given.records, given.every_ms / 1000)
