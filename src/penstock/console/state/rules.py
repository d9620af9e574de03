"""Rules of all kinds (masking, alerts, silences, jobs) as JSON rows, and what happened by them (alerts, runs)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.clock import Clock
from penstock.console.errors import MissingError
from penstock.console.state.tables import EVENTS, RULES, first_id_at, new_id
from penstock.sql.database import Connection, Database

_MAX_NAME = 300
_MAX_RULE = 64
_EVENT_COLUMNS = ("id", "kind", "rule", "at", "ended_at", "body")
RUNNING = 0


class RuleStore:
    """Rules by kind."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list(self, kind: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Id, name and body of each, in the order in which they were added."""
        rows = await self._database.run(
            lambda connection: connection.execute(
                f"SELECT id, name, body FROM {RULES} WHERE kind = ? ORDER BY id", kind
            ),
            is_read_only=True,
        )
        return [(str(id), str(name), json.loads(body)) for id, name, body in rows]

    async def names(self, kind: str) -> Sequence[tuple[str, str]]:
        """Id and name of each, without their bodies, in the order in which they were added."""
        rows = await self._database.run(
            lambda connection: connection.execute(f"SELECT id, name FROM {RULES} WHERE kind = ? ORDER BY id", kind),
            is_read_only=True,
        )
        return [(str(id), str(name)) for id, name in rows]

    async def find(self, kind: str, id: str) -> dict[str, Any] | None:
        """The body of one; None if there is none of this id."""
        rows = await self._database.run(
            lambda connection: connection.execute(f"SELECT body FROM {RULES} WHERE kind = ? AND id = ?", kind, id),
            is_read_only=True,
        )
        return dict(json.loads(rows[0][0])) if rows else None

    async def add(self, kind: str, name: str, body: Mapping[str, Any]) -> str:
        id = new_id(self._clock)
        row = (id, kind, name[:_MAX_NAME], json.dumps(body))
        await self._database.run(lambda connection: connection.insert(RULES, ("id", "kind", "name", "body"), [row]))
        return id

    async def alter(self, kind: str, id: str, name: str, body: Mapping[str, Any]) -> None:
        text = json.dumps(body)
        changed = await self._database.run(
            lambda connection: connection.change(
                f"UPDATE {RULES} SET name = ?, body = ? WHERE kind = ? AND id = ?", name[:_MAX_NAME], text, kind, id
            )
        )
        if not changed:
            raise _missing(kind, id)

    async def remove(self, kind: str, id: str) -> tuple[str, dict[str, Any]]:
        """Name and body of the rule that was removed."""

        def remove(connection: Connection) -> tuple[str, dict[str, Any]]:
            rows = connection.execute(f"SELECT name, body FROM {RULES} WHERE kind = ? AND id = ?", kind, id)
            if not rows:
                raise _missing(kind, id)
            connection.change(f"DELETE FROM {RULES} WHERE kind = ? AND id = ?", kind, id)
            return str(rows[0][0]), json.loads(rows[0][1])

        return await self._database.run(remove)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened by a rule: an alert that fired, a run of a job."""

    id: str
    rule: str
    at_ms: int
    ended_ms: int | None
    """None: it goes on."""
    body: dict[str, Any]


class EventStore:
    """Events by kind, the newest first."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def begin(self, kind: str, rule: str, body: Mapping[str, Any]) -> str:
        id = new_id(self._clock)
        row = (id, kind, rule[:_MAX_RULE], self._clock.now_ms(), RUNNING, json.dumps(body))
        await self._database.run(lambda connection: connection.insert(EVENTS, _EVENT_COLUMNS, [row]))
        return id

    async def end(self, id: str, body: Mapping[str, Any]) -> None:
        now_ms, text = self._clock.now_ms(), json.dumps(body)
        await self._database.run(
            lambda connection: connection.change(
                f"UPDATE {EVENTS} SET ended_at = ?, body = ? WHERE id = ?", now_ms, text, id
            )
        )

    async def list(
        self, kind: str, *, rule: str | None = None, running_only: bool = False, limit: int = 100, after: str = ""
    ) -> list[Event]:
        conditions, params = ["kind = ?"], [kind]
        if rule is not None:
            conditions.append("rule = ?")
            params.append(rule)
        if running_only:
            conditions.append(f"ended_at = {RUNNING}")
        if after:
            conditions.append("id < ?")
            params.append(after)
        statement = (
            f"SELECT id, rule, at, ended_at, body FROM {EVENTS} WHERE {' AND '.join(conditions)}"
            f" ORDER BY id DESC LIMIT {int(limit)}"
        )
        rows = await self._database.run(lambda connection: connection.execute(statement, *params), is_read_only=True)
        return [Event(str(id), str(of), at, ended or None, json.loads(body)) for id, of, at, ended, body in rows]

    async def remove_before(self, kind: str, time_ms: int) -> int:
        """Of those that have ended; gives how many."""
        limit = first_id_at(time_ms)
        return await self._database.run(
            lambda connection: connection.change(
                f"DELETE FROM {EVENTS} WHERE kind = ? AND id < ? AND ended_at <> {RUNNING}", kind, limit
            )
        )

    async def keep_newest(self, kind: str, rule: str, count: int) -> None:
        def trim(connection: Connection) -> None:
            rows = connection.execute(
                f"SELECT id FROM {EVENTS} WHERE kind = ? AND rule = ? ORDER BY id DESC LIMIT {int(count) + 1}",
                kind,
                rule,
            )
            if len(rows) > count:
                connection.change(
                    f"DELETE FROM {EVENTS} WHERE kind = ? AND rule = ? AND id <= ?", kind, rule, rows[-1][0]
                )

        await self._database.run(trim)


def _missing(kind: str, id: str) -> MissingError:
    return MissingError(f"there is no {kind} rule {id}; nothing was changed")
