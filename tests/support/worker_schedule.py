"""Which worker runs which test file, and when: the longest first, and no more at once than the cores can carry.

There are more workers than cores, because many files wait most of the time: for a lease, a rebalance, a process that
starts. A free worker takes the longest file for which the cores have room beside what the other workers run. So files
that compute run beside files that wait, and a cluster with short leases seldom meets two that compute.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from support.durations import UNKNOWN, Duration, file_of


def choose(waiting: Mapping[str, Duration], busy_cores: float, cores: float) -> str:
    """The longest unit that fits beside what runs; if none fits, the one that needs the least CPU."""
    fitting = [unit for unit, needed in waiting.items() if busy_cores + needed.cores <= cores]
    if fitting:
        return max(fitting, key=lambda unit: waiting[unit].wall_s)
    return min(waiting, key=lambda unit: waiting[unit].cores)


class WorkerSchedule(LoadGroupScheduling):  # type: ignore[misc]
    """Gives a worker a whole file at a time, or all files of an `xdist_group`, which then share what is costly."""

    def __init__(self, config: pytest.Config, log: Producer, durations: Mapping[str, Duration]) -> None:
        super().__init__(config, log)
        self._cores = float(os.cpu_count() or 1)
        self._of_file = durations
        self._of_unit: dict[str, Duration] = {}

    def _split_scope(self, nodeid: str) -> str:
        return file_of(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting = {unit: self._duration(unit, nodeids) for unit, nodeids in self.workqueue.items()}
        chosen = choose(waiting, self._busy_cores(node), self._cores)
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    def _busy_cores(self, node: WorkerController) -> float:
        """What the units need that the other workers run now."""
        busy = 0.0
        for other, units in self.assigned_work.items():
            if other is not node:
                running = (self._of_unit[unit].cores for unit, tests in units.items() if not all(tests.values()))
                busy += next(running, 0.0)
        return busy

    def _duration(self, unit: str, nodeids: Iterable[str]) -> Duration:
        if unit not in self._of_unit:
            files = [self._of_file.get(file, UNKNOWN) for file in {file_of(nodeid) for nodeid in nodeids}]
            self._of_unit[unit] = Duration(sum(each.wall_s for each in files), sum(each.cpu_s for each in files))
        return self._of_unit[unit]
