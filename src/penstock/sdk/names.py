"""Names of the topics that belong to a group or to a set of tags."""

from __future__ import annotations

import hashlib
import re

RETRY = ".retry"
DEAD = ".dead"

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9._-]")
_TOPIC_CHARS = 249
"""The longest name that a topic may have."""
_HASH_CHARS = 8
_TAGS_CHARS = 40


def retry_topic(group: str) -> str:
    """Where messages of the group wait for their next attempt."""
    return _named(group, RETRY)


def dead_topic(group: str) -> str:
    """Where messages of the group end up that nobody tries again."""
    return _named(group, DEAD)


def view_of(topic: str, tags: str) -> str:
    """The view that shows what of a topic has the tags; the same expression has the same view."""
    expression = " ".join(tags.split())
    readable = _NOT_ALLOWED.sub("_", expression)[:_TAGS_CHARS]
    return _named(f"{topic}.{readable}", f".view-{_hash(f'{topic} {expression}')}")


def _named(name: str, ending: str) -> str:
    """The name as it is if a topic can have it, else what is left of it and a hash that tells it from others."""
    room = _TOPIC_CHARS - len(ending)
    if len(name) <= room and not _NOT_ALLOWED.search(name):
        return name + ending
    return f"{_NOT_ALLOWED.sub('_', name)[: room - _HASH_CHARS - 1]}-{_hash(name)}{ending}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
