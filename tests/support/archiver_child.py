"""An archiver in a process of its own, which kills itself at a step if it is told to.

    python archiver_child.py BOOTSTRAP LAKE TOPIC MAX_OFFSETS STEP TIMES

STEP is task (between the first and the second task of a batch), files, commit or group, or never; TIMES says which one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from penstock.pipeline.archive.archiver import ArchiveOptions, Archiver
from penstock.pipeline.lake.delta import LakeLocation
from penstock.pipeline.topics.options import TopicSelection

Item = TypeVar("Item")
Result = TypeVar("Result")


class Fate:
    """Counts steps, and ends the process at the one that was chosen, as a crash would."""

    def __init__(self, step: str, times: int) -> None:
        self._step = step
        self._left = times

    def meet(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalWorkers:
    """Tasks in this process, one after the other."""

    parallelism = 3

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        done = []
        for item in items:
            done.append(function(item))
            if len(done) == 1:
                self._fate.meet("task")
        return done


def main(bootstrap: str, lake: str, topic: str, max_offsets: str, step: str, times: str) -> None:
    fate = Fate(step, int(times))
    options = ArchiveOptions(
        {"bootstrap.servers": bootstrap},
        TopicSelection(topics=(topic,)),
        LakeLocation(str(Path(lake))),
        max_offsets=int(max_offsets),
    )
    archiver = Archiver(options, MortalWorkers(fate), fate.meet)
    while archiver.run_batch() is not None:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
