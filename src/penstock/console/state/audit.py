"""The audit log: who did what, when, from where, with what result. The console only adds to it.

An entry of a change is written before the change begins (`started`) and completed once it is over, so a console that
dies half-way leaves a trace. Nothing else changes an entry; only the cleaning job removes those that are too old.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from penstock.admin import Page, TopicPartition
from penstock.clock import Clock
from penstock.console.security.roles import Caller
from penstock.console.state.tables import AUDIT, MAX_ADDRESS, MAX_NAME, first_id_at, new_id
from penstock.logs import fields
from penstock.sql.database import Connection, Database

if TYPE_CHECKING:
    from penstock.console.operations.operation import Operation

logger = logging.getLogger(__name__)

_COLUMNS = (
    "id",
    "at",
    "user_name",
    "via",
    "address",
    "operation",
    "cluster",
    "resource",
    "params",
    "before_value",
    "after_value",
    "outcome",
    "problem",
)
_LISTED = ", ".join(_COLUMNS)
_MAX_TEXT = 16_384
"""Characters of one field; the rest is cut."""
_MAX_RESOURCE = 300
_PAGE = 1000
HIDDEN = "(hidden)"


class Outcome(Enum):
    """How it ended."""

    STARTED = "started"
    DONE = "done"
    PARTIAL = "partial"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the log; `params`, `before` and `after` are JSON texts, empty if there is nothing to say."""

    id: str
    at_ms: int
    user: str
    via: str
    address: str
    operation: str
    cluster: str
    resource: str
    params: str
    before: str
    after: str
    outcome: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries: those that match everything that is set."""

    user: str | None = None
    operation: str | None = None
    """A prefix: `topics.` means all operations on topics."""
    cluster: str | None = None
    resource: str | None = None
    outcome: str | None = None
    text: str | None = None
    """In resource, parameters or problem."""
    since_ms: int | None = None
    until_ms: int | None = None


class AuditLog:
    """Writes and reads entries."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def begin(self, operation: Operation, caller: Caller, asked: Mapping[str, object]) -> str:
        """Writes that a change begins; gives the id of the entry."""
        return await self._add(operation, caller, asked, Outcome.STARTED)

    async def record(self, operation: Operation, caller: Caller, asked: Mapping[str, object]) -> None:
        """Writes that messages were looked at."""
        await self._add(operation, caller, asked, Outcome.DONE)

    async def refuse(self, operation: Operation, caller: Caller, asked: Mapping[str, object]) -> None:
        await self._add(operation, caller, asked, Outcome.REFUSED, "the caller's role does not allow it")

    async def sign_in(
        self, user: str, address: str, outcome: Outcome, problem: str = "", how: str = "password"
    ) -> None:
        """Writes that a user signed in, or failed to."""
        now_ms = self._clock.now_ms()
        await self._insert(
            AuditEntry(
                new_id(self._clock), now_ms, user, how, address, "session.sign_in", "", "", "", "", "",
                outcome.value, problem,
            )
        )  # fmt: skip

    async def finish(self, entry: str, before: object, after: object, problem: str) -> None:
        outcome = Outcome.PARTIAL if problem else Outcome.DONE
        await self._complete(entry, outcome, _text(before), _text(after), problem)

    async def fail(self, entry: str, problem: str) -> None:
        await self._complete(entry, Outcome.FAILED, "", "", problem)

    async def page(self, wanted: AuditFilter, limit: int = 100, after: str | None = None) -> Page[AuditEntry]:
        """Entries, the newest first."""
        limit = min(limit, _PAGE)
        conditions, params = _conditions(wanted)
        if after is not None:
            conditions.append("id < ?")
            params.append(after)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""

        def read(connection: Connection) -> list[AuditEntry]:
            rows = connection.execute(
                f"SELECT {_LISTED} FROM {AUDIT}{where} ORDER BY id DESC LIMIT {limit + 1}", *params
            )
            return [AuditEntry(*row) for row in rows]

        found = await self._database.run(read, is_read_only=True)
        return Page(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    async def all(self, wanted: AuditFilter) -> AsyncIterator[AuditEntry]:
        """Every entry that matches, page by page, for exports."""
        after: str | None = None
        while True:
            page = await self.page(wanted, _PAGE, after)
            for entry in page.items:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def remove_before(self, time_ms: int) -> int:
        """For the cleaning job; gives how many were removed."""
        limit = first_id_at(time_ms)
        return await self._database.run(
            lambda connection: connection.change(f"DELETE FROM {AUDIT} WHERE id < ?", limit)
        )

    async def _add(
        self,
        operation: Operation,
        caller: Caller,
        asked: Mapping[str, object],
        outcome: Outcome,
        problem: str = "",
    ) -> str:
        shown = {
            name: HIDDEN if name in operation.hidden else value
            for name, value in asked.items()
            if name not in ("cluster",) and value is not None
        }
        named = (asked.get(each) for each in ("topic", "group", "name", "id", "principal"))
        resource = str(next((each for each in named if each), ""))
        entry = AuditEntry(
            id=new_id(self._clock),
            at_ms=self._clock.now_ms(),
            user=caller.name,
            via=caller.via.value,
            address=caller.address,
            operation=operation.name,
            cluster=str(asked.get("cluster", "")),
            resource=resource,
            params=_text(shown),
            before="",
            after="",
            outcome=outcome.value,
            problem=problem,
        )
        await self._insert(entry)
        return entry.id

    async def _insert(self, entry: AuditEntry) -> None:
        row = (
            entry.id,
            entry.at_ms,
            entry.user[:MAX_NAME],
            entry.via,
            entry.address[:MAX_ADDRESS],
            entry.operation,
            entry.cluster[:64],
            entry.resource[:_MAX_RESOURCE],
            entry.params,
            entry.before,
            entry.after,
            entry.outcome,
            entry.problem[:_MAX_TEXT],
        )
        await self._database.run(lambda connection: connection.insert(AUDIT, _COLUMNS, [row]))
        facts = fields(
            user=entry.user, operation=entry.operation, resource=entry.resource, outcome=entry.outcome, id=entry.id
        )
        logger.info("audit", extra=facts)

    async def _complete(self, entry: str, outcome: Outcome, before: str, after: str, problem: str) -> None:
        statement = (
            f"UPDATE {AUDIT} SET outcome = ?, before_value = ?, after_value = ?, problem = ?"
            f" WHERE id = ? AND outcome = '{Outcome.STARTED.value}'"
        )
        await self._database.run(
            lambda connection: connection.change(statement, outcome.value, before, after, problem[:_MAX_TEXT], entry)
        )


def _conditions(wanted: AuditFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    params: list[Any] = []

    def add(condition: str, *values: object) -> None:
        conditions.append(condition)
        params.extend(values)

    for column, value in (
        ("user_name", wanted.user),
        ("cluster", wanted.cluster),
        ("resource", wanted.resource),
        ("outcome", wanted.outcome),
    ):
        if value is not None:
            add(f"{column} = ?", value)
    if wanted.operation is not None:
        add("operation LIKE ? ESCAPE '!'", f"{_escaped(wanted.operation)}%")
    if wanted.text is not None:
        pattern = f"%{_escaped(wanted.text)}%"
        names = ("resource", "params", "problem")
        any_of = " OR ".join(f"{name} LIKE ? ESCAPE '!'" for name in names)
        add(f"({any_of})", *[pattern] * len(names))
    if wanted.since_ms is not None:
        add("id >= ?", first_id_at(wanted.since_ms))
    if wanted.until_ms is not None:
        add("id < ?", first_id_at(wanted.until_ms))
    return conditions, params


def _escaped(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _text(value: object) -> str:
    if value is None:
        return ""
    text = json.dumps(_plain(value), ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _plain(value: object) -> object:
    """The value as JSON can have it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclass_fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    return str(value)
