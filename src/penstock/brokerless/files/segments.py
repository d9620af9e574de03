"""The segment files of a partition: their names and which of them exist."""

from __future__ import annotations

import os
from pathlib import Path

_ENDING = ".log"
_DIGITS = 20


def segment_path(folder: Path, base_offset: int) -> Path:
    """The file whose first record has this offset."""
    return folder / f"{base_offset:0{_DIGITS}}{_ENDING}"


def base_offsets(folder: Path) -> list[int]:
    """The base offsets of all segments, in order; none if the partition has none yet."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    stems = (name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdigit())


def sync_folder(folder: Path) -> None:
    """Make names of new files durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
