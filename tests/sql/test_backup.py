"""A dump of a database, made by the database's own program while a broker works on it, is a queue of one moment."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.config.database_address import DatabaseAddress
from penstock.sql.errors import SchemaChanged
from support.delayed import Arrivals, delayed, send
from support.programs import environment, required_program
from support.stores import SERVERS, NewDatabase
from support.waiting import PATIENCE_S, until

from .conftest import NewSqlBroker, by_hand
from .test_broker import by_partition, create, produce, read

TOPIC, REMINDERS = "orders", "reminders"


def dump(url: str, file: Path) -> None:
    _run(url, ["mariadb-dump", "--single-transaction", "--no-tablespaces"], ["pg_dump", "--no-owner"], output=file)


def restore(url: str, file: Path) -> None:
    _run(url, ["mariadb"], ["psql", "--quiet", "--set", "ON_ERROR_STOP=1"], source=file)


def _run(
    url: str, mariadb: list[str], postgresql: list[str], output: Path | None = None, source: Path | None = None
) -> None:
    address = DatabaseAddress.parse(url)
    if url.startswith("mysql"):
        program, *options = mariadb
        host = [f"--host={address.host}", f"--port={address.port}", f"--user={address.user}", f"-p{address.password}"]
        command = [required_program(program), "--no-defaults", *host, *options, str(address.database)]
    else:
        program, *options = postgresql
        command = [required_program(program), *options, f"--dbname={url}"]
    with Path(output or "/dev/null").open("wb") as written, Path(source or "/dev/null").open("rb") as given:
        done = subprocess.run(
            command,
            stdin=given,
            stdout=written,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            env=environment(),
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()


def has_offset_table(url: str) -> bool:
    try:
        return bool(by_hand(url, lambda connection: connection.execute(f"SELECT * FROM {TOPIC}_consumers")))
    except SchemaChanged:
        return False


@pytest.mark.parametrize("kind", SERVERS)
def test_a_restored_dump_has_all_that_was_acknowledged_before_it(
    kind: str, new_database: NewDatabase, sql_broker: NewSqlBroker, tmp_path: Path
) -> None:
    url = new_database(kind)
    broker = sql_broker(url)
    create(broker, TOPIC, 2)
    before = {partition: [b"%d-%d" % (partition, number) for number in range(200)] for partition in range(2)}
    for partition, values in before.items():
        # More than a megabyte: the tables have ranges.
        produce(broker.kafka, TOPIC, partition, [value.ljust(8_000, b".") for value in values])
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "search", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(TOPIC, 1, 120)], asynchronous=False)
    consumer.close()
    # MariaDB gives up a dump that meets a table which was made after it had begun.
    until(lambda: has_offset_table(url), "the committed offset is in its table")
    create(broker, REMINDERS, 1)
    send(broker.kafka, REMINDERS, [delayed(b"late", "5000")])
    stop = threading.Event()

    def go_on() -> None:
        number = 0
        while not stop.is_set():
            produce(broker.kafka, TOPIC, 1, [b"meanwhile-%d" % (number + each) for each in range(20)])
            number += 20

    load = threading.Thread(target=go_on)
    load.start()
    try:
        dump(url, tmp_path / "dump.sql")
    finally:
        stop.set()
        load.join()
    broker.kill()
    again = new_database(kind)
    restore(again, tmp_path / "dump.sql")
    anew = sql_broker(again)
    with Arrivals(anew.kafka, REMINDERS) as arrivals:
        arrivals.until(1)
        assert arrivals.values == [b"late"]
    found = by_partition(read(anew.kafka, TOPIC, 2, 400))
    for partition, values in before.items():
        assert [value.rstrip(b".") for value in found[partition]][:200] == values
    meanwhile = found[1][200:]
    assert meanwhile == [b"meanwhile-%d" % number for number in range(len(meanwhile))]
    consumer = Consumer({"bootstrap.servers": anew.kafka, "group.id": "search", "enable.auto.commit": False})
    assert [each.offset for each in consumer.committed([TopicPartition(TOPIC, 1)], PATIENCE_S)] == [120]
    consumer.close()
    # The broker appends behind what was restored.
    told = produce(anew.kafka, TOPIC, 1, [b"after"])
    assert (told[0].offset() or 0) >= len(found[1])
