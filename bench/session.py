"""One run of the program: what it started, and what it measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.client.dialects import dialect
from bench.clusters.cluster import ClusterServer, start_cluster
from bench.measure import Results
from bench.plan import Plan
from bench.run import FAILURES, one_line, run_plan, steps
from bench.servers.process import Server
from bench.target import Target, start


class Session:
    """Collects the results of one or more plans."""

    def __init__(self, console: Console, data: Path) -> None:
        self._console = console
        self._data = data
        self.results = Results()
        self.versions: dict[str, str] = {}
        self.clients: dict[str, str] = {}

    def measure(self, plan: Plan, servers: Sequence[Server], running: Sequence[Target] = ()) -> None:
        """Start the servers, run the plan over them and those that run already, stop what was started."""
        if not plan.cases:
            return
        started: list[Target] = []
        try:
            for server in servers:
                target = self._start(server)
                if target:
                    started.append(target)
            targets = [*started, *running]
            for target in targets:
                self.versions.setdefault(target.name, target.version)
                self.clients.setdefault(target.name, dialect(target.protocol).client)
            if not targets:
                return
            with self._progress(steps(plan, len(targets))) as (tell, step):
                run_plan(plan, targets, self.results, tell, step)
        finally:
            for target in started:
                target.stop()

    def _start(self, server: Server) -> Target | None:
        self._console.print(f"starting {server.name}")
        try:
            server.obtain()
            folder = self._data / f"{server.protocol}-{time.monotonic_ns()}"
            return start_cluster(server, folder) if isinstance(server, ClusterServer) else start(server, folder)[0]
        except FAILURES as error:
            self._console.print(f"[red]{server.name} is left out:[/] {one_line(error)}")
            self.results.notes.append(f"{server.name} is absent: {one_line(error)}")
            return None

    @contextmanager
    def _progress(self, total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
        columns = (TimeElapsedColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=total)

            def tell(text: str) -> None:
                progress.update(task, description=text)
                if not self._console.is_terminal:
                    self._console.print(text)

            def step() -> None:
                progress.advance(task)

            yield tell, step
