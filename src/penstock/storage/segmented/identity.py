"""`partition.json` in the folder of a log: whose log it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from penstock.ids import TopicId, TopicPartition
from penstock.storage.segmented.files import Files

PARTITION_FILE = "partition.json"
_FORMAT = 1


class Identity(NamedTuple):
    """A topic is known by its id: one of the same name may have been made anew."""

    topic_id: TopicId
    topic_partition: TopicPartition


def write_identity(files: Files, folder: Path, identity: Identity) -> None:
    at = identity.topic_partition
    content = {"format": _FORMAT, "topic": at.topic, "topic_id": str(identity.topic_id), "partition": at.partition}
    files.replace(folder / PARTITION_FILE, json.dumps(content).encode())


def read_identity(files: Files, folder: Path) -> Identity | None:
    """Whose log a folder holds; None if it does not say."""
    content = files.read(folder / PARTITION_FILE)
    if content is None:
        return None
    try:
        said = json.loads(content)
        return Identity(TopicId(said["topic_id"]), TopicPartition(str(said["topic"]), int(said["partition"])))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
