"""What every database does alike: transactions, counts, values, many rows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, DatabaseError, Duplicate, SchemaChanged, Unreachable
from support.stores import SERVERS

from .conftest import COLUMNS, OpenDatabase, change, insertion, query

ALL_BYTES = bytes(range(256))
Row = tuple[int, bytes | None, str | None, int | None]


async def rows_of(database: Database) -> list[Row]:
    def read(connection: Connection) -> list[Row]:
        return connection.execute("SELECT id, body, name, small FROM things ORDER BY id")

    return await database.run(read, is_read_only=True)


class TestTransaction:
    async def test_it_is_committed_when_the_work_returns(self, database: Database) -> None:
        def work(connection: Connection) -> str:
            connection.insert("things", COLUMNS, [(1, b"1", "one", 1)])
            connection.change("UPDATE things SET small = ? WHERE id = ?", 2, 1)
            return "done"

        assert await database.run(work) == "done"
        assert await rows_of(database) == [(1, b"1", "one", 2)]

    async def test_it_is_rolled_back_when_the_work_raises(self, database: Database) -> None:
        def work(connection: Connection) -> None:
            connection.insert("things", COLUMNS, [(1, b"1", "one", 1)])
            raise KeyError("changed my mind")

        with pytest.raises(KeyError, match="changed my mind"):
            await database.run(work)
        assert await rows_of(database) == []

    async def test_it_is_rolled_back_when_a_statement_failed_even_if_the_work_goes_on(self, database: Database) -> None:
        def work(connection: Connection) -> None:
            connection.insert("things", COLUMNS, [(1, b"1", "one", 1)])
            with suppress(Duplicate):
                connection.change("INSERT INTO things (id) VALUES (1)")

        with pytest.raises(Duplicate):
            await database.run(work)
        assert await rows_of(database) == []

    async def test_tables_are_not_said_to_be_made_when_a_statement_has_failed(self, database: Database) -> None:
        def work(connection: Connection) -> None:
            connection.execute("CREATE TABLE made (id INTEGER)")
            with suppress(SchemaChanged):
                connection.execute("SELECT id FROM absent")

        with pytest.raises(SchemaChanged):
            await database.run_ddl(work)

    async def test_what_is_not_committed_is_not_seen_and_what_is_committed_is_seen_by_the_next_statement(
        self, database: Database
    ) -> None:
        inserted, read = threading.Event(), threading.Event()

        def write(connection: Connection) -> None:
            connection.insert("things", COLUMNS, [(1, b"1", "one", 1)])
            inserted.set()
            assert read.wait(20)

        writing = asyncio.create_task(database.run(write))
        await asyncio.to_thread(inserted.wait, 20)
        assert await rows_of(database) == []
        read.set()
        await writing
        assert len(await rows_of(database)) == 1

    async def test_a_cancelled_caller_leaves_no_half_transaction(self, database: Database) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def work(connection: Connection) -> None:
            connection.insert("things", COLUMNS, [(1, None, None, None)])
            begun.set()
            assert go_on.wait(20)
            connection.insert("things", COLUMNS, [(2, None, None, None)])

        calling = asyncio.create_task(database.run(work))
        await asyncio.to_thread(begun.wait, 20)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        go_on.set()
        # Closing waits for what is under way.
        await database.close()
        again = await Database.open(database.address)
        assert [row[0] for row in await rows_of(again)] == [1, 2]
        await again.close()

    async def test_there_are_never_more_connections_than_allowed_and_who_finds_none_free_is_told_in_time(
        self, address: DatabaseAddress, open_database: OpenDatabase
    ) -> None:
        database = await open_database(address, connections=2)
        go_on, running = threading.Event(), threading.Semaphore(0)

        def hold(connection: Connection) -> None:
            running.release()
            assert go_on.wait(20)

        holding = [asyncio.create_task(database.run(hold, is_read_only=True)) for _ in range(2)]
        for _ in holding:
            assert await asyncio.to_thread(running.acquire, True, 20)
        with pytest.raises(Unreachable, match="no connection was free for 50 ms; nothing was sent") as caught:
            await database.run(hold, is_read_only=True, timeout_ms=50)
        assert not caught.value.is_outcome_unknown
        waiting = asyncio.create_task(database.run(lambda connection: "served", is_read_only=True))
        go_on.set()
        assert await waiting == "served"
        await asyncio.gather(*holding)

    async def test_a_closed_database_takes_no_work(self, database: Database) -> None:
        await database.close()
        await database.close()
        with pytest.raises(Unreachable, match="closed"):
            await database.run(lambda connection: None)

    async def test_the_loop_is_free_while_a_thread_waits(self, database: Database) -> None:
        ticked = threading.Event()
        asyncio.get_running_loop().call_later(0.01, ticked.set)
        assert await database.run(lambda connection: ticked.wait(20))

    async def test_tables_can_be_made_by_many_at_once(self, database: Database) -> None:
        dialect = database.dialect

        def create(connection: Connection) -> None:
            for statement in dialect.create_table(
                "shared",
                [("id", dialect.auto_id), ("key_part", dialect.key_bytes(32)), ("name", dialect.varchar(100))],
                primary_key=["id"],
                indexes=["key_part", "name"],
                is_updated_often=True,
            ):
                connection.execute(statement)

        await asyncio.gather(*(database.run_ddl(create) for _ in range(4)))
        await database.run(insertion("shared", ["key_part"], [(b"a",), (b"b",)]))
        found = await database.run(query("SELECT id, key_part FROM shared ORDER BY id"))
        assert found == [(1, b"a"), (2, b"b")]


class TestValues:
    async def test_every_value_comes_back_as_it_was_given(self, database: Database) -> None:
        text = "plain, 'quoted', \"double\", back\\slash, %s, ?, new\nline, ü, 汉字, 😀, 𝄞"
        rows: list[Row] = [
            (0, ALL_BYTES, text, 32_767),
            (1, b"", "", -32_768),
            (2, None, None, None),
            (2**63 - 1, ALL_BYTES * 300, "x" * 255, 0),
            (-(2**63), b"\0", "😀" * 255, 0),
        ]
        await database.run(insertion("things", COLUMNS, rows))
        assert await rows_of(database) == sorted(rows)
        await database.run(change("DELETE FROM things"))

        def one_by_one(connection: Connection) -> None:
            for row in rows:
                connection.change("INSERT INTO things (id, body, name, small) VALUES (?, ?, ?, ?)", *row)

        await database.run(one_by_one)
        assert await rows_of(database) == sorted(rows)
        for row in rows[:2]:
            found = await database.run(query("SELECT id FROM things WHERE name = ?", row[2]))
            assert found == [(row[0],)]

    async def test_texts_are_compared_by_their_bytes(self, database: Database) -> None:
        names = ["a", "A", "ä", "ae"]
        await database.run(insertion("things", COLUMNS, [(at, None, name, 0) for at, name in enumerate(names)]))
        for at, name in enumerate(names):
            found = await database.run(query("SELECT id FROM things WHERE name = ?", name))
            assert found == [(at,)]

    async def test_a_question_mark_in_a_text_and_a_percent_sign_are_what_they_are(self, database: Database) -> None:
        found = await database.run(query("SELECT '?', '''?', 7 % 4, CAST(? AS CHAR(9)), '100 %'", "x"))
        assert [str(value).strip() for value in found[0]] == ["?", "'?", "3", "x", "100 %"]
        assert await database.run(query("SELECT '100 %'")) == [("100 %",)]

    @pytest.mark.parametrize("count", [1, 15, 16, 501, 10_000])
    async def test_many_rows_are_inserted_at_once(self, database: Database, count: int) -> None:
        rows: list[Row] = [(at, ALL_BYTES[: at % 256], f"name {at}", at % 100) for at in range(count)]
        await database.run(insertion("things", COLUMNS, rows))
        assert await rows_of(database) == rows

    async def test_no_rows_are_no_work(self, database: Database) -> None:
        def work(connection: Connection) -> None:
            connection.insert("things", COLUMNS, [])
            connection.upsert("things", ["id"], COLUMNS, [])

        await database.run(work)
        assert await rows_of(database) == []

    async def test_rows_of_many_megabytes_are_inserted(self, database: Database) -> None:
        rows: list[Row] = [(at, ALL_BYTES * 4096 * 3, None, None) for at in range(8)]
        await database.run(insertion("things", COLUMNS, rows))
        assert await rows_of(database) == rows

    async def test_upsert_inserts_what_is_new_replaces_what_is_there_and_leaves_other_columns(
        self, database: Database
    ) -> None:
        await database.run(insertion("things", COLUMNS, [(at, b"old", "kept", 1) for at in range(3)]))
        changes = [(at, b"new") for at in range(1, 1002)] + [(1, b"first"), (1, b"last")]
        await database.run(lambda connection: connection.upsert("things", ["id"], ["id", "body"], changes))
        found = {row[0]: row for row in await rows_of(database)}
        assert found[0] == (0, b"old", "kept", 1)
        assert found[1] == (1, b"last", "kept", 1)
        assert found[2] == (2, b"new", "kept", 1)
        assert found[1001] == (1001, b"new", None, None)
        assert len(found) == 1002
        await database.run(lambda connection: connection.upsert("things", ["id"], ["id"], [(1,), (2000,)]))
        assert len(await rows_of(database)) == 1003

    async def test_rows_that_were_found_count_whether_they_change_or_not(self, database: Database) -> None:
        await database.run(insertion("things", COLUMNS, [(at, None, None, 5) for at in range(3)]))

        for sql, count in [
            ("UPDATE things SET small = 5 WHERE id < 2", 2),
            ("UPDATE things SET small = 6 WHERE id < 2", 2),
            ("UPDATE things SET small = 6 WHERE id > 5", 0),
            ("DELETE FROM things WHERE id = 0", 1),
            ("INSERT INTO things (id) VALUES (8), (9)", 2),
        ]:
            assert await database.run(change(sql)) == count

    async def test_the_clock_of_the_database_goes_on_inside_a_transaction(self, database: Database) -> None:
        def read(connection: Connection) -> tuple[int, int]:
            first = connection.execute(f"SELECT {connection.dialect.now_us}")[0][0]
            time.sleep(0.01)
            return first, connection.execute(f"SELECT {connection.dialect.now_us}")[0][0]

        first, second = await database.run(read)
        assert second > first
        # The server runs on this machine.
        assert abs(first / 1e6 - time.time()) < 60

    async def test_a_name_that_the_database_would_cut_off_is_refused(self, database: Database) -> None:
        longest = "x" * database.dialect.max_identifier
        assert longest in database.dialect.quoted(longest)
        for name in (longest + "x", "", "a\0"):
            with pytest.raises(ValueError):
                database.dialect.quoted(name)

    async def test_a_name_with_quotes_is_a_name(self, database: Database) -> None:
        odd, dialect = "a\"b`c'd%s?", database.dialect

        def work(connection: Connection) -> list[tuple[int]]:
            connection.insert(odd, ["id"], [(at,) for at in range(20)])
            connection.upsert(odd, ["id"], ["id"], [(20,)])
            return connection.execute(f"SELECT COUNT(*) FROM {dialect.quoted('plain')}")

        await database.run_ddl(
            lambda connection: [
                connection.execute(statement)
                for name in (odd, "plain")
                for statement in dialect.create_table(name, [("id", dialect.big_integer)], primary_key=["id"])
            ]
        )
        assert await database.run(work) == [(0,)]


class TestRefusals:
    async def test_a_row_that_is_there_is_a_duplicate_and_nothing_of_the_transaction_stays(
        self, database: Database
    ) -> None:
        await database.run(insertion("things", COLUMNS, [(1, b"first", None, None)]))

        def work(connection: Connection) -> None:
            connection.insert("things", COLUMNS, [(at, b"second", None, None) for at in range(20, 0, -1)])

        with pytest.raises(Duplicate):
            await database.run(work)
        assert await rows_of(database) == [(1, b"first", None, None)]

    async def test_a_missing_table_or_column_is_named(self, database: Database) -> None:
        for sql in ("SELECT id FROM absent", "INSERT INTO absent (id) VALUES (1)"):
            with pytest.raises(SchemaChanged, match="absent"):
                await database.run(query(sql))
        for name in ("nowhere", database.dialect.quoted("nowhere")):
            with pytest.raises(SchemaChanged, match="nowhere"):
                await database.run(query(f"SELECT {name} FROM things"))
        for count in (1, 100):
            rows = [(at,) for at in range(count)]
            with pytest.raises(SchemaChanged, match="absent"):
                await database.run(insertion("absent", ["id"], rows))
            with pytest.raises(SchemaChanged, match="nowhere"):
                await database.run(insertion("things", ["nowhere"], rows))
        assert await rows_of(database) == []

    async def test_a_statement_that_is_none_is_an_error_that_names_the_database(self, database: Database) -> None:
        with pytest.raises(DatabaseError) as caught:
            await database.run(query("SELEKT 1"))
        assert type(caught.value) is DatabaseError
        assert not caught.value.is_outcome_unknown
        assert str(database.address) in str(caught.value)
        assert "penstock:penstock" not in str(caught.value)

    async def test_who_waits_too_long_for_a_lock_is_told_that_others_hold_it(
        self, address: DatabaseAddress, database: Database, open_database: OpenDatabase
    ) -> None:
        await database.run(insertion("things", COLUMNS, [(1, None, None, 0)]))
        impatient = await open_database(address, timeout_ms=3_000)
        locked, go_on = threading.Event(), threading.Event()

        def hold(connection: Connection) -> None:
            connection.change("UPDATE things SET small = 1 WHERE id = 1")
            locked.set()
            assert go_on.wait(20)

        holding = asyncio.create_task(database.run(hold))
        await asyncio.to_thread(locked.wait, 20)
        with pytest.raises(Contended) as caught:
            await impatient.run(change("UPDATE things SET small = 2 WHERE id = 1"))
        assert not caught.value.is_outcome_unknown
        go_on.set()
        await holding
        assert (await rows_of(database))[0][3] == 1
        # The connection is as good as before.
        assert await impatient.run(change("UPDATE things SET small = 2")) == 1

    @pytest.mark.parametrize("address", SERVERS, indirect=True)
    async def test_one_that_does_nothing_in_a_transaction_keeps_its_locks_no_longer_than_the_time_limit(
        self, address: DatabaseAddress, database: Database, open_database: OpenDatabase
    ) -> None:
        """As a process does that is stopped: nothing on its side ends the transaction."""
        await database.run(insertion("things", COLUMNS, [(1, None, None, 0)]))
        stopped = await open_database(address, timeout_ms=2_000)
        locked, go_on = threading.Event(), threading.Event()

        def hold(connection: Connection) -> None:
            connection.change("UPDATE things SET small = 1 WHERE id = 1")
            locked.set()
            assert go_on.wait(30)
            connection.change("UPDATE things SET small = 2 WHERE id = 1")

        holding = asyncio.create_task(stopped.run(hold, timeout_ms=60_000))
        await asyncio.to_thread(locked.wait, 20)
        assert await database.run(change("UPDATE things SET small = 3 WHERE id = 1")) == 1
        go_on.set()
        with pytest.raises(Unreachable) as caught:
            await holding
        assert not caught.value.is_outcome_unknown
        assert (await rows_of(database))[0][3] == 3

    @pytest.mark.parametrize("address", SERVERS, indirect=True)
    async def test_of_two_in_a_deadlock_one_is_told_and_the_other_goes_on(self, database: Database) -> None:
        await database.run(insertion("things", COLUMNS, [(at, None, None, 0) for at in (1, 2)]))
        both = threading.Barrier(2)

        def cross(first: int, second: int, mark: int) -> Callable[[Connection], None]:
            def work(connection: Connection) -> None:
                connection.change("UPDATE things SET small = ? WHERE id = ?", mark, first)
                both.wait(20)
                connection.change("UPDATE things SET small = ? WHERE id = ?", mark, second)

            return work

        results = await asyncio.gather(
            database.run(cross(1, 2, 7)), database.run(cross(2, 1, 8)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["Contended", "NoneType"]
        winner = 7 if results[0] is None else 8
        assert {row[3] for row in await rows_of(database)} == {winner}

    async def test_a_work_that_takes_longer_than_its_time_commits_nothing(self, database: Database) -> None:
        def work(connection: Connection) -> None:
            connection.insert("things", COLUMNS, [(1, None, None, None)])
            time.sleep(0.3)

        with pytest.raises(Unreachable, match="100 ms") as caught:
            await database.run(work, timeout_ms=100)
        assert not caught.value.is_outcome_unknown
        assert await rows_of(database) == []

    @pytest.mark.parametrize("address", ["sqlite"], indirect=True)
    async def test_a_query_of_sqlite_that_takes_longer_than_its_time_is_ended(self, database: Database) -> None:
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n"
        with pytest.raises(Unreachable, match="no answer within 200 ms"):
            await database.run(query(endless), is_read_only=True, timeout_ms=200)
        assert await rows_of(database) == []
