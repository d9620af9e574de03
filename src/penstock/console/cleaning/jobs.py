"""Cleaning jobs: the console's own history, and old messages, idle groups and stale metadata of clusters.

Each job has a schedule that can be changed, says what it removed, and can be run at once. One job runs at a time. A job
that is not enabled runs only when an admin starts it: a schedule removes nothing from a cluster unless an admin has
switched it on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.background_loop import run_forever
from penstock.clock import Clock
from penstock.console.cleaning.removed import Removed
from penstock.console.errors import ConflictError, MissingError
from penstock.console.state.rules import EventStore, RuleStore
from penstock.errors import PenstockError
from penstock.logs import fields

logger = logging.getLogger(__name__)

_KIND = "job"
_LOOK_S = 10.0
_MAX_PROBLEM = 2_000
_HOUR_MS = 3_600_000
_MAX_WHAT = 100
"""A run remembers so many of the things that it removed."""

Work = Callable[[dict[str, int]], Awaitable[Removed]]


@dataclass(frozen=True, slots=True)
class JobDefinition:
    """What a job does; `work` gets the job's options and gives what it removed."""

    name: str
    doc: str
    work: Work
    every_ms: int = _HOUR_MS
    is_enabled: bool = True
    options: tuple[tuple[str, int], ...] = ()
    """Names and defaults."""
    is_destructive: bool = False
    """Whether it deletes what is in clusters, for good."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run."""

    at_ms: int
    ended_ms: int | None
    removed: int
    problem: str
    by: str
    what: tuple[str, ...] = ()
    """What was removed, as far as it is remembered; of the console's own history only the count."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job with its schedule and its last run."""

    name: str
    doc: str
    every_ms: int
    is_enabled: bool
    options: dict[str, int]
    is_running: bool
    last: JobRun | None
    next_ms: int | None
    """None if it is not enabled."""
    is_destructive: bool = False
    """Whether it deletes what is in clusters, for good."""


class Jobs:
    """Runs jobs when they are due."""

    def __init__(
        self,
        definitions: list[JobDefinition],
        rules: RuleStore,
        events: EventStore,
        kept_runs: int,
        clock: Clock,
    ) -> None:
        self._definitions = {each.name: each for each in definitions}
        self._rules = rules
        self._events = events
        self._kept_runs = kept_runs
        self._clock = clock
        self._running: str | None = None
        self._started_ms = clock.now_ms()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(run_forever("jobs", self._step), name="jobs")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def list(self) -> tuple[Job, ...]:
        changed = {name: body for _, name, body in await self._rules.list(_KIND)}
        return tuple([await self._job(each, changed.get(each.name, {})) for each in self._definitions.values()])

    async def find(self, name: str) -> Job:
        found = next((job for job in await self.list() if job.name == name), None)
        if found is None:
            raise MissingError(f"there is no job {name}; there are {', '.join(self._definitions)}")
        return found

    async def alter(self, name: str, every_ms: int, is_enabled: bool, options: dict[str, int]) -> tuple[Job, Job]:
        before = await self.find(name)
        if unknown := set(options) - set(before.options):
            raise MissingError(f"the job {name} has no option {min(unknown)}; nothing was changed")
        body: dict[str, Any] = {
            "every_ms": every_ms,
            "is_enabled": is_enabled,
            "options": {**before.options, **options},
        }
        stored = {known: id for id, known, _ in await self._rules.list(_KIND)}
        if name in stored:
            await self._rules.alter(_KIND, stored[name], name, body)
        else:
            await self._rules.add(_KIND, name, body)
        return before, await self.find(name)

    async def runs(self, name: str, limit: int) -> tuple[JobRun, ...]:
        await self.find(name)
        return tuple(
            _run(each.at_ms, each.ended_ms, each.body)
            for each in await self._events.list(_KIND, rule=name, limit=limit)
        )

    async def run(self, name: str, by: str) -> JobRun:
        """Runs a job now; ConflictError while another one runs."""
        job = await self.find(name)
        if self._running is not None:
            raise ConflictError(f"the job {self._running} runs; nothing was started")
        self._running = name
        at_ms = self._clock.now_ms()
        body: dict[str, Any] = {"removed": 0, "problem": "", "by": by, "what": []}
        try:
            event = await self._events.begin(_KIND, name, body)
            try:
                done = await self._definitions[name].work(job.options)
                body["removed"], body["what"] = done.count, done.what[:_MAX_WHAT]
                body["problem"] = "; ".join(done.problems)[:_MAX_PROBLEM]
            except PenstockError as error:
                body["problem"] = str(error)
            await self._events.end(event, body)
            await self._events.keep_newest(_KIND, name, self._kept_runs)
        finally:
            self._running = None
        logger.info("a job has run", extra=fields(job=name, removed=body["removed"], problem=body["problem"]))
        return _run(at_ms, self._clock.now_ms(), body)

    async def _step(self) -> None:
        for job in await self.list():
            if job.next_ms is not None and self._clock.now_ms() >= job.next_ms and self._running is None:
                await self.run(job.name, "schedule")
        await asyncio.sleep(_LOOK_S)

    async def _job(self, definition: JobDefinition, changed: dict[str, Any]) -> Job:
        every_ms = int(changed.get("every_ms", definition.every_ms))
        is_enabled = bool(changed.get("is_enabled", definition.is_enabled))
        found = await self._events.list(_KIND, rule=definition.name, limit=1)
        last = _run(found[0].at_ms, found[0].ended_ms, found[0].body) if found else None
        next_ms = (self._started_ms if last is None else last.at_ms) + every_ms
        return Job(
            name=definition.name,
            doc=definition.doc,
            every_ms=every_ms,
            is_enabled=is_enabled,
            options={**dict(definition.options), **changed.get("options", {})},
            is_running=self._running == definition.name,
            last=last,
            next_ms=next_ms if is_enabled else None,
            is_destructive=definition.is_destructive,
        )


def _run(at_ms: int, ended_ms: int | None, body: dict[str, Any]) -> JobRun:
    what = tuple(str(each) for each in body.get("what", ()))
    return JobRun(at_ms, ended_ms, int(body["removed"]), str(body["problem"]), str(body["by"]), what)
