"""Databases that go away, freeze, refuse or have no room, and what their callers are told."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, DatabaseError, Denied, NoRoom, ReadOnly, SchemaChanged, Unreachable
from support.lost_commits import Lost, LostCommits
from support.ports import free_ports
from support.stores import SERVERS, DatabaseServer

from .conftest import COLUMNS, OpenDatabase, change, create_table, insertion, query

ON_SERVERS = pytest.mark.parametrize("address", SERVERS, indirect=True)


def insert_one(connection: Connection) -> None:
    connection.insert("things", COLUMNS, [(1, b"", "", 1)])


async def count_of(database: Database) -> int:
    found = await database.run(query("SELECT COUNT(*) FROM things"), is_read_only=True)
    count: int = found[0][0]
    return count


async def counted_again(database: Database) -> int:
    """As soon as the database is there again."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await count_of(database)
            except (Unreachable, Contended):
                await asyncio.sleep(0.05)


@pytest.fixture
def server(request: pytest.FixtureRequest, address: DatabaseAddress) -> DatabaseServer:
    """Where the test's database is; not to be left in another state."""
    is_mysql = address.dialect is DialectName.MYSQL
    found: DatabaseServer = request.getfixturevalue("mariadb" if is_mysql else "postgresql")
    return found


@pytest.fixture
async def own_database(own_server: DatabaseServer) -> AsyncIterator[Database]:
    """With an empty table `things`; the server is gone before it is closed."""
    name = f"own_{os.urandom(6).hex()}"
    database = await Database.open(DatabaseAddress.parse(own_server.create_database(name)), timeout_ms=20_000)
    await database.run_ddl(create_table)
    yield database
    own_server.resume()
    await database.close()


class TestOpening:
    @pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
    async def test_no_server_is_said_with_its_address_and_without_the_password(self, scheme: str) -> None:
        port = free_ports(1)[0]
        address = DatabaseAddress.parse(f"{scheme}://penstock:secret@127.0.0.1:{port}/queues")
        with pytest.raises(Unreachable) as caught:
            await Database.open(address)
        assert str(address) in str(caught.value)
        assert "secret" not in str(caught.value)
        assert not caught.value.is_outcome_unknown

    @ON_SERVERS
    async def test_a_wrong_password_is_denied_and_not_said(self, address: DatabaseAddress) -> None:
        wrong = DatabaseAddress(address.dialect, address.database, address.host, address.port, "penstock", "secret")
        with pytest.raises(Denied, match="penstock") as caught:
            await Database.open(wrong)
        assert "secret" not in str(caught.value)

    @ON_SERVERS
    async def test_a_database_that_is_not_there_is_named(self, address: DatabaseAddress) -> None:
        user, host = address.user, address.host
        missing = DatabaseAddress(address.dialect, "absent", host, address.port, user, address.password)
        with pytest.raises((SchemaChanged, Denied), match="absent"):
            await Database.open(missing)

    async def test_a_file_that_cannot_be_opened_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(Unreachable, match="absent/queue"):
            await Database.open(DatabaseAddress.parse(f"sqlite:///{tmp_path}/absent/queue.db"))

    async def test_a_file_that_is_no_database_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database" * 1000)
        with pytest.raises(DatabaseError, match="/notes"):
            await Database.open(DatabaseAddress.parse(f"sqlite:///{path}"))
        assert path.read_text() == "not a database" * 1000

    async def test_one_that_accepts_and_says_nothing_is_given_up(self, own_server: DatabaseServer) -> None:
        address = DatabaseAddress.parse(own_server.create_database(f"own_{os.urandom(6).hex()}"))
        own_server.pause()
        with pytest.raises(Unreachable):
            await Database.open(address, timeout_ms=1_000)
        own_server.resume()


