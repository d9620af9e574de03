"""Direct mode beside plain SQL on the same database, and what losing Redis costs a group whose offsets are there.

    python -m bench.sql_direct [--databases mariadb postgresql sqlite] [--records 200000] [--rounds 3] [--seconds 5]

*Bulk* and *select* are those of `bench.sql`: a thousand rows a transaction, ranges of 5,000 rows, one thread a
partition. Beside them one client without a broker sends to all partitions, first each message by itself
(`send_soon`), then a thousand in a call (`send_many_soon`), and one subscription receives all of the latter, in
batches. The clock starts when the client has sent something, and when the subscription has its first batch. Rounds
alternate; figures are medians.

*Repeats after losing Redis*: a process handles messages as fast as it can and commits its offsets to a Redis. After a
few seconds the process and the Redis are killed, and what Redis had is deleted. Another process goes on with an empty
one; the messages that it handles a second time are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import penstock
from bench.servers.databases import databases, opened, running
from bench.servers.process import ServerProcess
from bench.servers.redis import RedisServer
from bench.sql import PARTITIONS, SIZES, TIMEOUT_S, bodies, bulk, creation, in_parts, selected
from penstock import direct

BATCH_MESSAGES = 1_000
CALLS_IN_FLIGHT = 24
WARM_UP_MESSAGES = 2_000
_LOOK_S = 0.05


class Rates(NamedTuple):
    """Rows per second."""

    bulk: float
    sent: float
    sent_many: float
    selected: float
    received: float


class Repeats(NamedTuple):
    """What losing Redis cost."""

    handled: int
    """Before."""
    seconds: float
    repeated: int
    lost: int


Send = Callable[[direct.Client, str, int, Sequence[bytes]], None]


def send_each(client: direct.Client, topic: str, partitions: int, messages: Sequence[bytes]) -> None:
    for number, body in enumerate(messages):
        client.send_soon(topic, body, partition=number % partitions)


def send_calls(client: direct.Client, topic: str, partitions: int, messages: Sequence[bytes]) -> None:
    parts = in_parts(messages, partitions)
    waiting: deque[Future[penstock.Receipts]] = deque()
    for start in range(0, max(map(len, parts)), BATCH_MESSAGES):
        for partition, part in enumerate(parts):
            waiting.append(client.send_many_soon(topic, part[start : start + BATCH_MESSAGES], partition=partition))
            if len(waiting) > CALLS_IN_FLIGHT:
                waiting.popleft().result(TIMEOUT_S)


def sent(url: str, topic: str, partitions: int, messages: Sequence[bytes], send: Send) -> float:
    with direct.Client(url, sending=penstock.Sending(linger="20ms")) as client:

        def send_all(to: str, some: Sequence[bytes]) -> None:
            client.create_topic(to, partitions)
            send(client, to, partitions, some)
            if not client.flush(TIMEOUT_S) or client.counters.failed:
                raise SystemExit(f"the messages were not taken: {client.counters}")

        send_all(f"{topic}_warm_up", messages[:WARM_UP_MESSAGES])
        began = time.perf_counter()
        send_all(topic, messages)
        return len(messages) / (time.perf_counter() - began)


def received(url: str, topic: str, count: int) -> float:
    with direct.Client(url) as client:
        handled = first = 0
        began = 0.0
        is_done, lock = threading.Event(), threading.Lock()

        def handle(messages: list[penstock.Message]) -> None:
            nonlocal handled, first, began
            with lock:
                handled += len(messages)
                if not first:
                    first, began = handled, time.perf_counter()
                if handled >= count:
                    is_done.set()

        client.subscribe(topic, handle, group=topic, batch=BATCH_MESSAGES, concurrency=8, in_flight=8 * BATCH_MESSAGES)
        client.start()
        if not is_done.wait(TIMEOUT_S):
            raise SystemExit(f"only {handled} of {count} messages were received")
        return (count - first) / (time.perf_counter() - began)


async def measure_rates(url: str, size: int, partitions: int, records: int, rounds: int) -> Rates:
    """Medians of all rounds; each has tables and topics of its own."""
    messages = bodies(size, records)
    parts = in_parts(messages, partitions)
    database = await opened(url, partitions)
    found: list[Rates] = []
    for number in range(rounds):
        name = f"{size}_{partitions}_{number}"
        tables = [f"plain_{name}_p{part}" for part in range(partitions)]
        await database.run_ddl(creation(tables))
        bulk_rate = await bulk(database, tables, parts)
        sent_rate = await asyncio.to_thread(sent, url, f"single_{name}", partitions, messages, send_each)
        many_rate = await asyncio.to_thread(sent, url, f"direct_{name}", partitions, messages, send_calls)
        selected_rate = await selected(database, tables, parts)
        received_rate = await asyncio.to_thread(received, url, f"direct_{name}", len(messages))
        found.append(Rates(bulk_rate, sent_rate, many_rate, selected_rate, received_rate))
    await database.close()
    return Rates(*(statistics.median(column) for column in zip(*found, strict=True)))


# Offsets in Redis


def handle_messages(url: str, redis: str, topic: str, ledger: str) -> None:
    """A process that handles messages until it is killed, and writes down which."""
    noted = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with direct.Client(url, offsets=redis) as client:

        def handle(message: penstock.Message) -> None:
            os.write(noted, b"%d\n" % message.offset)

        client.subscribe(topic, handle, group=topic)
        client.run()


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Killed, and what it had deleted, at the end."""
    kind = RedisServer()
    kind.obtain()
    launch = kind.prepare(folder)
    server = ServerProcess(launch)
    try:
        yield f"redis://{launch.address}/0"
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def handling(url: str, redis: str, topic: str, ledger: Path) -> Iterator[None]:
    arguments = ["--handle", url, redis, topic, str(ledger)]
    process = subprocess.Popen([sys.executable, "-m", "bench.sql_direct", *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_repeats(url: str, folder: Path, seconds: float, records: int) -> Repeats:
    """Messages are sent before, so that the process has always one to handle."""
    topic, first, second = "repeats", folder / "first", folder / "second"
    sent(url, topic, 1, bodies(100, records), send_calls)
    with redis_server(folder / "redis") as redis, handling(url, redis, topic, first):
        wait_for(lambda: len(noted_in(first)) > 0, "the first process handles messages")
        began = time.monotonic()
        time.sleep(seconds)
        if len(noted_in(first)) >= records:
            raise SystemExit(f"all {records} messages were handled within {seconds:g} s: nothing can be said")
        took = time.monotonic() - began
    handled = noted_in(first)
    with redis_server(folder / "redis") as redis, handling(url, redis, topic, second):
        wait_for(lambda: len(set(handled) | set(noted_in(second))) >= records, "the second process handles the rest")
    again = noted_in(second)
    return Repeats(
        handled=len(handled),
        seconds=took,
        repeated=len(set(handled) & set(again)),
        lost=records - len(set(handled) | set(again)),
    )


def noted_in(ledger: Path) -> list[int]:
    """Whole lines."""
    return [int(line) for line in ledger.read_bytes().split(b"\n")[:-1]] if ledger.exists() else []


def wait_for(look: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not look():
        if time.monotonic() > until_s:
            raise SystemExit(f"{what}: not within {TIMEOUT_S:g} s")
        time.sleep(_LOOK_S)


# Telling


def tell_rates(kind: str, size: int, partitions: int, rates: Rates) -> str:
    thousands = [f"{each / 1000:.1f}" for each in rates]
    return (
        f"| {kind}, {size} B, {partitions} | {thousands[0]} | {thousands[1]} | **{rates.sent / rates.bulk:.2f}** "
        f"| {thousands[2]} | **{rates.sent_many / rates.bulk:.2f}** "
        f"| {thousands[3]} | {thousands[4]} | **{rates.received / rates.selected:.2f}** |"
    )


def tell_repeats(kind: str, repeats: Repeats) -> str:
    a_second = repeats.handled / repeats.seconds
    return f"| {kind} | {a_second:.0f} | {repeats.repeated} | {repeats.repeated / a_second:.2f} | {repeats.lost} |"


async def measure(kinds: Sequence[str], given: argparse.Namespace, folder: Path) -> None:
    repeats: list[str] = []
    columns = (
        "bulk insert, k/s",
        "direct send",
        "ratio",
        "send many",
        "ratio",
        "select, k/s",
        "direct receive",
        "ratio",
    )
    print(f"| database, size, partitions | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for kind in kinds:
        with running(kind, folder / kind) as url:
            for size in SIZES:
                for partitions in PARTITIONS:
                    rates = await measure_rates(url, size, partitions, given.records, given.rounds)
                    print(tell_rates(kind, size, partitions, rates), flush=True)
            lost_redis = folder / f"{kind}-redis"
            lost_redis.mkdir()
            found = await asyncio.to_thread(measure_repeats, url, lost_redis, given.seconds, given.handled)
            repeats.append(tell_repeats(kind, found))
    print(
        "\n| repeats after losing Redis | handled, /s | repeated | seconds of messages | lost |\n|---|---|---|---|---|"
    )
    print("\n".join(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sql_direct", description=__doc__.splitlines()[0])
    parser.add_argument("--databases", nargs="+", choices=databases(), default=databases())
    parser.add_argument("--records", type=int, default=200_000, help="rows of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="until Redis is lost")
    parser.add_argument("--handled", type=int, default=100_000, help="messages of the run in which Redis is lost")
    parser.add_argument("--handle", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.handle:
        handle_messages(*given.handle)
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-direct-"))
    try:
        asyncio.run(measure(given.databases, given, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
