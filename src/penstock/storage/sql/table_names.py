"""The table of a partition, by the name of its topic: `create_order_0` for partition 0 of `create_order`.

Databases differ in what a name may hold, so a table name has only `a`-`z`, `0`-`9`, `_` and `$`: every other character
of the topic is written as `$` and two hexadecimal digits. A name that would get too long for some database is cut and
gets `$$` and a part of the topic's SHA-256; of such a table the row in `queue` says what it is of.

A companion log (`ids.companion_of`) has the name of the table that it belongs to and `_delayed` behind it. The table of
the committed offsets of a topic has `_consumers` where others have the number of the partition.
"""

from __future__ import annotations

import re
from hashlib import sha256

from penstock.ids import TopicId, TopicPartition, companion_of, is_companion

MAX_TOPIC_CHARACTERS = 40
"""With the number of the partition and what is put behind it, that stays below the 63 that PostgreSQL allows."""

_CUT = "$$"
_DIGEST_CHARACTERS = 12
_DELAYED = "_delayed"
_OFFSETS = "_consumers"
_TO_MAP = re.compile(r"[^a-z0-9_]")
_MAPPED = re.compile(r"\$([0-9a-f]{2})")
_TABLE = re.compile(r"(.+)_(\d+)")


def table_of(at: TopicPartition, topic_id: TopicId | None = None) -> str:
    """The table of a log; with a topic id it is one that no other topic has, whatever its name."""
    return f"{_mapped(_topic_of(at), topic_id)}_{at.partition}{_DELAYED if is_companion(at) else ''}"


def offset_table_of(at: TopicPartition) -> str:
    """The table of the offsets that groups have committed in the topic of a log."""
    return _mapped(_topic_of(at)) + _OFFSETS


def _topic_of(at: TopicPartition) -> str:
    return at.topic[:-1] if is_companion(at) else at.topic


def _mapped(topic: str, topic_id: TopicId | None = None) -> str:
    mapped = _TO_MAP.sub(lambda found: f"${ord(found[0]):02x}", topic)
    if len(mapped) > MAX_TOPIC_CHARACTERS or topic_id is not None:
        whole = topic.encode() + (b"" if topic_id is None else topic_id.bytes)
        kept = MAX_TOPIC_CHARACTERS - len(_CUT) - _DIGEST_CHARACTERS
        mapped = mapped[:kept] + _CUT + sha256(whole).hexdigest()[:_DIGEST_CHARACTERS]
    return mapped


def partition_of(table: str) -> TopicPartition | None:
    """The log that a table is of; None if that cannot be told from its name."""
    found = _TABLE.fullmatch(table.removesuffix(_DELAYED))
    if found is None or _CUT in table:
        return None
    topic = _MAPPED.sub(lambda code: chr(int(code[1], 16)), found[1])
    at = TopicPartition(topic, int(found[2]))
    if table.endswith(_DELAYED):
        at = companion_of(at)
    return at if table_of(at) == table else None
