"""Pausing a group: partitions that are withheld from its members.

A Fetch does not name its group, so a pause works on assignments: each member gets its assignment without the paused
partitions. `docs/internals/groups.md` says what follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.config.group import group_config
from penstock.errors import ProtocolError
from penstock.protocol.messages.consumer_protocol import ASSIGNMENT
from penstock.protocol.versioned import peek_version

_ALL = "*"
"""No topic has this name."""


@dataclass(frozen=True, slots=True)
class Pause:
    """What is paused: nothing, some topics, or everything."""

    is_all: bool = False
    topics: frozenset[str] = frozenset()

    @classmethod
    def of_names(cls, names: tuple[str, ...]) -> Pause:
        """From the way it is written to the log."""
        return cls(is_all=True) if _ALL in names else cls(topics=frozenset(names))

    @classmethod
    def of_settings(cls, settings: Mapping[str, str]) -> Pause:
        config = group_config(settings)
        return cls(is_all=True) if config.is_paused else cls(topics=config.paused_topics)

    @property
    def names(self) -> tuple[str, ...]:
        return (_ALL,) if self.is_all else tuple(sorted(self.topics))

    def holds(self, topic: str) -> bool:
        return self.is_all or topic in self.topics

    def without(self, assignment: bytes) -> bytes:
        """A consumer's assignment without what is paused; one that cannot be read is left alone."""
        if not assignment or not (self.is_all or self.topics):
            return assignment
        try:
            version = peek_version(assignment)
            planned = ASSIGNMENT.decode(assignment)
        except ProtocolError:
            return assignment
        left = tuple(found for found in planned.assigned_partitions if not self.holds(found.topic))
        if len(left) == len(planned.assigned_partitions):
            return assignment
        return ASSIGNMENT.encode(replace(planned, assigned_partitions=left), min(version, ASSIGNMENT.newest))


NOT_PAUSED = Pause()
