"""A database in which nothing can be appended for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.sql.database import Connection, Database
from support.waiting import PATIENCE_S


@asynccontextmanager
async def locked_rows(database: Database, *tables: str) -> AsyncIterator[None]:
    """Holds the locks of these logs' rows in `queue`, by default of all: nobody can append meanwhile."""
    which = f" WHERE table_name IN ({', '.join('?' * len(tables))})" if tables else ""
    loop = asyncio.get_running_loop()
    is_locked, is_over = asyncio.Event(), asyncio.Event()

    def hold(connection: Connection) -> None:
        connection.change(f"UPDATE queue SET topic = topic{which}", *tables)
        loop.call_soon_threadsafe(is_locked.set)
        asyncio.run_coroutine_threadsafe(is_over.wait(), loop).result(PATIENCE_S)

    holding = asyncio.create_task(database.run(hold))
    await is_locked.wait()
    try:
        yield
    finally:
        is_over.set()
        await holding
