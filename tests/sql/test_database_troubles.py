"""A broker whose database refuses, is full, loses connections, or has another clock or altered tables, while a real
producer sends: nothing acknowledged is lost, nothing comes twice, and the broker's log names the reason.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pymysql
import pytest
from confluent_kafka import KafkaError, Message, Producer

from support.broker_process import BrokerProcess
from support.delayed import Arrivals, assert_not_early, delayed, send
from support.shifted_clock import ShiftedClocks
from support.stores import DatabaseServer, MariaDbProcess
from support.waiting import PATIENCE_S, until

from .conftest import NewSqlBroker, by_hand, query
from .test_broker import by_partition, create, read

TOPIC = "orders"
PARTITIONS = 2
SCHEMA = "troubles"
LEASE_MS = 3_000
HOUR_MS = 3_600_000


class Sender:
    """Sends numbered messages to all partitions, in a thread, until it is told to stop."""

    def __init__(self, broker: BrokerProcess, size: int = 10) -> None:
        self._broker = broker
        self._size = size
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.acknowledged: list[bytes] = []
        self.errors: list[KafkaError] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        producer = Producer({"bootstrap.servers": self._broker.kafka, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._stop.wait(0.002):
            value = b"%d" % number
            producer.produce(TOPIC, value.ljust(self._size), partition=number % PARTITIONS, on_delivery=self._report)
            producer.poll(0)
            number += 1
        producer.flush(PATIENCE_S)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged.append(message.value() or b"")

    def goes_on(self) -> None:
        """Returns when more was acknowledged."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 100, "more messages are acknowledged")

    def check(self) -> None:
        """All that was acknowledged is there, once and in order, and nothing was refused."""
        assert self.errors == []
        found = by_partition(read(self._broker.kafka, TOPIC, PARTITIONS, len(self.acknowledged)))
        assert sorted(value for values in found.values() for value in values) == sorted(self.acknowledged)
        for values in found.values():
            assert [int(value) for value in values] == sorted(int(value) for value in values)


class Trouble:
    """What an administrator can do to the users of a server."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._is_mariadb = isinstance(server, MariaDbProcess)

    def take_no_writes(self, *, is_on: bool) -> None:
        if self._is_mariadb:
            self._server.administer(f"set global read_only = {int(is_on)}")
        else:
            self._server.administer(f"alter role penstock set default_transaction_read_only = {is_on}")
            self.end_connections()

    def allow_connections(self, count: int) -> None:
        """Of the broker's user; 0 or less for any number."""
        if self._is_mariadb:
            self._server.administer(f"grant usage on *.* to penstock@'127.0.0.1' with max_user_connections {count}")
        else:
            self._server.administer(f"alter role penstock connection limit {count or -1}")
        self.end_connections()

    def end_connections(self) -> int:
        """Whatever they are doing; how many there were."""
        if not self._is_mariadb:
            ended = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'penstock'"
            return len(self._server.administer(ended))
        found = self._server.administer("select id from information_schema.processlist where user = 'penstock'")
        for (connection,) in found:
            with contextlib.suppress(pymysql.err.OperationalError):  # it has ended meanwhile
                self._server.administer(f"kill {connection}")
        return len(found)


@pytest.fixture
def broker(own_server: DatabaseServer, sql_broker: NewSqlBroker) -> Iterator[BrokerProcess]:
    """With an empty topic, on a server that the test may spoil."""
    started = sql_broker(own_server.create_database(SCHEMA), **{"cluster.lease_ms": LEASE_MS})
    create(started, TOPIC, PARTITIONS)
    yield started
    started.kill()
    own_server.drop_database(SCHEMA)


def test_a_server_that_takes_no_writes_for_a_while(own_server: DatabaseServer, broker: BrokerProcess) -> None:
    trouble = Trouble(own_server)
    with Sender(broker) as sender:
        sender.goes_on()
        trouble.take_no_writes(is_on=True)
        try:
            until(lambda: "read-only" in broker.log or "read only" in broker.log, "the broker says why")
        finally:
            trouble.take_no_writes(is_on=False)
        sender.goes_on()
    sender.check()


