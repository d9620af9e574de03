"""Pipeline work as jobs: `penstock pipeline` commands in processes of their own, so that no Spark runs in the console.

Rules:
- A bounded number runs at a time, a bounded number waits, a bounded number of ended ones is kept.
- A job has a folder, which only the console's user can read, for its result, log and temporary files. While it runs its
  time, the size of its result and that of its folder are looked at: past a bound it is killed.
- Passwords are in no command line and in no environment that others can see: client settings are in a file that is
  removed when the job ends. The environment has only what Python, Java and an object store need.
- A job is killed with its process group: the command, its Java, Java's Python workers. It ends with the console.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from penstock.clock import Clock
from penstock.console.errors import BusyError, ConflictError, MissingError
from penstock.console.settings import PipelineSettings
from penstock.logs import fields

logger = logging.getLogger(__name__)

_LOOK_S = 0.25
_SIZES_EVERY = 8
"""Looks between two walks through the temporary files."""
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "JAVA_HOME", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_STORE_PREFIX = "AWS_"
_RESULT, _LOG, _CLIENT, _SCRATCH = "result", "log", "client.properties", "tmp"


class JobKind(Enum):
    """What a job does."""

    QUERY = "query"
    REPORT = "report"
    DRY_RUN = "dry_run"
    REPLAY = "replay"


class JobState(Enum):
    """Where a job is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self not in (JobState.WAITING, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What is to be run, for whom."""

    kind: JobKind
    cluster: str
    user: str
    title: str
    """For people: the query, or what is reported or replayed."""
    arguments: tuple[str, ...]
    """Behind `penstock pipeline`."""
    asked: object
    """The caller's request; a replay compares it with its dry run."""
    input: bytes = b""
    client_settings: Mapping[str, str] = field(default_factory=dict)
    most_ms: int
    on_end: Callable[[Job], Awaitable[None]] | None = None
    """Called when it has ended, however."""
    writes_file: bool = False
    """Whether the command itself writes the result; else its standard output is the result."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What a job says of itself."""

    what: str
    done: int
    total: int
    """0: not known."""


@dataclass(slots=True)
class Job:
    """A job, as far as it is."""

    id: str
    request: JobRequest
    folder: Path
    asked_ms: int
    state: JobState = JobState.WAITING
    began_ms: int | None = None
    ended_ms: int | None = None
    problem: str = ""
    progress: JobProgress | None = None
    task: asyncio.Task[None] | None = None

    @property
    def result(self) -> Path:
        return self.folder / _RESULT

    @property
    def has_result(self) -> bool:
        """A report that repeats has one before it is over."""
        return self.state is JobState.DONE or (self.request.writes_file and self.result.exists())


class PipelineJobs:
    """All jobs of the console. Its calls belong to one event loop."""

    def __init__(self, folder: Path, settings: PipelineSettings, clock: Clock) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._turns = asyncio.Semaphore(settings.jobs)

    def start(self, request: JobRequest) -> Job:
        """Puts a job in line; BusyError if too many wait."""
        waiting = sum(not job.state.is_over for job in self._jobs.values()) - self._settings.jobs
        if waiting >= self._settings.jobs_waiting:
            raise BusyError(f"{waiting} jobs wait already; cancel one first. Nothing was started")
        self._forget()
        id = secrets.token_hex(8)
        job = Job(id, request, self._folder / id, self._clock.now_ms())
        self._jobs[id] = job
        job.task = asyncio.get_running_loop().create_task(self._work(job), name=f"pipeline job {id}")
        return job

    def of_cluster(self, cluster: str) -> list[Job]:
        """The newest first."""
        return [job for job in reversed(self._jobs.values()) if job.request.cluster == cluster]

    def find(self, cluster: str, id: str) -> Job:
        job = self._jobs.get(id)
        if job is None or job.request.cluster != cluster:
            raise MissingError(f"there is no job {id[:64]}; only the newest are kept, and none over a restart")
        return job

    async def cancel(self, job: Job) -> None:
        """Returns when it has ended."""
        if job.state.is_over or job.task is None:
            raise ConflictError("the job is over already; nothing was done")
        job.state = JobState.CANCELLED
        job.task.cancel()
        await asyncio.wait([job.task])

    def log(self, job: Job) -> str:
        """The end of what it has written to standard error, without its progress."""
        lines = _tail(job.folder / _LOG, self._settings.log_bytes).splitlines()
        return "\n".join(line for line in lines if _progress_of(line) is None)

    def result(self, job: Job) -> bytes:
        """What it has given so far; ConflictError if there is nothing yet."""
        try:
            with job.result.open("rb") as file:
                # The command may be writing more than it is allowed to, before it is noticed.
                return file.read(self._settings.result_bytes)
        except FileNotFoundError:
            raise ConflictError(f"the job is {job.state.value} and has no result") from None

    async def close(self) -> None:
        """Kills what runs, and forgets all results."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _work(self, job: Job) -> None:
        try:
            async with self._turns:
                job.state, job.began_ms = JobState.RUNNING, self._clock.now_ms()
                problem = await self._run(job)
            job.state, job.problem = (JobState.FAILED, problem) if problem else (JobState.DONE, "")
        except asyncio.CancelledError:
            job.state = JobState.CANCELLED
        except OSError as error:
            job.state, job.problem = JobState.FAILED, f"the job could not be started: {error.strerror}"
        except Exception:
            logger.exception("a pipeline job failed")
            job.state, job.problem = JobState.FAILED, "the job failed; the console's log says why"
        finally:
            job.ended_ms = self._clock.now_ms()
            facts = fields(id=job.id, kind=job.request.kind.value, state=job.state.value, problem=job.problem)
            logger.info("a pipeline job has ended", extra=facts)
            if job.request.on_end is not None:
                await job.request.on_end(job)

    async def _run(self, job: Job) -> str:
        """What went wrong; empty if nothing did."""
        await asyncio.to_thread(_prepare, self._folder, job.folder, job.request.client_settings)
        try:
            with (job.folder / _LOG).open("wb") as log, _output(job).open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *self._command(job),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=log,
                    env=_environment(job.folder / _SCRATCH),
                    cwd=job.folder / _SCRATCH,
                    start_new_session=True,
                )
            try:
                return await self._attend(job, process)
            finally:
                await asyncio.shield(self._end(process))
        finally:
            await asyncio.to_thread(_clear, job.folder)

    def _command(self, job: Job) -> list[str]:
        # -P: what lies in the working directory is not ours to import.
        command = [sys.executable, "-P", "-m", "penstock"]
        if job.request.client_settings:
            command.append(f"--command-config={job.folder / _CLIENT}")
        name, *arguments = job.request.arguments
        command += ["pipeline", f"--supervised={os.getpid()}", name]
        command += [f"--master={self._settings.master}", f"--memory={self._settings.memory}", "--progress"]
        command += [f"--output={job.result}"] if job.request.writes_file else []
        return command + arguments

    async def _attend(self, job: Job, process: asyncio.subprocess.Process) -> str:
        """Looks after it until it ends by itself, or is past a bound."""
        assert process.stdin is not None
        process.stdin.write(job.request.input)
        process.stdin.close()
        ended = asyncio.ensure_future(process.wait())
        until_ms = self._clock.monotonic_ms() + job.request.most_ms
        look = 0
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=_LOOK_S)
                job.progress = _last_progress(_tail(job.folder / _LOG, self._settings.log_bytes)) or job.progress
                problem = self._past_bound(job, until_ms)
                if not problem and look % _SIZES_EVERY == 0:
                    used = await asyncio.to_thread(_size, job.folder)
                    if used > self._settings.scratch_bytes:
                        problem = f"needs more than {_mib(self._settings.scratch_bytes)} for temporary files"
                if problem:
                    return f"the job {problem}; it was ended"
                look += 1
        finally:
            ended.cancel()
        status = ended.result()
        if not status:
            return ""
        said = self.log(job).strip().splitlines()
        return said[-1].removeprefix("penstock: ") if said else f"the command ended with status {status}"

    def _past_bound(self, job: Job, until_ms: float) -> str:
        if self._clock.monotonic_ms() >= until_ms:
            return f"took longer than {job.request.most_ms // 1000} s"
        if job.result.exists() and job.result.stat().st_size > self._settings.result_bytes:
            return f"gives more than {_mib(self._settings.result_bytes)}: ask for fewer columns or rows"
        return ""

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Ends the process group; returns when the command has ended."""
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(self._settings.stop_ms / 1000):
                    await process.wait()
            except TimeoutError:
                pass
        # Java goes on for a while after the command.
        _signal(process.pid, signal.SIGKILL)
        await process.wait()

    def _forget(self) -> None:
        over = [job for job in self._jobs.values() if job.state.is_over]
        for job in over[: max(0, len(over) - self._settings.jobs_kept + 1)]:
            del self._jobs[job.id]
            shutil.rmtree(job.folder, ignore_errors=True)


def _output(job: Job) -> Path:
    """What the command prints: the result, if it does not write that by itself."""
    return job.folder / "printed" if job.request.writes_file else job.result


def _prepare(home: Path, folder: Path, client_settings: Mapping[str, str]) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(mode=0o700)
    (folder / _SCRATCH).mkdir()
    if client_settings:
        handle = os.open(folder / _CLIENT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in client_settings.items())


def _clear(folder: Path) -> None:
    """Keeps the result and the log."""
    (folder / _CLIENT).unlink(missing_ok=True)
    shutil.rmtree(folder / _SCRATCH, ignore_errors=True)


def _environment(scratch: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith(_STORE_PREFIX)}
    return kept | {"TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _tail(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _last_progress(text: str) -> JobProgress | None:
    found = (_progress_of(line) for line in reversed(text.splitlines()))
    return next((each for each in found if each is not None), None)


def _progress_of(line: str) -> JobProgress | None:
    if not line.startswith('{"progress"'):
        return None
    try:
        told = json.loads(line)
        return JobProgress(str(told["progress"]), int(told["done"]), int(told["total"]))
    except (ValueError, KeyError, TypeError):
        return None


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
