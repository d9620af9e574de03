"""Those who look at the partition all the while: consumers of each broker, and one who polls the table."""

from __future__ import annotations

import asyncio

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database
from penstock.sql.errors import DatabaseError
from support.steady_reader import SteadyReader

from .ledger import Row
from .writers import TABLE, TOPIC

_LIMIT = 50
_PAUSE_S = 0.02
_AWAY_S = 0.2


class TablePoller(SteadyReader):
    """Remembers the last id that it has seen, and asks for what comes behind it: no broker is involved."""

    def __init__(self, address: DatabaseAddress) -> None:
        super().__init__("", TOPIC, 1, "the poller of the table")
        self._database = address

    def run(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        database = await Database.open(self._database, connections=1, timeout_ms=5_000, patience_ms=120_000)
        while not self._stop_asked.is_set():
            try:
                rows = await database.run(lambda connection: _rows_behind(connection, self.count), is_read_only=True)
            except DatabaseError:
                await asyncio.sleep(_AWAY_S)
                continue
            for row in rows:
                self.note(0, row.id - 1, row.value)
            if len(rows) < _LIMIT:
                await asyncio.sleep(_PAUSE_S)
        await database.close()


def _rows_behind(connection: Connection, last_id: int, limit: int = _LIMIT) -> list[Row]:
    """In a thread."""
    found = connection.execute(
        f"SELECT id, body, producer_id, producer_epoch FROM {TABLE} WHERE id > ? ORDER BY id LIMIT ?", last_id, limit
    )
    return [Row(number, int(body), producer_id, epoch) for number, body, producer_id, epoch in found]


async def stored(address: DatabaseAddress) -> tuple[list[Row], int]:
    """All rows, and `next_id`."""
    database = await Database.open(address, connections=1)
    try:
        return await database.run(lambda connection: (_rows_behind(connection, 0, 1 << 40), _next_id(connection)))
    finally:
        await database.close()


def _next_id(connection: Connection) -> int:
    ((next_id,),) = connection.execute("SELECT next_id FROM queue WHERE table_name = ?", TABLE)
    found: int = next_id
    return found
