"""The loop of the tasks that keep the metadata tables true: whatever the database does, only the copy is late.

A writer that finds a table missing has it made again, with all its rows. Once a minute the writer compares everything:
a person may have changed something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from penstock.background_loop import run_forever
from penstock.clock import Clock
from penstock.errors import StorageError
from penstock.logs import fields
from penstock.sql import migrations
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, DatabaseError, Duplicate, SchemaChanged
from penstock.storage.sql.metadata_tables import METADATA

logger = logging.getLogger(__name__)

WRITE_S = 0.3
_SHARE = 4
"""So many times as long as a write took is the pause after it, at least."""
_COMPARE_MS = 60_000
_AFTER_FAILURE_S = 1.0
_LONGEST_PAUSE_S = 5.0
_TIMEOUT_MS = 5000

T = TypeVar("T")


class CopyLoop:
    """Calls `write` a few times a second. Its parameter says whether to compare everything that is stored."""

    def __init__(self, name: str, database: Database, write: Callable[[bool], Awaitable[None]], clock: Clock) -> None:
        self._name = name
        self._database = database
        self._write = write
        self._clock = clock
        self._has_tables = False
        self._is_table_missing = False
        self._compare_at_ms = 0.0
        self._failure = ""
        """What was said last of what goes wrong."""
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        work = run_forever(self._name, self._step)
        self._loop = asyncio.get_running_loop().create_task(work, name=self._name)

    async def close(self) -> None:
        """The next broker that compares writes what is missing."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])

    async def run(self, work: Callable[[Connection], T], *, is_read_only: bool = False) -> T:
        """One transaction."""
        return await self._database.run(work, is_read_only=is_read_only, timeout_ms=_TIMEOUT_MS)

    async def _step(self) -> None:
        began_ms = self._clock.monotonic_ms()
        pause_s = WRITE_S
        try:
            await self._make_tables()
            must_compare = began_ms >= self._compare_at_ms
            await self._write(must_compare)
            if must_compare:
                self._compare_at_ms = began_ms + _COMPARE_MS
            self._failure = ""
        except (Contended, Duplicate):
            pass  # another client is writing
        except (DatabaseError, StorageError) as error:
            if self._failure != str(error):
                self._failure = str(error)
                logger.warning(
                    "metadata tables cannot be written; they lag until the database takes writes",
                    extra=fields(tables=self._name, reason=str(error)),
                )
            if isinstance(error, SchemaChanged):
                self._has_tables, self._is_table_missing = False, True
            pause_s = _AFTER_FAILURE_S
        took_s = (self._clock.monotonic_ms() - began_ms) / 1000
        await asyncio.sleep(max(pause_s, min(_SHARE * took_s, _LONGEST_PAUSE_S)))

    async def _make_tables(self) -> None:
        if self._has_tables:
            return
        if self._is_table_missing:
            work = partial(migrations.perform, component=METADATA, is_from_first=True)
            await self._database.run_ddl(work)
        else:
            await migrations.migrate(self._database, METADATA)
        self._has_tables, self._is_table_missing = True, False
        self._compare_at_ms = 0.0
