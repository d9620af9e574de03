"""The layout of tables by numbered steps: which of them a database has, and how it gets the others.

    penstock_schema     component, version, applied_at: one row for each step that was performed

Rules:

- A component is a set of tables that belong together. Its version is the number of its last step; 0 is no tables yet.
- A step that was released is never changed: it says what a version is. The next change is another step.
- Every step can be performed again. MySQL has no transactions of definitions, so a crash may leave half a step, and a
  step whose number was not written down is performed a second time.
- A step leaves alone what brokers of the version before use: they run beside those that have performed it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.logs import fields
from penstock.sql.database import Connection, Database
from penstock.sql.errors import SchemaTooNew

logger = logging.getLogger(__name__)

TABLE = "penstock_schema"
_MAX_COMPONENT = 64
_KEY = ("component", "version")
_COLUMNS = (*_KEY, "applied_at")


@dataclass(frozen=True, slots=True)
class Component:
    """Tables that belong together, and the steps that make them, the oldest first."""

    name: str
    steps: tuple[Callable[[Connection], None], ...]

    @property
    def newest(self) -> int:
        return len(self.steps)


async def migrate(database: Database, component: Component) -> None:
    """Performs the steps that the database lacks; SchemaTooNew if it has some that this version does not know."""
    if not await database.run(partial(is_current, component=component), is_read_only=True):
        await database.run_ddl(partial(perform, component=component))


def is_current(connection: Connection, component: Component) -> bool:
    """Whether no step is missing; SchemaTooNew if there are more than the component has."""
    found = version_of(connection, component)
    if found > component.newest:
        raise SchemaTooNew(
            f'the tables of "{component.name}" have version {found}, and this version of Penstock knows'
            f" {component.newest} at most: start a newer one; nothing was changed"
        )
    return found == component.newest


def version_of(connection: Connection, component: Component) -> int:
    if not connection.execute(connection.dialect.find_table, TABLE):
        return 0
    rows = connection.execute(f"SELECT MAX(version) FROM {TABLE} WHERE component = ?", component.name)
    return int(rows[0][0] or 0)


def perform(connection: Connection, component: Component, *, is_from_first: bool = False) -> None:
    """Performs the missing steps, inside of `run_ddl`; only one connection of all brokers does so at a time.

    `is_from_first`: all of them, because a table is missing although its step was performed.
    """
    connection.lock_ddl()
    if is_current(connection, component) and not is_from_first:
        return  # another broker has done it meanwhile
    dialect = connection.dialect
    columns = (
        ("component", f"{dialect.varchar(_MAX_COMPONENT)} NOT NULL"),
        ("version", f"{dialect.big_integer} NOT NULL"),
        ("applied_at", f"{dialect.big_integer} NOT NULL"),
    )
    for statement in dialect.create_table(TABLE, columns, primary_key=_KEY):
        connection.change(statement)
    done = 0 if is_from_first else version_of(connection, component)
    for version, step in enumerate(component.steps[done:], done + 1):
        step(connection)
        now_ms = connection.execute(f"SELECT {dialect.now_us}")[0][0] // 1000
        connection.upsert(TABLE, _KEY, _COLUMNS, [(component.name, version, now_ms)])
        logger.info("migrated tables", extra=fields(component=component.name, version=version))
