"""Statements that are sent together with their COMMIT."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.sql.database import Connection, Database
from penstock.sql.errors import DatabaseError, Duplicate, NullRefused, SchemaChanged

from .conftest import COLUMNS, query

ONE = (1, b"x'; DROP TABLE things; --\x00\xff", "a;b'c\\", 1)
ROWS = "SELECT id, body, name, small FROM things ORDER BY id"


def deferred(*statements: Callable[[Connection], object]) -> Callable[[Connection], None]:
    """A first row at once, and the others deferred."""

    def work(connection: Connection) -> None:
        connection.change("UPDATE things SET small = 7 WHERE id = 0")
        connection.defer()
        for statement in statements:
            statement(connection)

    return work


def insert(*rows: tuple[int, bytes, str, int]) -> Callable[[Connection], object]:
    return lambda connection: connection.insert("things", COLUMNS, rows)


def change(sql: str, *params: object) -> Callable[[Connection], object]:
    return lambda connection: connection.change(sql, *params)


@pytest.fixture
async def things(database: Database) -> Database:
    await database.run_ddl(query("CREATE TABLE counted (total INTEGER NOT NULL)"))
    await database.run(change("INSERT INTO counted (total) VALUES (4)"))
    await database.run(insert((0, b"", "", 0)))
    return database


@pytest.mark.parametrize("count", [1, 3, 400])
async def test_they_are_committed_in_their_order(things: Database, count: int) -> None:
    many = [(number, b"%d" % number, "", 0) for number in range(2, 2 + count)]

    def upsert(connection: Connection) -> None:
        connection.upsert("things", ("id",), COLUMNS, [(1, b"", "again", 3)])

    await things.run(
        deferred(insert(ONE), change("UPDATE things SET small = small + ? WHERE id = ?", 1, 1), insert(*many), upsert)
    )
    found = await things.run(query(ROWS))
    assert found == [(0, b"", "", 7), (1, b"", "again", 3), *many]


async def test_values_are_what_they_were(things: Database) -> None:
    await things.run(deferred(insert(ONE)))
    assert (await things.run(query(ROWS)))[1] == ONE


async def test_nothing_is_committed_without_statements(things: Database) -> None:
    await things.run(deferred())
    assert await things.run(query(ROWS)) == [(0, b"", "", 7)]


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (change("UPDATE counted SET total = CASE WHEN total = ? THEN 9 END", 5), NullRefused),
        (insert(ONE), Duplicate),
        (change("UPDATE absent SET id = 1"), SchemaChanged),
    ],
)
async def test_the_first_that_fails_undoes_all(
    things: Database, refused: Callable[[Connection], object], kind: type[DatabaseError]
) -> None:
    work = deferred(insert(ONE), refused, insert((2, b"", "", 2)))
    for _ in range(2):
        with pytest.raises(kind) as caught:
            await things.run(work)
        assert not caught.value.is_outcome_unknown
        assert await things.run(query(ROWS)) == [(0, b"", "", 0)]
    await things.run(deferred(insert(ONE)))
    assert len(await things.run(query(ROWS))) == 2


@pytest.mark.parametrize("address", ["mariadb", "postgresql"], indirect=True)
async def test_a_change_that_finds_no_row_is_told(things: Database) -> None:
    with pytest.raises(SchemaChanged, match="missing"):
        await things.run(deferred(insert(ONE), change("UPDATE things SET small = 1 WHERE id = 77")))
    await things.run(deferred(change("UPDATE things SET small = 2 WHERE id = 0")))