class TestServerGoesAway:
    async def test_one_that_is_killed_in_a_transaction_is_unreachable_and_the_next_ones_reach_it_again(
        self, own_server: DatabaseServer, own_database: Database
    ) -> None:
        def work(connection: Connection) -> None:
            insert_one(connection)
            own_server.kill()
            connection.change("UPDATE things SET small = 2")

        with pytest.raises(Unreachable) as caught:
            await own_database.run(work)
        assert not caught.value.is_outcome_unknown
        with pytest.raises(Unreachable):
            await count_of(own_database)
        own_server.start()
        assert await counted_again(own_database) == 0

    async def test_idle_connections_that_a_restart_has_broken_are_not_used(
        self, own_server: DatabaseServer, own_database: Database
    ) -> None:
        both = threading.Barrier(4)
        await asyncio.gather(*(own_database.run(lambda connection: both.wait(20), is_read_only=True) for _ in range(4)))
        own_server.stop()
        own_server.start()
        await own_database.run(insert_one)
        assert await count_of(own_database) == 1

    async def test_when_it_is_gone_before_the_commit_the_outcome_is_said_to_be_unknown(
        self, own_server: DatabaseServer, own_database: Database
    ) -> None:
        def work(connection: Connection) -> None:
            insert_one(connection)
            own_server.kill()

        with pytest.raises(Unreachable) as caught:
            await own_database.run(work)
        assert caught.value.is_outcome_unknown
        own_server.start()
        assert await counted_again(own_database) == 0

    async def test_a_frozen_one_is_given_up_when_the_time_is_over(
        self, own_server: DatabaseServer, own_database: Database
    ) -> None:
        await own_database.run(insert_one)
        own_server.pause()
        with pytest.raises(Unreachable, match="no answer within 500 ms") as caught:
            await own_database.run(change("UPDATE things SET small = 2"), timeout_ms=500)
        assert not caught.value.is_outcome_unknown
        own_server.resume()
        assert await counted_again(own_database) == 1

    async def test_one_that_freezes_before_the_commit_leaves_the_outcome_unknown(
        self, own_server: DatabaseServer, own_database: Database
    ) -> None:
        def work(connection: Connection) -> None:
            insert_one(connection)
            own_server.pause()

        with pytest.raises(Unreachable, match="no answer within 2000 ms") as caught:
            await own_database.run(work, timeout_ms=2_000)
        assert caught.value.is_outcome_unknown
        own_server.resume()
        # The server had the COMMIT and found it when it went on, or found the connection closed first.
        assert await counted_again(own_database) in (0, 1)

    async def test_closing_ends_when_the_time_of_what_is_under_way_is_over(
        self, own_server: DatabaseServer, own_database: Database
    ) -> None:
        own_server.pause()
        calling = asyncio.create_task(own_database.run(insert_one, timeout_ms=500))
        await asyncio.sleep(0)
        await own_database.close()
        with pytest.raises(Unreachable):
            await calling

    async def test_one_whose_close_is_cancelled_ends_what_is_under_way_at_once(
        self, own_server: DatabaseServer, own_database: Database
    ) -> None:
        own_server.pause()
        calling = asyncio.create_task(own_database.run(insert_one, timeout_ms=600_000))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(own_database.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(Unreachable):
            await calling
        with pytest.raises(asyncio.CancelledError):
            await closing


@ON_SERVERS
class TestLostCommits:
    @pytest.mark.parametrize(("lost", "rows"), [(Lost.COMMIT, 0), (Lost.ANSWER, 1)])
    async def test_a_commit_without_an_answer_has_an_unknown_outcome(
        self, address: DatabaseAddress, database: Database, open_database: OpenDatabase, lost: Lost, rows: int
    ) -> None:
        network = LostCommits(address)
        through = await open_database(await network.start())
        network.lose(lost)
        with pytest.raises(Unreachable) as caught:
            await through.run(insert_one)
        assert caught.value.is_outcome_unknown
        assert await count_of(database) == rows
        assert await count_of(through) == rows
        await network.close()


class TestRefusals:
    @ON_SERVERS
    async def test_too_many_connections_are_unreachable(
        self, server: DatabaseServer, address: DatabaseAddress, open_database: OpenDatabase
    ) -> None:
        is_mysql = address.dialect is DialectName.MYSQL
        database = await open_database(address, connections=12)
        of_all, of_one = "set global max_connections =", f"alter database {address.database} connection limit"
        limit = of_all if is_mysql else of_one
        server.administer(f"{limit} 10")
        go_on = threading.Event()
        try:
            holding = [asyncio.create_task(database.run(lambda connection: go_on.wait(20))) for _ in range(12)]
            ended, _ = await asyncio.wait(holding, return_when=asyncio.FIRST_COMPLETED)
            assert [type(task.exception()) for task in ended] == [Unreachable] * len(ended)
        finally:
            go_on.set()
            await asyncio.wait(holding)
            server.administer(f"{limit} {151 if is_mysql else -1}")
        await database.run(lambda connection: None)

    @ON_SERVERS
    async def test_a_server_that_takes_no_writes_says_so_and_can_be_read(
        self, server: DatabaseServer, address: DatabaseAddress, database: Database, open_database: OpenDatabase
    ) -> None:
        of_all, of_one = "set global read_only", f"alter database {address.database} set default_transaction_read_only"
        setting = of_all if address.dialect is DialectName.MYSQL else of_one
        await database.run(insert_one)
        server.administer(f"{setting} = on")
        try:
            behind = await open_database(address)
            with pytest.raises(ReadOnly):
                await behind.run(change("UPDATE things SET small = 2"))
            assert await count_of(behind) == 1
        finally:
            server.administer(f"{setting} = off")

    async def test_a_file_that_takes_no_writes_says_so_and_can_be_read(self, tmp_path: Path) -> None:
        path = tmp_path / "queue.db"
        database = await Database.open(DatabaseAddress.parse(f"sqlite:///{path}"))
        await database.run_ddl(create_table)

        def write_as_if_read_only(connection: Connection) -> None:
            connection.execute("PRAGMA query_only = ON")
            try:
                assert connection.execute("SELECT COUNT(*) FROM things") == [(0,)]
                insert_one(connection)
            finally:
                connection.execute("PRAGMA query_only = OFF")

        with pytest.raises(ReadOnly):
            await database.run(write_as_if_read_only)
        assert await count_of(database) == 0
        await database.close()

    async def test_a_file_that_may_not_grow_has_no_room(self, tmp_path: Path) -> None:
        database = await Database.open(DatabaseAddress.parse(f"sqlite:///{tmp_path / 'queue.db'}"), connections=1)
        await database.run_ddl(create_table)

        def grow(connection: Connection) -> None:
            connection.execute("PRAGMA max_page_count = 10")
            connection.insert("things", COLUMNS, [(at, bytes(10_000), None, None) for at in range(100)])

        with pytest.raises(NoRoom):
            await database.run(grow)
        assert await count_of(database) == 0
        await database.close()

    @pytest.mark.parametrize("address", ["mariadb"], indirect=True)
    async def test_a_full_table_has_no_room(self, database: Database) -> None:
        def create_small(connection: Connection) -> None:
            connection.execute("SET SESSION max_heap_table_size = 16384")
            connection.execute("CREATE TABLE small (id BIGINT, name CHAR(200)) ENGINE=MEMORY")

        await database.run_ddl(create_small)
        with pytest.raises(NoRoom, match="small"):
            await database.run(insertion("small", ["id", "name"], [(at, "x" * 200) for at in range(1_000)]))

    async def test_a_file_that_was_replaced_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "queue.db"
        database = await Database.open(DatabaseAddress.parse(f"sqlite:///{path}"))
        await database.run_ddl(create_table)
        for end in ("", "-wal", "-shm"):
            os.unlink(f"{path}{end}")
        with pytest.raises(SchemaChanged, match="things"):
            await count_of(database)
        await database.close()

    @ON_SERVERS
    async def test_a_missing_privilege_is_denied_and_says_what_was_refused(
        self, server: DatabaseServer, address: DatabaseAddress, database: Database, open_database: OpenDatabase
    ) -> None:
        is_mysql = address.dialect is DialectName.MYSQL
        user = "'reader'@'127.0.0.1'" if is_mysql else "reader"
        password = "identified by 'reader'" if is_mysql else "password 'reader'"
        server.administer(f"create user {user} {password}")
        try:
            server.administer(f"grant select on {'' if is_mysql else 'table '}things to {user}", address.database)
            reader = await open_database(
                DatabaseAddress(address.dialect, address.database, address.host, address.port, "reader", "reader")
            )
            assert await count_of(reader) == 0
            with pytest.raises(Denied, match="things"):
                await reader.run(insert_one)
            await reader.close()
        finally:
            if not is_mysql:
                server.administer(f"drop owned by {user}", address.database)
            server.administer(f"drop user {user}")

    @ON_SERVERS
    async def test_a_column_of_another_type_is_a_changed_schema(self, database: Database) -> None:
        is_mysql = database.address.dialect is DialectName.MYSQL
        alter = (
            "ALTER TABLE things MODIFY body BIGINT" if is_mysql else "ALTER TABLE things ALTER body TYPE BIGINT USING 0"
        )
        await database.run(insert_one)
        await database.run(change("DELETE FROM things"))
        await database.run_ddl(query(alter))
        for count in (1, 100):
            rows = [(at, b"\xff bytes", None, None) for at in range(count)]
            with pytest.raises(SchemaChanged):
                await database.run(insertion("things", COLUMNS, rows))
        assert await count_of(database) == 0

    @pytest.mark.parametrize("address", ["mariadb"], indirect=True)
    async def test_a_row_that_is_longer_than_a_packet_is_refused_by_name(self, database: Database) -> None:
        with pytest.raises(DatabaseError, match="max_allowed_packet"):
            await database.run(insertion("things", COLUMNS, [(1, bytes(9 << 20), "", 1)]))
        await database.run(insert_one)
        assert await count_of(database) == 1
