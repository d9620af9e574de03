"""Names of retry, dead-letter and view topics."""

from __future__ import annotations

import hashlib
import re

RETRY = ".retry"
DEAD = ".dead"

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9._-]")
_TOPIC_CHARS = 249
"""The longest topic name."""
_HASH_CHARS = 8
_RETRY_ENDING = re.compile(r"-[0-9a-f]{8}\.retry\Z")
_TAGS_CHARS = 40


def retry_topic(group: str, topic: str) -> str:
    """The topic in which messages of this topic (or view) wait for their next attempt in the group.

    Members of a group may subscribe to different topics. Each topic has its own retry topic, so that a retry reaches a
    member that subscribes to its topic. The hash keeps names apart: groups and topics may both contain dots.
    """
    ending = f"-{_hash(f'{group} {topic}')}{RETRY}"
    return _NOT_ALLOWED.sub("_", f"{group}.{topic}")[: _TOPIC_CHARS - len(ending)] + ending


def shared_retry_topic(group: str) -> str:
    """The retry topic that version 0.1 used for all topics of a group."""
    return _named(group, RETRY)


def is_retry_topic(group: str, name: str) -> bool:
    """Whether the topic is a retry topic of the group."""
    if name == shared_retry_topic(group):
        return True
    match = _RETRY_ENDING.search(name)
    prefix = _NOT_ALLOWED.sub("_", f"{group}.")
    return match is not None and name[: match.start()].startswith(prefix[: match.start()])


def dead_topic(group: str) -> str:
    """The dead-letter topic of a group."""
    return _named(group, DEAD)


def view_of(topic: str, tags: str) -> str:
    """The view of a topic for a tag expression; the same expression has the same view."""
    expression = " ".join(tags.split())
    readable = _NOT_ALLOWED.sub("_", expression)[:_TAGS_CHARS]
    return _named(f"{topic}.{readable}", f".view-{_hash(f'{topic} {expression}')}")


def _named(name: str, ending: str) -> str:
    """The name as it is if it is valid, otherwise shortened and with a hash."""
    room = _TOPIC_CHARS - len(ending)
    if len(name) <= room and not _NOT_ALLOWED.search(name):
        return name + ending
    return f"{_NOT_ALLOWED.sub('_', name)[: room - _HASH_CHARS - 1]}-{_hash(name)}{ending}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
