"""Folders of logs that no topic of this broker has: set aside under another name, found again, removed.

Rules:

- A folder is set aside with all that is in it, so that it is not taken for the log of a topic of the same name.
- The caller decides whether it may be removed: a broker that does not know the metadata for certain leaves that to the
  operator. A folder that does not say whose it is, is never found, and so stays.
- What is removed is renamed first, so that a crash in the middle leaves nothing that looks like a log.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path

from penstock.logs import fields
from penstock.storage.contract import StrayLog
from penstock.storage.files import Files
from penstock.storage.segmented.disk.identity import Identity, read_identity

logger = logging.getLogger(__name__)

STRAY = ".stray"
REMOVED = ".removed"
_MAX_NAME = 255
"""Characters of a file's name; those of a log's folder are ASCII."""


def aside_of(folder: Path, ending: str) -> Path:
    """The name of a folder with an ending; where that would be too long for the file system, with less of the name."""
    name = folder.name
    if len(name) + len(ending) > _MAX_NAME:
        digest = sha256(name.encode()).hexdigest()[:16]
        name = f"{name[: _MAX_NAME - len(ending) - len(digest) - 1]}~{digest}"
    return folder.with_name(name + ending)


def set_aside(files: Files, folder: Path, owner: Identity | None) -> None:
    whose = owner.topic_id.hex if owner else "unknown"
    aside, number = aside_of(folder, f".{whose}{STRAY}"), 1
    while files.exists(aside):
        number += 1
        aside = aside_of(folder, f".{whose}.{number}{STRAY}")
    logger.warning(
        "renamed the folder of a log whose topic no longer exists", extra=fields(folder=folder.name, now=aside.name)
    )
    files.rename(folder, aside)


def find(files: Files, folder: Path) -> list[StrayLog]:
    """All folders that were ever set aside here and say whose they are."""
    found = []
    for name in sorted(files.list_folder(folder)):
        path = folder / name
        if name.endswith(STRAY) and files.is_folder(path):
            owner = read_identity(files, path)
            if owner is not None:
                found.append(StrayLog(name, *owner))
    return found


def remove(files: Files, folder: Path, aside: Path) -> None:
    """Removes the folder of a log, by way of the name `aside`, which ends with `REMOVED`."""
    files.rename(folder, aside)
    files.sync_folder(folder.parent)
    files.remove_folder(aside)