def test_connections_that_are_ended_in_the_middle_of_transactions(
    own_server: DatabaseServer, broker: BrokerProcess
) -> None:
    trouble, ended = Trouble(own_server), 0
    with Sender(broker) as sender:
        sender.goes_on()
        for _ in range(15):
            ended += trouble.end_connections()
            time.sleep(0.1)  # new ones are made, and used
        sender.goes_on()
    assert ended > 20
    sender.check()


def test_no_connection_to_be_had_for_a_while(own_server: DatabaseServer, broker: BrokerProcess) -> None:
    trouble = Trouble(own_server)
    with Sender(broker) as sender:
        sender.goes_on()
        trouble.allow_connections(1)
        try:
            until(
                lambda: "max_user_connections" in broker.log or "too many connections" in broker.log,
                "the broker says why",
            )
        finally:
            trouble.allow_connections(0)
        sender.goes_on()
    sender.check()


def test_a_server_without_room_until_it_is_given_more(tmp_path: Path, sql_broker: NewSqlBroker) -> None:
    """All tables are in one file that may not grow further. Where nothing is left, InnoDB cannot even drop a table."""
    server = MariaDbProcess(tmp_path / "mariadb", options=room_for(40)).start()
    try:
        broker = sql_broker(server.create_database(SCHEMA), **{"cluster.lease_ms": LEASE_MS})
        create(broker, TOPIC, PARTITIONS)
        with Sender(broker, size=50_000) as sender:
            until(lambda: "is full" in broker.log, "the broker says why")
            server.kill()
            server.options = room_for(400)
            server.start()
            sender.goes_on()
        sender.check()
        broker.kill()
    finally:
        server.kill()


def test_a_table_that_was_altered_is_named_and_the_other_partition_goes_on(
    own_server: DatabaseServer, broker: BrokerProcess
) -> None:
    with Sender(broker) as sender:
        sender.goes_on()
        own_server.administer(f"alter table {TOPIC}_0 rename column headers to header", SCHEMA)
        until(lambda: f'table \\"{TOPIC}_0\\" is missing or was altered' in broker.log, "the broker names the table")
        sender.goes_on()
        own_server.administer(f"alter table {TOPIC}_0 rename column header to headers", SCHEMA)
        broker.restart()
        sender.goes_on()
    sender.check()


def test_a_clock_that_jumps_an_hour_and_back_changes_no_leader_and_makes_no_message_early(
    tmp_path: Path, sql_broker: NewSqlBroker
) -> None:
    clocks = ShiftedClocks(tmp_path)
    server = MariaDbProcess(tmp_path / "mariadb", clocks.environment("mariadb")).start()
    try:
        url = server.create_database(SCHEMA)
        brokers = [sql_broker(url, number, **{"cluster.lease_ms": LEASE_MS}) for number in (1, 2)]
        create(brokers[0], TOPIC, PARTITIONS)
        create(brokers[0], "later", 1)
        with Sender(brokers[0]) as sender, Arrivals(brokers[0].kafka, "later") as arrivals:
            sender.goes_on()
            before = leader_epochs(url)
            send(brokers[0].kafka, "later", [delayed(b"late", "6s")])
            for ahead_ms in (HOUR_MS, -HOUR_MS):
                clocks.set("mariadb", ahead_ms)
                over_s = time.monotonic() + 1.5 * LEASE_MS / 1000
                until(lambda over_s=over_s: time.monotonic() > over_s, "a lease has passed")
                sender.goes_on()
            assert_not_early(arrivals.until(1))
            assert leader_epochs(url) == before
        sender.check()
        for broker in brokers:
            broker.kill()
    finally:
        server.kill()


def leader_epochs(url: str) -> dict[str, int]:
    rows = by_hand(url, query("SELECT table_name, leader_epoch FROM queue"))
    return {table: epoch for table, epoch in rows if table in (f"{TOPIC}_0", f"{TOPIC}_1", "later_0")}


def room_for(megabytes: int) -> list[str]:
    return ["--innodb-file-per-table=0", f"--innodb-data-file-path=ibdata1:12M:autoextend:max:{megabytes}M"]
