"""Topics in a database beside plain SQL on the same database: rows per second in and out, and the time of one message.

    python -m bench.sql [--databases mariadb postgresql sqlite] [--records 200000] [--singles 500] [--rounds 3]

Plain SQL has a table with the same columns and the same index for each partition. *Bulk* inserts a thousand rows a
transaction with the same code that the broker uses, *one by one* commits each row, *select* reads ranges of 5,000 rows
by id; one thread a partition. Through the broker, one producer (`acks=all`) sends to all partitions, and after a
restart, so that nothing is in memory, one consumer reads all of it. Both are the client of the other benchmarks,
connected before the clock starts. The producer is not idempotent: librdkafka's idempotent producer keeps a core busy
while its five requests to one partition are under way, and broker and database share that core. Rounds alternate;
figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.client.driver import Load
from bench.client.kafka import KafkaDialect
from bench.client.payload import random_pool
from bench.servers.databases import databases, opened, running
from bench.servers.penstock import PenstockServer
from bench.servers.process import ServerProcess
from penstock.sql.database import Connection, Database

SIZES = (100, 1024)
PARTITIONS = (1, 8)
BULK_ROWS = 1_000
SELECT_ROWS = 5_000
TIMEOUT_S = 300.0
COLUMNS = ("id", "biz_id", "tags", "msg_key", "body", "headers", "send_time", "receive_time")


class Given(NamedTuple):
    """How much is measured."""

    records: int
    singles: int
    rounds: int


class Rates(NamedTuple):
    """Rows per second."""

    bulk: float
    produced: float
    one_by_one: float
    selected: float
    consumed: float


class Times(NamedTuple):
    """Milliseconds for one message, p50 and p99."""

    insert: tuple[float, float]
    acknowledged: tuple[float, float]


def bodies(size: int, count: int) -> list[bytes]:
    pool = random_pool()
    step = max(1, (len(pool) - size) // max(1, count))
    return [pool[number * step : number * step + size] for number in range(count)]


def row(number: int, body: bytes) -> tuple[object, ...]:
    now_ms = int(time.time() * 1000)
    return (number + 1, None, None, None, body, None, now_ms, now_ms)


def create_tables(connection: Connection, tables: Sequence[str]) -> None:
    dialect = connection.dialect
    big, blob = dialect.big_integer, dialect.blob
    columns = [
        ("id", f"{big} NOT NULL"),
        ("biz_id", dialect.varchar(255)),
        ("tags", dialect.varchar(1024)),
        ("msg_key", blob),
        ("body", blob),
        ("headers", dialect.long_text),
        ("send_time", big),
        ("receive_time", big),
    ]
    for table in tables:
        for statement in dialect.create_table(table, columns, primary_key=("id",), indexes=("biz_id",)):
            connection.change(statement)


def creation(tables: Sequence[str]) -> Callable[[Connection], None]:
    return lambda connection: create_tables(connection, tables)


def insertion(table: str, rows: Sequence[Sequence[object]]) -> Callable[[Connection], None]:
    return lambda connection: connection.insert(table, COLUMNS, rows)


def query(statement: str, *params: object) -> Callable[[Connection], list[tuple[Any, ...]]]:
    return lambda connection: connection.execute(statement, *params)


def in_parts(bodies: Sequence[bytes], parts: int) -> list[Sequence[bytes]]:
    return [bodies[part::parts] for part in range(parts)]


async def bulk(database: Database, tables: Sequence[str], parts: Sequence[Sequence[bytes]]) -> float:
    async def fill(table: str, own: Sequence[bytes]) -> None:
        for start in range(0, len(own), BULK_ROWS):
            some = own[start : start + BULK_ROWS]
            rows = [row(start + number, body) for number, body in enumerate(some)]
            await database.run(insertion(table, rows))

    return await rate(sum(map(len, parts)), lambda: together(fill, tables, parts))


async def selected(database: Database, tables: Sequence[str], parts: Sequence[Sequence[bytes]]) -> float:
    async def read(table: str, own: Sequence[bytes]) -> None:
        statement = f"SELECT {', '.join(COLUMNS)} FROM {table} WHERE id > ? ORDER BY id LIMIT {SELECT_ROWS}"
        found = 0
        while found < len(own):
            rows = await database.run(query(statement, found), is_read_only=True)
            found += len(rows)

    return await rate(sum(map(len, parts)), lambda: together(read, tables, parts))


async def together(
    work: Callable[[str, Sequence[bytes]], Awaitable[None]], tables: Sequence[str], parts: Sequence[Sequence[bytes]]
) -> None:
    await asyncio.gather(*(work(table, own) for table, own in zip(tables, parts, strict=True)))


async def rate(count: int, work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return count / (time.perf_counter() - began)


async def inserts(database: Database, table: str, bodies: Sequence[bytes], start: int = 0) -> list[float]:
    """Milliseconds of each INSERT with its COMMIT."""
    times: list[float] = []
    for number, body in enumerate(bodies, start):
        began = time.perf_counter()
        await database.run(insertion(table, [row(number, body)]))
        times.append((time.perf_counter() - began) * 1000)
    return times


@contextlib.contextmanager
def broker(url: str, folder: Path) -> Iterator[str]:
    """A broker on a database; gives its address."""
    launch = replace(PenstockServer().prepare(folder), env={"PENSTOCK_SQL_URL": url})
    server = ServerProcess(launch)
    try:
        AdminClient({"bootstrap.servers": launch.address, "log_level": 0}).list_topics(timeout=60)
        server.check()
        yield launch.address
    finally:
        server.stop()


def create(address: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)


def produced(address: str, topic: str, partitions: int, size: int, count: int) -> float:
    """Records per second, until all of them are acknowledged."""
    publisher = KafkaDialect().publisher(address, topic, partitions, Load(acks="all"))
    publisher.prepare(random_pool(), size)
    publisher.connect()
    began = time.perf_counter()
    publisher.send_many(count)
    publisher.flush(TIMEOUT_S)
    took = time.perf_counter() - began
    publisher.close()
    return count / took


def consumed(address: str, topic: str, partitions: int, size: int, count: int) -> float:
    """Records per second, from the beginning to the end of all partitions."""
    subscriber = KafkaDialect().subscriber(address, topic, partitions, size)
    subscriber.connect()
    began = time.perf_counter()
    subscriber.count(count, TIMEOUT_S)
    took = time.perf_counter() - began
    subscriber.close()
    return count / took


def acknowledged(address: str, topic: str, bodies: Sequence[bytes]) -> list[float]:
    """Milliseconds until each message is acknowledged, one at a time."""
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    times: list[float] = []
    # The first one is on its way until the connection is there.
    for body in [b"connect", *bodies]:
        began = time.perf_counter()
        producer.produce(topic, body, partition=0)
        if producer.flush(TIMEOUT_S):
            raise SystemExit("a message was not acknowledged")
        times.append((time.perf_counter() - began) * 1000)
    return times[1:]


async def measure_rates(url: str, folder: Path, size: int, partitions: int, given: Given) -> Rates:
    """Medians of all rounds; each has tables and topics of its own."""
    sent = bodies(size, given.records)
    parts = in_parts(sent, partitions)
    database = await opened(url, partitions)
    rounds: list[Rates] = []
    for number in range(given.rounds):
        name = f"{size}_{partitions}_{number}"
        tables = [f"plain_{name}_p{part}" for part in range(partitions)]
        topic = f"topic_{name}"
        await database.run_ddl(creation([*tables, f"{tables[0]}_s"]))
        bulk_rate = await bulk(database, tables, parts)
        with broker(url, folder / f"{name}-write") as address:
            create(address, topic, partitions)
            produced_rate = await asyncio.to_thread(produced, address, topic, partitions, size, len(sent))
        singles = sent[: given.singles]
        one_by_one = 1000 * len(singles) / sum(await inserts(database, f"{tables[0]}_s", singles))
        selected_rate = await selected(database, tables, parts)
        with broker(url, folder / f"{name}-read") as address:
            consumed_rate = await asyncio.to_thread(consumed, address, topic, partitions, size, len(sent))
        rounds.append(Rates(bulk_rate, produced_rate, one_by_one, selected_rate, consumed_rate))
    await database.close()
    return Rates(*(statistics.median(column) for column in zip(*rounds, strict=True)))


async def measure_times(url: str, folder: Path, size: int, singles: int) -> Times:
    """One message at a time, in turns: a database is not equally quick all the time."""
    sent, table, topic = bodies(size, singles), f"single_{size}_s", f"single_{size}"
    database = await opened(url, 1)
    await database.run_ddl(creation([table]))
    plain: list[float] = []
    through: list[float] = []
    with broker(url, folder / f"single-{size}") as address:
        create(address, topic, 1)
        step = max(1, singles // 5)
        for start in range(0, singles, step):
            some = sent[start : start + step]
            plain += await inserts(database, table, some, start)
            through += await asyncio.to_thread(acknowledged, address, topic, some)
    await database.close()
    return Times(percentiles(plain), percentiles(through))


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def tell_rates(kind: str, size: int, partitions: int, rates: Rates) -> str:
    thousands = [f"{each / 1000:.1f}" for each in rates]
    return (
        f"| {kind}, {size} B, {partitions} | {thousands[0]} | {thousands[1]} | **{rates.produced / rates.bulk:.2f}** "
        f"| {thousands[2]} | **{rates.produced / rates.one_by_one:.0f}** | {thousands[3]} | {thousands[4]} "
        f"| **{rates.consumed / rates.selected:.2f}** |"
    )


def tell_times(kind: str, size: int, times: Times) -> str:
    (plain_50, plain_99), (through_50, through_99) = times
    return (
        f"| {kind}, {size} B | {plain_50:.2f} / {plain_99:.2f} | {through_50:.2f} / {through_99:.2f} "
        f"| **{through_50 / plain_50:.2f} / {through_99 / plain_99:.2f}** |"
    )


async def measure(kinds: Sequence[str], given: Given, folder: Path) -> None:
    singles: list[str] = []
    columns = ("bulk insert, k/s", "produce", "ratio", "one by one", "ratio", "select, k/s", "consume", "ratio")
    print(f"| database, size, partitions | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for kind in kinds:
        with running(kind, folder / kind) as url:
            for size in SIZES:
                for partitions in PARTITIONS:
                    rates = await measure_rates(url, folder / kind / "brokers", size, partitions, given)
                    print(tell_rates(kind, size, partitions, rates), flush=True)
                times = await measure_times(url, folder / kind / "brokers", size, given.singles)
                singles.append(tell_times(kind, size, times))
    print("\n| database, size | one INSERT, ms p50 / p99 | one acknowledged message | ratio |\n|---|---|---|---|")
    print("\n".join(singles))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sql", description=__doc__.splitlines()[0])
    parser.add_argument("--databases", nargs="+", choices=databases(), default=databases())
    parser.add_argument("--records", type=int, default=200_000, help="rows of each measurement")
    parser.add_argument("--singles", type=int, default=500, help="rows that are sent one by one")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-sql-"))
    try:
        asyncio.run(measure(given.databases, Given(given.records, given.singles, given.rounds), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
