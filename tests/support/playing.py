"""Stories of a log, drawn by a property test and played in a folder of their own."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol


class LogStory(Protocol):
    """Something that happens to a log step by step, beside a model of what should come of it."""

    async def open(self) -> None: ...

    async def play(self, step: tuple[object, ...]) -> None: ...

    async def finish(self) -> None:
        """Compares the log with the model for the last time, and lets it go."""
        ...


def play(make: Callable[[Path], LogStory], steps: Iterable[tuple[object, ...]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            story = make(Path(folder))
            await story.open()
            for step in steps:
                await story.play(step)
            await story.finish()

    asyncio.run(run())


def copy_left_behind(folder: Path, copy: Path) -> None:
    """What a process that is killed now leaves: files that are being removed meanwhile are there, or are not."""

    def copy_file(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(source, target)

    shutil.copytree(folder, copy, copy_function=copy_file)
