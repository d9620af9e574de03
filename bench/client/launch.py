"""Starts job processes and collects their figures; a job that hangs is ended at its time limit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from types import TracebackType

from bench.client.driver import DriverError
from bench.client.job import READY, Job


class RunningJob:
    """A job process; leaving the `with` block ends it whatever happened."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.client", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def wait_ready(self) -> None:
        """Block until a listener listens."""
        stdout = self._process.stdout
        if stdout is None or stdout.readline().strip() != READY:
            raise DriverError(self._failure())

    def tell(self, word: str) -> None:
        """A word for a job that listens."""
        if self._process.stdin is None:
            raise DriverError(f"{self._job.task} cannot be told anything")
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DriverError(self._failure()) from None

    def result(self) -> dict[str, float]:
        """Tell the job to end, if it waits for that, and return its figures."""
        try:
            out, error = self._process.communicate(timeout=2 * self._job.limit_s + 90)
        except subprocess.TimeoutExpired:
            raise DriverError(f"{self._job.task} did not end in time") from None
        if self._process.returncode:
            raise DriverError(error.strip()[-300:] or f"{self._job.task} failed")
        figures: dict[str, float] = json.loads(out.strip().splitlines()[-1])
        return figures

    def wait(self) -> dict[str, float]:
        """Let the job run to its own end; its standard input stays open meanwhile."""
        try:
            self._process.wait(2 * self._job.limit_s + 90)
        except subprocess.TimeoutExpired:
            raise DriverError(f"{self._job.task} did not end in time") from None
        return self.result()

    def _failure(self) -> str:
        self._process.wait(30)
        return self._process.stderr.read().strip()[-300:] if self._process.stderr else "failed"


def run(job: Job) -> dict[str, float]:
    """One job from start to end."""
    with RunningJob(job) as running:
        return running.wait()
