"""Operations on cleaning jobs: schedule, last and next run, what it removed, run now."""

from __future__ import annotations

from penstock.console.cleaning.jobs import Job, JobRun, Jobs
from penstock.console.operations.operation import Changed, Scope, Service, change, query
from penstock.console.security.roles import Caller, Role
from penstock.console.state.audit import AuditLog


class JobOperations(Service):
    """Cleaning jobs."""

    def __init__(self, audit: AuditLog, jobs: Jobs) -> None:
        super().__init__(audit)
        self._jobs = jobs

    @query("jobs.list", Role.VIEWER, Scope.CONSOLE)
    async def list(self, caller: Caller) -> tuple[Job, ...]:
        return await self._jobs.list()

    @query("jobs.runs", Role.VIEWER, Scope.CONSOLE)
    async def runs(self, caller: Caller, name: str, limit: int = 100) -> tuple[JobRun, ...]:
        """The newest first."""
        return await self._jobs.runs(name, limit)

    @change("jobs.alter", Role.ADMIN, Scope.CONSOLE)
    async def alter(
        self, caller: Caller, name: str, every_ms: int, is_enabled: bool, options: dict[str, int] | None = None
    ) -> Changed[Job]:
        before, after = await self._jobs.alter(name, every_ms, is_enabled, options or {})
        return Changed(after, before, after)

    @change("jobs.run", Role.ADMIN, Scope.CONSOLE)
    async def run(self, caller: Caller, name: str) -> Changed[JobRun]:
        done = await self._jobs.run(name, caller.name)
        return Changed(done, None, {"removed": done.removed}, done.problem)
