"""Supervises processes: starts them, restarts those that die, stops them in order.

Rules:
- Stages start one after another, each once all processes of the stage before are ready; the processes of a stage start
  together.
- A process that ends before everything was ready once would fail again: the supervisor stops everything and fails. It
  restarts processes that end later, without limit, after growing pauses.
- SIGTERM and SIGINT stop everything in reverse order, the processes of a stage one after another, so that each broker
  can hand its leaderships to those that still run. A slow process does not delay the next one, and one that does not
  end is killed. A second SIGINT kills what is left.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.broker.metrics.loop_monitor import LoopMonitor
from penstock.cli.failure import CommandError
from penstock.cli.serve.child import Child
from penstock.clock import SystemClock
from penstock.logs import fields

logger = logging.getLogger(__name__)

_NEXT_S = 5.0
_STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Pauses before a restart: twice as long each time, reset once the process was up for `steady_ms`."""

    first_s: float = 1.0
    longest_s: float = 30.0
    steady_ms: float = 60_000

    def next_s(self, last_s: float, up_ms: float) -> float:
        """`last_s` is the pause before, 0 for none."""
        if last_s == 0 or up_ms >= self.steady_ms:
            return self.first_s
        return min(2 * last_s, self.longest_s)


class Supervisor:
    """Runs its processes until a signal stops it."""

    def __init__(self, stages: Sequence[Sequence[Child]], pauses: Pauses) -> None:
        self._stages = stages
        self._children = [child for stage in stages for child in stage]
        self._pauses = pauses
        self._is_told = asyncio.Event()

    async def run(self, on_ready: Callable[[], None]) -> int:
        """The exit status; a CommandError if a process did not start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._tell, number)
        told = loop.create_task(self._is_told.wait(), name="penstock-told")
        keepers: list[asyncio.Task[None]] = []
        try:
            for stage in self._stages:
                await self._start(stage, told)
            if not told.done():
                on_ready()
                keepers += [loop.create_task(self._keep(child), name=f"keep {child.name}") for child in self._children]
                await told
        finally:
            for task in (told, *keepers):
                task.cancel()
            await asyncio.gather(told, *keepers, return_exceptions=True)
            await self._stop()
        return 0 if all(child.has_ended_in_order for child in self._children) else 1

    def _tell(self, number: signal.Signals) -> None:
        if not self._is_told.is_set():
            logger.info("stopping", extra=fields(signal=number.name))
            self._is_told.set()
        elif number is signal.SIGINT:
            logger.warning("killing processes that have not stopped")
            for child in self._children:
                child.kill()

    async def _start(self, stage: Sequence[Child], told: asyncio.Task[bool]) -> None:
        """Returns when all are ready, or on a signal to stop."""
        if told.done():
            return
        for child in stage:
            child.start()
        while not told.done():
            for child in stage:
                if child.ended.done():
                    raise CommandError(f"{child.name} could not start: {_ending(child)}")
            starting: list[asyncio.Future[Any]] = [child.serving for child in stage if not child.serving.done()]
            if not starting:
                return
            await asyncio.wait([told, *starting], return_when=asyncio.FIRST_COMPLETED)

    async def _keep(self, child: Child) -> None:
        pause_s = 0.0
        while True:
            await asyncio.wait([child.ended])
            pause_s = self._pauses.next_s(pause_s, child.up_ms)
            facts = fields(name=child.name, end=_ending(child), pause_s=pause_s)
            logger.warning("process ended; restarting it", extra=facts)
            await asyncio.sleep(pause_s)
            child.start()
            # Cancelled if it ends before it serves.
            await asyncio.wait([child.serving])
            if not child.serving.cancelled():
                logger.info("process is ready again", extra=fields(name=child.name, pid=child.pid))

    async def _stop(self) -> None:
        for stage in reversed(self._stages):
            for child in reversed(stage):
                child.stop()
                await _end_of([child], _NEXT_S)
            await _end_of(stage, _STOP_S)
            for child in stage:
                if child.is_alive:
                    logger.error("process did not stop; killing it", extra=fields(name=child.name, pid=child.pid))
                    child.kill()
            await _end_of(stage, None)


async def _end_of(children: Sequence[Child], patience_s: float | None) -> None:
    if left := [child.ended for child in children if child.is_alive]:
        await asyncio.wait(left, timeout=patience_s)


def _ending(child: Child) -> str:
    status = child.ended.result()
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return how if child.log is None else f"{how}, see {child.log}"


def supervise(
    stages: Sequence[Sequence[Child]],
    pauses: Pauses,
    on_ready: Callable[[], None],
    on_turn: Callable[[], None] = lambda: None,
) -> int:
    """Runs a supervisor on an event loop of its own; `on_turn` is called several times a second while that turns."""

    async def run() -> int:
        monitor = LoopMonitor(SystemClock(), on_turn)
        monitor.start()
        try:
            return await Supervisor(stages, pauses).run(on_ready)
        finally:
            monitor.close()

    return asyncio.run(run())
