"""What cannot be decoded, and the bounds of what is tried: a message is its sender's choice."""

from __future__ import annotations

MAX_VALUES = 20_000
"""Parts of one value: fields, items, branches."""
MAX_NESTING = 100
MAX_NAME = 200
"""Characters of a name in a schema; each value that has the field repeats it."""


class DecodeError(Exception):
    """Bytes that are not what a schema says."""
