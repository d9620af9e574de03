"""Tables get their versions, in each database."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster.coordination.sql_tree import COORDINATION
from penstock.config.database_address import DatabaseAddress
from penstock.sql import migrations
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, SchemaTooNew, Unreachable
from penstock.sql.migrations import Component, migrate
from penstock.storage.sql.metadata_tables import METADATA
from penstock.storage.sql.schema import STORAGE
from support.programs import PENSTOCK, environment
from support.stores import NewDatabase
from support.waiting import PATIENCE_S, until

from .conftest import NewSqlBroker, OpenDatabase, by_hand, change, query

VERSIONS = query("SELECT component, version FROM penstock_schema ORDER BY component, version")


def create(table: str, connection: Connection) -> None:
    columns = [("id", f"{connection.dialect.big_integer} NOT NULL")]
    for statement in connection.dialect.create_table(table, columns, primary_key=["id"]):
        connection.change(statement)


FIRST, SECOND = partial(create, "first_of_all"), partial(create, "second_of_all")


@pytest.fixture
async def empty(address: DatabaseAddress, open_database: OpenDatabase) -> Database:
    return await open_database(address, timeout_ms=20_000)


async def count(database: Database, table: str) -> int:
    ((found,),) = await database.run(query(f"SELECT COUNT(*) FROM {table}"), is_read_only=True)
    return int(found)


async def test_steps_are_performed_in_order_and_once(empty: Database) -> None:
    performed: list[int] = []

    def noted(number: int, connection: Connection) -> None:
        performed.append(number)

    steps = tuple(partial(noted, number) for number in range(1, 5))
    await migrate(empty, Component("things", steps[:2]))
    await migrate(empty, Component("things", steps[:2]))
    await migrate(empty, Component("others", steps[:1]))
    await migrate(empty, Component("things", steps))
    assert performed == [1, 2, 1, 3, 4]
    versions = [("others", 1), *(("things", number) for number in range(1, 5))]
    assert await empty.run(VERSIONS, is_read_only=True) == versions
    ((oldest, now_us),) = await empty.run(
        query(f"SELECT MIN(applied_at), {empty.dialect.now_us} FROM penstock_schema"), is_read_only=True
    )
    assert 0 <= now_us // 1000 - oldest <= PATIENCE_S * 1000


async def test_many_who_start_at_once_perform_a_step_once(
    empty: Database, address: DatabaseAddress, open_database: OpenDatabase
) -> None:
    def note(connection: Connection) -> None:
        # Of a step that is performed twice there are two rows.
        ((rows,),) = connection.execute("SELECT COUNT(*) FROM first_of_all")
        connection.insert("first_of_all", ["id"], [(rows,)])

    component = Component("things", (FIRST, note, SECOND))
    others = [await open_database(address, connections=2, timeout_ms=20_000) for _ in range(5)]
    await asyncio.gather(*(migrate(each, component) for each in (empty, *others)))
    assert await count(empty, "first_of_all") == 1
    assert await empty.run(VERSIONS, is_read_only=True) == [("things", number) for number in (1, 2, 3)]


async def test_a_step_that_stopped_half_way_is_performed_again(empty: Database) -> None:
    crashes = [True]

    def both(connection: Connection) -> None:
        FIRST(connection)
        if crashes:
            raise OSError(crashes.pop())
        SECOND(connection)

    component = Component("things", (both,))
    with pytest.raises(OSError, match="True"):
        await migrate(empty, component)
    assert not await empty.run(partial(migrations.is_current, component=component), is_read_only=True)
    await migrate(empty, component)
    assert await count(empty, "first_of_all") == await count(empty, "second_of_all") == 0
    assert await empty.run(VERSIONS, is_read_only=True) == [("things", 1)]


async def test_who_finds_another_one_at_it_waits_and_then_gives_up(
    address: DatabaseAddress, open_database: OpenDatabase
) -> None:
    one, two = [await open_database(address, connections=1, timeout_ms=3000 + more) for more in (60_000, 0)]
    is_at_it, may_end = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        is_at_it.set()
        assert may_end.wait(PATIENCE_S)
        FIRST(connection)

    first = asyncio.create_task(migrate(one, Component("things", (slow,))))
    await asyncio.to_thread(is_at_it.wait, PATIENCE_S)
    with pytest.raises(Contended):
        await migrate(two, Component("things", (FIRST,)))
    assert not first.done()
    may_end.set()
    await first
    await migrate(two, Component("things", (FIRST,)))
    assert await two.run(VERSIONS, is_read_only=True) == [("things", 1)]


async def test_who_is_gone_in_the_middle_does_not_keep_the_others_out(
    new_database: NewDatabase, open_database: OpenDatabase
) -> None:
    address = DatabaseAddress.parse(new_database("mariadb"))
    one, two = [await open_database(address, connections=1, timeout_ms=timeout_ms) for timeout_ms in (3000, 60_000)]
    is_at_it, may_end = threading.Event(), threading.Event()

    def stopped(connection: Connection) -> None:
        is_at_it.set()
        # As long as this process is stopped, it says nothing to the server, and does not close the connection.
        assert may_end.wait(PATIENCE_S)

    # Its own time limit does not end it: nobody is there who would notice.
    work = partial(migrations.perform, component=Component("things", (stopped,)))
    first = asyncio.create_task(one.run_ddl(work, timeout_ms=600_000))
    await asyncio.to_thread(is_at_it.wait, PATIENCE_S)
    await migrate(two, Component("things", (FIRST,)))
    assert await two.run(VERSIONS, is_read_only=True) == [("things", 1)]
    may_end.set()
    with pytest.raises(Unreachable):
        await first


async def test_a_version_that_nobody_here_knows_is_refused(empty: Database) -> None:
    await migrate(empty, Component("things", (FIRST, SECOND)))
    said = 'tables of "things" have version 2, and this version of Penstock knows 1 at most'
    with pytest.raises(SchemaTooNew, match=said):
        await migrate(empty, Component("things", (FIRST,)))
    with pytest.raises(SchemaTooNew, match=said):
        await empty.run_ddl(partial(migrations.perform, component=Component("things", (FIRST,))))


async def test_tables_that_are_missing_although_they_were_made_can_be_made_again(empty: Database) -> None:
    component = Component("things", (FIRST, SECOND))
    await migrate(empty, component)
    await empty.run_ddl(query("DROP TABLE second_of_all"))
    await migrate(empty, component)
    assert not await empty.run(query(empty.dialect.find_table, "second_of_all"), is_read_only=True)
    await empty.run_ddl(partial(migrations.perform, component=component, is_from_first=True))
    assert await count(empty, "second_of_all") == 0


def versions(url: str) -> dict[str, int]:
    return dict(by_hand(url, VERSIONS))


def topics(kafka: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=PATIENCE_S).topics)


def test_tables_from_before_there_were_versions_are_kept(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(PATIENCE_S)
    made = {each.name: each.newest for each in (STORAGE, COORDINATION, METADATA)}
    until(lambda: versions(url) == made, "all tables are made")
    assert broker.stop() == 0
    # Without this table it is what brokers made that knew no versions.
    by_hand(url, change("DROP TABLE penstock_schema"), is_ddl=True)
    anew = sql_broker(url)
    assert "orders" in topics(anew.kafka)
    until(lambda: versions(url) == made, "the tables have their versions")


def test_brokers_that_are_started_together_share_a_new_database(
    new_database: NewDatabase, sql_broker: NewSqlBroker
) -> None:
    url = new_database("mariadb")
    # Brokers end with the thread that has started them.
    with ThreadPoolExecutor(3) as threads:
        brokers = list(threads.map(lambda number: sql_broker(url, number), (1, 2, 3)))
        admin = AdminClient({"bootstrap.servers": brokers[0].kafka})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(PATIENCE_S)
        until(lambda: "orders" in topics(brokers[2].kafka), "the third broker has heard of the topic")
        assert [broker.stop() for broker in brokers] == [0, 0, 0]


@pytest.mark.parametrize("component", [STORAGE, COORDINATION, METADATA], ids=lambda component: component.name)
def test_a_broker_does_not_start_on_tables_of_a_newer_one(
    new_database: NewDatabase, sql_broker: NewSqlBroker, tmp_path: Path, component: Component
) -> None:
    url = new_database("mariadb")
    assert sql_broker(url).stop() == 0
    newer = component.newest + 1
    by_hand(url, change(f"INSERT INTO penstock_schema VALUES ('{component.name}', {newer}, 0)"))
    command = [PENSTOCK, "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    ended = subprocess.run(
        command, env=environment({"PENSTOCK_SQL_URL": url}), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode != 0
    assert f'the tables of "{component.name}" have version {newer}' in ended.stderr
    assert "Traceback" not in ended.stderr
