"""A log's folder as a crash would leave it between any two file operations."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.clock import ManualClock
from penstock.config.topic import TopicConfig
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import open_engine


class Steps:
    """The folder as a crash would leave it before each operation; every other copy has lost power as well."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "data"
        self.root.mkdir()
        self.files = FaultyFiles(self.root)
        self.copies: list[Path] = []
        self._target = tmp_path

    async def watch(self, work: Callable[[], Awaitable[object]]) -> None:
        self.files.on_operation = self._copy
        await work()
        self._copy("end", self.root)
        self.files.on_operation = None

    def _copy(self, what: str, path: Path) -> None:
        with self.files.lock:
            number = len(self.copies)
            killed = self._target / f"{number:03d}-{what.replace(' ', '-')}"
            shutil.copytree(self.root, killed)
            self.copies.append(killed)
            for seed in range(2):
                dark = self._target / f"{number:03d}-{what.replace(' ', '-')}-dark-{seed}"
                self.files.power_loss(number * 10 + seed, into=dark)
                self.copies.append(dark)


async def opened(steps: Steps, config: TopicConfig, clock: ManualClock | None = None) -> SegmentedEngine:
    return await open_engine(steps.root / "logs", config, clock, steps.files)
