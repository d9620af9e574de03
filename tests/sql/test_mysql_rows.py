"""Rows of MySQL as our own loop reads them, beside what the driver makes of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.sql.dialects.mysql_rows import RowConnection
from support.stores import MariaDbProcess, NewDatabase
from support.waiting import until

EVERY_TYPE = """
    SELECT NULL, 0, -1, 18446744073709551615, 1.5, CAST(2.25 AS DOUBLE), TRUE, '', 'plain', 'grüße 😀', x'00ff80',
        CAST('text' AS BINARY), DATE '2026-02-28', TIMESTAMP '2026-02-28 12:00:00.123456', TIME '01:02:03', b'101',
        JSON_OBJECT('a', 1), REPEAT('a', 250), REPEAT('b', 251), REPEAT('c', 65535), REPEAT(x'ff', 65536)
"""
MANY = "SELECT seq, IF(seq % 3, NULL, REPEAT('x', seq)) FROM seq_1_to_700"
NOTHING = "SELECT 1 FROM DUAL WHERE 1 = 0"
LARGER_THAN_A_PACKET = "SELECT 1, REPEAT(x'ab', 12000000), REPEAT('c', 12000000), 2 UNION ALL SELECT 3, 'small', '', 4"
EXACTLY_A_PACKET = f"SELECT REPEAT('x', {0xFFFFFF - 4})"


def connect(kind: type[Any], url: str) -> Any:
    at = DatabaseAddress.parse(url)
    return kind(host=at.host, port=at.port, user=at.user, password=at.password, database=at.database)


def found(kind: type[Any], url: str, statement: str) -> Any:
    connection = connect(kind, url)
    try:
        with connection.cursor() as cursor:
            count = cursor.execute(statement)
            # The connection must be as good as before.
            rows = [tuple(row) for row in cursor.fetchall()]
            cursor.execute("SELECT 'after'")
            return count, rows, [tuple(row) for row in cursor.fetchall()]
    finally:
        connection.close()


@pytest.mark.parametrize("statement", [EVERY_TYPE, MANY, NOTHING, LARGER_THAN_A_PACKET, EXACTLY_A_PACKET])
def test_rows_are_those_of_the_driver(statement: str, mariadb: MariaDbProcess, new_database: NewDatabase) -> None:
    url = new_database("mariadb")
    mariadb.administer("SET GLOBAL max_allowed_packet = 67108864")
    try:
        assert found(RowConnection, url, statement) == found(pymysql.Connection, url, statement)
    finally:
        mariadb.administer("SET GLOBAL max_allowed_packet = DEFAULT")


def test_an_error_behind_the_first_rows_is_raised(new_database: NewDatabase) -> None:
    statement = "SET STATEMENT max_statement_time = 0.3 FOR SELECT seq, SLEEP(seq > 500) FROM seq_1_to_1000"
    with pytest.raises(pymysql.Error) as caught:
        found(RowConnection, new_database("mariadb"), statement)
    assert caught.value.args[0] in (1969, 3024)


def test_a_connection_that_is_killed_behind_the_first_rows_is_lost(
    mariadb: MariaDbProcess, new_database: NewDatabase
) -> None:
    connection = connect(RowConnection, new_database("mariadb"))

    def is_asleep() -> bool:
        states = mariadb.administer(f"SELECT state FROM information_schema.processlist WHERE id = {number}")
        return states == [("User sleep",)]

    def kill() -> None:
        until(is_asleep, "the query sleeps")
        mariadb.administer(f"KILL {number}")

    with connection.cursor() as cursor, ThreadPoolExecutor(1) as threads:
        cursor.execute("SELECT CONNECTION_ID()")
        ((number,),) = cursor.fetchall()
        killing = threads.submit(kill)
        with pytest.raises(pymysql.OperationalError) as caught:
            cursor.execute("SELECT seq, REPEAT('x', 100000), SLEEP(IF(seq = 50, 60, 0)) FROM seq_1_to_100")
        killing.result()
    assert caught.value.args[0] in (1317, 1927, 2006, 2013)
