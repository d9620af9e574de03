"""Operations on pipeline work: queries, reports, replays, and the jobs that do them.

The lake knows nothing of masking rules and grants. So only a user who could read every message of the cluster,
unmasked, may query it; the console checks that again when the user opens a result.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.config.view import VIEW_OF_SETTING
from penstock.console.errors import ConflictError, InvalidError, MissingError, RefusedError
from penstock.console.operations.clusters import Clusters, ManagedCluster
from penstock.console.operations.operation import Changed, Operation, Scope, Service, change, query
from penstock.console.pipeline.commands import Place, QueryRequest, ReplayRequest, ReportRequest
from penstock.console.pipeline.jobs import Job, JobKind, JobProgress, JobRequest, JobState, PipelineJobs
from penstock.console.pipeline.lake_view import require_lake, require_spark
from penstock.console.pipeline.results import (
    QueryAnswer,
    ReplayAnswer,
    ReportAnswer,
    query_answer,
    replay_answer,
    report_answer,
)
from penstock.console.security.masking import MaskingRules
from penstock.console.security.roles import Caller, Role
from penstock.console.settings import PipelineSettings
from penstock.console.state.audit import AuditLog

MAX_SQL = 20_000
_INTERNAL_PREFIX = "__"
_REPLAY_ENDED = Operation("pipeline.replay_ended", Role.OPERATOR, Scope.TOPIC, True, True, frozenset())


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as a list shows it."""

    id: str
    kind: JobKind
    title: str
    user: str
    state: JobState
    asked_ms: int
    began_ms: int | None
    ended_ms: int | None
    problem: str
    progress: JobProgress | None
    has_result: bool
    is_own: bool


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with the end of its log, which only its owner and admins see."""

    job: JobRow
    log: str


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What a job has given: one of them, by its kind."""

    job: JobRow
    query: QueryAnswer | None = None
    report: ReportAnswer | None = None
    replay: ReplayAnswer | None = None


@dataclass(frozen=True, slots=True)
class ReplayAsked:
    """What a dry run has counted, and what a replay then does."""

    target: str
    request: ReplayRequest
    target_partitions: int


