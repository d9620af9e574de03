"""/api/alerts and /api/jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from penstock.console.alerts.alert_engine import Silence
from penstock.console.alerts.alert_rule import AlertKind, AlertRule
from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_TIME_MS, Id
from penstock.console.cleaning.jobs import Job, JobRun
from penstock.console.state.rules import Event

router = APIRouter(prefix="/alerts", tags=["alerts"])
jobs_router = APIRouter(prefix="/jobs", tags=["jobs"])

_YEAR_MS = 366 * 24 * 3_600_000
JobName = Annotated[str, Path(max_length=64)]


class RuleBody(BaseModel):
    name: str = Field(min_length=1, max_length=100)
    kind: AlertKind
    threshold: float = Field(0, ge=0, le=1e15, allow_inf_nan=False)
    for_ms: int = Field(0, ge=0, le=_YEAR_MS)
    cluster: str | None = Field(None, max_length=64)
    prefix: str = Field("", max_length=255)
    webhook: str = Field("", max_length=2000)
    email: list[Annotated[str, Field(min_length=3, max_length=200)]] = Field(default_factory=list, max_length=20)
    is_enabled: bool = True

    def rule(self) -> AlertRule:
        return AlertRule(
            name=self.name,
            kind=self.kind,
            threshold=self.threshold,
            for_ms=self.for_ms,
            cluster=self.cluster,
            prefix=self.prefix,
            webhook=self.webhook,
            email=tuple(self.email),
            is_enabled=self.is_enabled,
        )


class SilenceBody(BaseModel):
    until_ms: int = Field(ge=0, le=MAX_TIME_MS)
    rule: str | None = Field(None, max_length=64)
    resource: str | None = Field(None, max_length=300)
    comment: str = Field("", max_length=300)

    def silence(self) -> Silence:
        return Silence(self.until_ms, self.rule, self.resource, self.comment)


class JobBody(BaseModel):
    every_ms: int = Field(ge=60_000, le=_YEAR_MS)
    is_enabled: bool
    options: dict[str, Annotated[int, Field(ge=0, le=MAX_TIME_MS)]] = Field(default_factory=dict, max_length=20)


@router.get("")
async def list_firing(console: TheConsole, caller: TheCaller) -> tuple[dict[str, Any], ...]:
    """What fires now, the oldest first."""
    return await console.alerts.firing(caller)


@router.get("/history")
async def alert_history(
    console: TheConsole,
    caller: TheCaller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str, Query(max_length=64)] = "",
) -> tuple[Event, ...]:
    """What has fired, the newest first; the last id of a page is `after` of the next one."""
    return await console.alerts.history(caller, limit, after)


@router.get("/rules")
async def list_rules(console: TheConsole, caller: TheCaller) -> tuple[AlertRule, ...]:
    return await console.alerts.rules(caller)


@router.post("/rules", status_code=201)
async def add_rule(console: TheConsole, caller: TheCaller, body: RuleBody) -> AlertRule:
    return await console.alerts.add_rule(caller, body.rule())


@router.put("/rules/{id}")
async def alter_rule(console: TheConsole, caller: TheCaller, id: Id, body: RuleBody) -> AlertRule:
    return await console.alerts.alter_rule(caller, id, body.rule())


@router.delete("/rules/{id}", status_code=204)
async def remove_rule(console: TheConsole, caller: TheCaller, id: Id) -> None:
    await console.alerts.remove_rule(caller, id)


@router.post("/rules/{id}/test")
async def test_rule(console: TheConsole, caller: TheCaller, id: Id) -> tuple[str, ...]:
    """Sends a test to the webhook and the mailboxes of a rule; gives what failed."""
    return await console.alerts.test_rule(caller, id)


@router.get("/silences")
async def list_silences(console: TheConsole, caller: TheCaller) -> tuple[Silence, ...]:
    return await console.alerts.silences(caller)


@router.post("/silences", status_code=201)
async def add_silence(console: TheConsole, caller: TheCaller, body: SilenceBody) -> Silence:
    return await console.alerts.add_silence(caller, body.silence())


@router.delete("/silences/{id}", status_code=204)
async def remove_silence(console: TheConsole, caller: TheCaller, id: Id) -> None:
    await console.alerts.remove_silence(caller, id)


@jobs_router.get("")
async def list_jobs(console: TheConsole, caller: TheCaller) -> tuple[Job, ...]:
    return await console.job_operations.list(caller)


@jobs_router.get("/{job}/runs")
async def job_runs(
    console: TheConsole, caller: TheCaller, job: JobName, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> tuple[JobRun, ...]:
    return await console.job_operations.runs(caller, job, limit)


@jobs_router.put("/{job}")
async def alter_job(console: TheConsole, caller: TheCaller, job: JobName, body: JobBody) -> Job:
    return await console.job_operations.alter(caller, job, body.every_ms, body.is_enabled, body.options)


@jobs_router.post("/{job}/run")
async def run_job(console: TheConsole, caller: TheCaller, job: JobName) -> JobRun:
    """Runs a job now."""
    return await console.job_operations.run(caller, job)
