"""`partition.json` in the folder of a log: whose log it is."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

from penstock.ids import TopicId, TopicPartition
from penstock.storage.files import Files

PARTITION_FILE = "partition.json"
_FORMAT = 1


class Identity(NamedTuple):
    """A topic is known by its id: one of the same name may have been made anew."""

    topic_id: TopicId
    topic_partition: TopicPartition


def write_identity(files: Files, folder: Path, identity: Identity) -> None:
    files.replace(folder / PARTITION_FILE, _content(identity))


def create_identity(files: Files, folder: Path, identity: Identity) -> None:
    """For a folder without records; its name is durable when the folder is synced."""
    file = files.create(folder / PARTITION_FILE)
    file.write(0, _content(identity))
    file.sync()


def _content(identity: Identity) -> bytes:
    at = identity.topic_partition
    said = {"format": _FORMAT, "topic": at.topic, "topic_id": str(identity.topic_id), "partition": at.partition}
    return json.dumps(said | {"crc": _crc(said)}).encode()


def read_identity(files: Files, folder: Path) -> Identity | None:
    """Whose log a folder holds; None if it does not say."""
    content = files.read(folder / PARTITION_FILE)
    if content is None:
        return None
    try:
        said = json.loads(content)
        # A file that was written before there was one, or by hand, has none.
        if said.pop("crc", None) not in (None, _crc(said)):
            return None
        return Identity(TopicId(said["topic_id"]), TopicPartition(str(said["topic"]), int(said["partition"])))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _crc(content: dict[str, object]) -> int:
    """Without it one flipped bit could name another topic, and the folder would be set aside as that one's."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