class PipelineOperations(Service):
    """Queries, reports and replays."""

    def __init__(
        self,
        audit: AuditLog,
        clusters: Clusters,
        masking: MaskingRules,
        jobs: PipelineJobs,
        settings: PipelineSettings,
    ) -> None:
        super().__init__(audit)
        self._clusters = clusters
        self._masking = masking
        self._jobs = jobs
        self._settings = settings

    @query("pipeline.jobs", Role.VIEWER, Scope.ANY)
    async def jobs(self, caller: Caller, cluster: str) -> tuple[JobRow, ...]:
        """Jobs that the caller sees, the newest first."""
        self._clusters[cluster]
        return tuple(_row(job, caller) for job in self._jobs.of_cluster(cluster) if _sees(caller, job))

    @query("pipeline.job", Role.VIEWER, Scope.ANY)
    async def job(self, caller: Caller, cluster: str, id: str) -> JobDetail:
        job = self._job(caller, cluster, id)
        log = await asyncio.to_thread(self._jobs.log, job) if _is_governed(caller, job) else ""
        return JobDetail(_row(job, caller), log)

    @query("pipeline.result", Role.VIEWER, Scope.ANY, is_audited=True)
    async def result(self, caller: Caller, cluster: str, id: str) -> JobAnswer:
        """What a job has given. A report that repeats has a result while it runs."""
        job = self._job(caller, cluster, id)
        kind, row = job.request.kind, _row(job, caller)
        is_limited = await self._masking.limit(cluster, caller.role)
        if kind is JobKind.REPORT:
            raw = await asyncio.to_thread(self._jobs.result, job)
            told = await asyncio.to_thread(report_answer, raw, leaves_out_quotes=is_limited)
            return JobAnswer(row, report=told)
        if kind is JobKind.QUERY:
            await self._require_all_messages(caller, cluster)
        if job.state is not JobState.DONE:
            raise ConflictError(f"the job is {job.state.value} and has no result")
        raw = await asyncio.to_thread(self._jobs.result, job)
        asked = job.request.asked
        if isinstance(asked, QueryRequest):
            return JobAnswer(row, query=await asyncio.to_thread(query_answer, raw, asked.rows(self._settings)))
        assert isinstance(asked, ReplayAsked)
        return JobAnswer(row, replay=replay_answer(raw, asked.target_partitions))

    @change("pipeline.query", Role.OPERATOR, Scope.CLUSTER)
    async def start_query(self, caller: Caller, cluster: str, request: QueryRequest) -> Changed[JobRow]:
        """Starts a query; its job has the answer. Only for callers who see all that all messages have."""
        managed, place = self._place(cluster)
        await self._require_all_messages(caller, cluster)
        if not request.sql.strip():
            raise InvalidError("there is no query; nothing was started")
        if len(request.sql) > MAX_SQL:
            raise InvalidError(f"a query has at most {MAX_SQL} characters; nothing was started")
        job = self._start(
            caller,
            managed,
            JobKind.QUERY,
            request.sql,
            request.arguments(place, self._settings),
            request,
            input=request.sql.encode("utf-8", "replace"),
        )
        return _started(job, caller)

    @change("pipeline.report", Role.OPERATOR, Scope.CLUSTER)
    async def start_report(self, caller: Caller, cluster: str, request: ReportRequest) -> Changed[JobRow]:
        """Starts a report; the lake keeps its tables, and its job what pages show."""
        managed, place = self._place(cluster)
        await self._require_all_messages(caller, cluster)
        arguments = request.arguments(place, self._settings)
        watches = request.watch_s is not None
        job = self._start(
            caller, managed, JobKind.REPORT, request.title, arguments, request, writes_file=True, watches=watches
        )
        return _started(job, caller)

    @change("pipeline.plan_replay", Role.OPERATOR, Scope.TOPIC)
    async def plan_replay(self, caller: Caller, cluster: str, topic: str, request: ReplayRequest) -> Changed[JobRow]:
        """Counts what a replay into `topic` would send, and where; nothing is sent. Then `run_replay`."""
        managed, place = self._place(cluster)
        partitions = await self._check_replay(caller, managed, topic, request)
        asked = ReplayAsked(topic, request, partitions)
        arguments = request.arguments(place, topic, is_rehearsal=True)
        job = self._start(caller, managed, JobKind.DRY_RUN, f"{request.source} → {topic}", arguments, asked)
        return _started(job, caller)

    @change("pipeline.replay", Role.OPERATOR, Scope.TOPIC)
    async def run_replay(self, caller: Caller, cluster: str, topic: str, dry_run: str) -> Changed[JobRow]:
        """Sends what a dry run of the caller has counted, each message once, however often the caller starts it."""
        managed, place = self._place(cluster)
        rehearsal = self._job(caller, cluster, dry_run)
        asked = rehearsal.request.asked
        if not isinstance(asked, ReplayAsked) or rehearsal.request.kind is not JobKind.DRY_RUN:
            raise InvalidError("that job is no dry run; nothing was sent")
        if asked.target != topic or rehearsal.request.user != caller.name:
            raise InvalidError("that dry run was for another topic or by another user; nothing was sent")
        if rehearsal.state is not JobState.DONE:
            raise ConflictError(f"the dry run is {rehearsal.state.value}; nothing was sent")
        partitions = await self._check_replay(caller, managed, topic, asked.request)
        if partitions != asked.target_partitions:
            raise ConflictError(f"{topic} has other partitions than at the dry run: run it again. Nothing was sent")

        async def note(job: Job) -> None:
            told = {"job": job.id, "state": job.state.value}
            if job.state is JobState.DONE:
                told["sent"] = str(replay_answer(self._jobs.result(job), partitions).rows)
            about = {"cluster": cluster, "topic": topic, "job": job.id}
            entry = await self.audit_log.begin(_REPLAY_ENDED, caller, about)
            await self.audit_log.finish(entry, None, told, job.problem)
            managed.poller.hasten()

        arguments = asked.request.arguments(place, topic, is_rehearsal=False)
        title = rehearsal.request.title
        job = self._start(caller, managed, JobKind.REPLAY, title, arguments, asked, on_end=note)
        return _started(job, caller, replay=asked.request)

    @change("pipeline.cancel", Role.OPERATOR, Scope.ANY)
    async def cancel(self, caller: Caller, cluster: str, id: str) -> Changed[JobRow]:
        """Ends the caller's own job; admins end any."""
        job = self._job(caller, cluster, id)
        if not _is_governed(caller, job):
            raise RefusedError("only the user who started a job, or an admin, can end it; nothing was done")
        before = job.state.value
        await self._jobs.cancel(job)
        return Changed(_row(job, caller), before, job.state.value)

    def _place(self, cluster: str) -> tuple[ManagedCluster, Place]:
        managed = self._clusters[cluster]
        lake = require_lake(managed.lake, cluster)
        require_spark()
        return managed, Place(managed.link.bootstrap, lake.uri)

    def _job(self, caller: Caller, cluster: str, id: str) -> Job:
        job = self._jobs.find(cluster, id)
        if not _sees(caller, job):
            raise MissingError(f"there is no job {id[:64]}; only the newest are kept, and none over a restart")
        return job

    def _start(
        self,
        caller: Caller,
        managed: ManagedCluster,
        kind: JobKind,
        title: str,
        arguments: tuple[str, ...],
        asked: object,
        *,
        watches: bool = False,
        **more: object,
    ) -> Job:
        return self._jobs.start(
            JobRequest(
                kind=kind,
                cluster=managed.link.name,
                user=caller.name,
                title=title,
                arguments=arguments,
                asked=asked,
                client_settings=managed.link.client_settings,
                most_ms=self._settings.watch_ms if watches else self._settings.job_ms,
                **more,  # type: ignore[arg-type]
            )
        )

    async def _require_all_messages(self, caller: Caller, cluster: str) -> None:
        """The caller could read every message of the cluster, and nothing of it would be masked."""
        if not caller.role.covers(Role.OPERATOR):
            raise RefusedError("this needs the role operator on the cluster; nothing was shown")
        if await self._masking.limit(cluster, caller.role):
            raise RefusedError(
                "masking rules count for your role, and the lake has messages without masks; nothing was done. "
                "A user for whom no rule counts can do it"
            )

    async def _check_replay(self, caller: Caller, managed: ManagedCluster, target: str, request: ReplayRequest) -> int:
        """How many partitions the target has; an error if the caller may not, or the topics cannot."""
        cluster, source = managed.link.name, request.source
        role = caller.role_on_topic(cluster, source)
        if not role.covers(Role.VIEWER):
            raise RefusedError(f"a replay reads {source}, which needs the role viewer there; nothing was sent")
        if await self._masking.limit(cluster, role):
            raise RefusedError(
                f"masking rules count for your role, and {target} would have the messages without masks; "
                "nothing was sent"
            )
        if source.startswith(_INTERNAL_PREFIX) or target.startswith(_INTERNAL_PREFIX):
            raise InvalidError("internal topics are not replayed: only brokers write to them; nothing was sent")
        if source == target:
            raise InvalidError(f"{target}: a topic cannot be replayed to itself; nothing was sent")
        if target not in managed.snapshot.topics:
            raise MissingError(f"there is no topic {target} to replay to; nothing was sent")
        settings = await managed.link.detail(("settings", target), lambda admin: admin.topics.configs([target]))
        entry = settings[target].get(VIEW_OF_SETTING)
        if entry is not None and entry.value:
            raise InvalidError(f"{target} is a view of {entry.value}: nothing can be sent to it")
        return managed.snapshot.topics[target].partition_count


def _sees(caller: Caller, job: Job) -> bool:
    """Reports are for all who see the cluster; the others quote messages."""
    if job.request.kind is JobKind.REPORT:
        return caller.role.covers(Role.VIEWER)
    return _is_governed(caller, job)


def _is_governed(caller: Caller, job: Job) -> bool:
    return job.request.user == caller.name or caller.role.covers(Role.ADMIN)


def _row(job: Job, caller: Caller) -> JobRow:
    request = job.request
    is_quoted = _is_governed(caller, job)
    return JobRow(
        id=job.id,
        kind=request.kind,
        title=request.title,
        user=request.user,
        state=job.state,
        asked_ms=job.asked_ms,
        began_ms=job.began_ms,
        ended_ms=job.ended_ms,
        problem=job.problem if is_quoted else ("failed" if job.problem else ""),
        progress=job.progress,
        has_result=job.has_result,
        is_own=request.user == caller.name,
    )


def _started(job: Job, caller: Caller, **told: object) -> Changed[JobRow]:
    return Changed(_row(job, caller), None, {"job": job.id, **told})
