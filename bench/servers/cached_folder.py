"""A folder of the cache: filled once and whole, however many processes want it at the same time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def cached_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder; if it is missing, one caller fills it, and the others wait for that.

    It is filled beside and moved at the end, so that a broken-off download is not taken for a whole one.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = folder.with_name(f"{folder.name}.begun")
            shutil.rmtree(begun, ignore_errors=True)
            fill(begun)
            begun.rename(folder)
    return folder
