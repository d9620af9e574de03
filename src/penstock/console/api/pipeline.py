"""/api/clusters/{cluster}/pipeline: queries, reports and replays as jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penstock.console.api.dependencies import TheCaller, TheConsole
from penstock.console.api.parameters import MAX_OFFSET, MAX_PARTITION, MAX_TIME_MS, ClusterName, Id, TopicName
from penstock.console.api.topics import Name
from penstock.console.operations.pipeline import MAX_SQL, JobAnswer, JobDetail, JobRow
from penstock.console.pipeline.commands import (
    QueryRequest,
    ReplayRequest,
    ReportName,
    ReportRequest,
    Side,
    TopicPair,
)

router = APIRouter(prefix="/clusters/{cluster}/pipeline", tags=["pipeline"])
replays_router = APIRouter(prefix="/clusters/{cluster}/topics/{topic}/replays", tags=["pipeline"])

Time = Annotated[int | None, Field(ge=0, le=MAX_TIME_MS)]
Offset = Annotated[int | None, Field(ge=0, le=MAX_OFFSET)]
# What becomes an argument of a command has no NUL in it. A pattern also refuses what is no Unicode.
_NO_NUL = r"^[^\x00]+$"
Word = Annotated[str, Field(min_length=1, max_length=1000, pattern=_NO_NUL)]


class QueryBody(BaseModel):
    sql: str = Field(min_length=1, max_length=MAX_SQL, pattern=_NO_NUL, description="A query; each topic is a table.")
    side: Side = Side.BOTH
    since_ms: Time = None
    until_ms: Time = None
    limit: int = Field(200, ge=1, le=1000)


class PairBody(BaseModel):
    sent_in: Name
    seen_in: Name


class ReportBody(BaseModel):
    topics: list[Name] = Field(default_factory=list, max_length=100)
    only: list[ReportName] = Field(default_factory=list, max_length=8)
    since_ms: Time = None
    until_ms: Time = None
    reconcile: list[PairBody] = Field(default_factory=list, max_length=20)
    watch_s: int | None = Field(None, ge=30, le=86_400, description="Again and again, so many seconds apart.")


class ReplayBody(BaseModel):
    source: Name
    partitions: list[Annotated[int, Field(ge=0, le=MAX_PARTITION)]] = Field(default_factory=list, max_length=1000)
    first: Offset = None
    end: Offset = None
    since_ms: Time = None
    until_ms: Time = None
    keys: list[Word] = Field(default_factory=list, max_length=100)
    tags: list[Word] = Field(default_factory=list, max_length=100)
    biz_ids: list[Word] = Field(default_factory=list, max_length=100)
    keeps_time: bool = False
    name: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9._-]*$", description="Default: derived from the options.")


class DryRun(BaseModel):
    dry_run: str = Field(max_length=64, description="The job of the dry run.")


@router.get("/jobs")
async def list_jobs(console: TheConsole, caller: TheCaller, cluster: ClusterName) -> tuple[JobRow, ...]:
    """Jobs, the newest first: all reports, and the caller's own queries and replays."""
    return await console.pipeline.jobs(caller, cluster)


@router.get("/jobs/{id}")
async def show_job(console: TheConsole, caller: TheCaller, cluster: ClusterName, id: Id) -> JobDetail:
    """A job with the end of its log."""
    return await console.pipeline.job(caller, cluster, id)


@router.get("/jobs/{id}/result")
async def job_result(console: TheConsole, caller: TheCaller, cluster: ClusterName, id: Id) -> JobAnswer:
    return await console.pipeline.result(caller, cluster, id)


@router.delete("/jobs/{id}")
async def cancel_job(console: TheConsole, caller: TheCaller, cluster: ClusterName, id: Id) -> JobRow:
    """Ends a job that waits or runs."""
    return await console.pipeline.cancel(caller, cluster, id)


@router.post("/queries", status_code=202)
async def start_query(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: QueryBody) -> JobRow:
    """Starts a query; its rows are the result of the job."""
    return await console.pipeline.start_query(caller, cluster, QueryRequest(**body.model_dump()))


@router.post("/reports", status_code=202)
async def start_report(console: TheConsole, caller: TheCaller, cluster: ClusterName, body: ReportBody) -> JobRow:
    """Starts reports; tables and charts are the result of the job."""
    pairs = tuple(TopicPair(sent_in=each.sent_in, seen_in=each.seen_in) for each in body.reconcile)
    request = ReportRequest(
        topics=tuple(body.topics),
        only=tuple(body.only),
        since_ms=body.since_ms,
        until_ms=body.until_ms,
        reconcile=pairs,
        watch_s=body.watch_s,
    )
    return await console.pipeline.start_report(caller, cluster, request)


@replays_router.post("", status_code=202)
async def plan_replay(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: ReplayBody
) -> JobRow:
    """Counts what a replay into the topic would send, and where; sends nothing."""
    told: dict[str, Any] = body.model_dump()
    told |= {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
    return await console.pipeline.plan_replay(caller, cluster, topic, ReplayRequest(**told))


@replays_router.post("/run", status_code=202)
async def run_replay(
    console: TheConsole, caller: TheCaller, cluster: ClusterName, topic: TopicName, body: DryRun
) -> JobRow:
    """Sends what a dry run has counted, each message once."""
    return await console.pipeline.run_replay(caller, cluster, topic, body.dry_run)
