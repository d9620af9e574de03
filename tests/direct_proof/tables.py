"""What lies in the tables of the topic and in that of the application, read with plain SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database

from .verdict import TOPIC, Handled, Row

T = TypeVar("T")

_PATIENCE_MS = 120_000
_COUNTED = {"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "postgresql": "BIGSERIAL PRIMARY KEY"}


class ProofTables:
    """Waits for a database that is away."""

    def __init__(self, address: DatabaseAddress, partitions: int) -> None:
        self._address = address
        self._partitions = partitions

    def create(self) -> None:
        """The table of the application."""
        counted = _COUNTED[self._address.dialect.value]
        columns = f"id {counted}, value BIGINT NOT NULL, consumer VARCHAR(50) NOT NULL, late_ms BIGINT NOT NULL"
        self._run(lambda connection: connection.change(f"CREATE TABLE handled ({columns})"), is_ddl=True)

    def handled_count(self) -> int:
        return int(self._run(lambda connection: connection.execute("SELECT COUNT(*) FROM handled"))[0][0])

    def handled(self) -> Sequence[Handled]:
        """In the order in which they were handled: that of one key is the order of the ids."""
        rows = self._run(lambda connection: connection.execute("SELECT value, late_ms FROM handled ORDER BY id"))
        return [Handled(*row) for row in rows]

    def rows(self) -> Sequence[Row]:
        return self._run(
            lambda connection: [row for each in range(self._partitions) for row in _rows(connection, each)]
        )

    def row_count(self) -> int:
        def count(connection: Connection) -> int:
            tables = [f"{TOPIC}_{number}" for number in range(self._partitions)]
            return sum(int(connection.execute(f"SELECT COUNT(*) FROM {table}")[0][0]) for table in tables)

        return self._run(count)

    def _run(self, work: Callable[[Connection], T], *, is_ddl: bool = False) -> T:
        async def run() -> T:
            database = await Database.open(self._address, connections=1, patience_ms=_PATIENCE_MS, timeout_ms=60_000)
            try:
                return await (database.run_ddl(work) if is_ddl else database.run(work, is_read_only=True))
            finally:
                await database.close()

        return asyncio.run(run())


def _rows(connection: Connection, partition: int) -> list[Row]:
    found = connection.execute(
        f"SELECT id, body, producer_id, producer_epoch FROM {TOPIC}_{partition} WHERE body IS NOT NULL ORDER BY id"
    )
    return [Row(partition, number - 1, int(body), producer, epoch) for number, body, producer, epoch in found]
