"""Which groups and offsets have changed since the last look, for the tasks that keep copies of them in a database.

It marks only that they have changed: a task that looks reads their state at that time. So there are never more marks
than groups and offsets, however much has happened.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.groups.commits import CommitShape
from penstock.groups.offset_changes import OffsetChanges
from penstock.ids import TopicPartition


class GroupChanges:
    """Groups by name. Committed offsets change much more often than anything else, and are marked apart from it."""

    def __init__(self) -> None:
        self._groups: set[str] = set()
        self._with_offsets: set[str] = set()
        self._has_loaded = False

    def mark(self, *group_ids: str) -> None:
        self._groups.update(group_ids)

    def mark_offsets(self, group_id: str) -> None:
        self._with_offsets.add(group_id)

    def mark_loaded(self) -> None:
        """A shard was loaded: all of its groups may be news."""
        self._has_loaded = True

    def take(self, *, with_offsets: bool) -> set[str]:
        """What has changed; from now on it has not. Those of which only offsets have changed can be left for later."""
        taken, self._groups = self._groups, set()
        if with_offsets:
            taken |= self._with_offsets
        # A group that is looked at is looked at whole.
        self._with_offsets -= taken
        return taken

    def take_loaded(self) -> bool:
        """Whether a shard was loaded since the last call."""
        has_loaded, self._has_loaded = self._has_loaded, False
        return has_loaded


class Changes:
    """What the coordinator tells of."""

    def __init__(self) -> None:
        self.offsets = OffsetChanges()
        self.groups = GroupChanges()

    def mark_groups(self, group_ids: Iterable[str]) -> None:
        """Members, state or settings may be others."""
        self.groups.mark(*group_ids)

    def mark_offset(self, group_id: str, at: TopicPartition) -> None:
        """An offset was committed or removed."""
        self.offsets.mark(group_id, at)
        self.groups.mark_offsets(group_id)

    def mark_commit(self, shape: CommitShape) -> None:
        """The offsets of these partitions were committed."""
        for at in shape.places:
            self.offsets.mark(shape.group_id, at)
        self.groups.mark_offsets(shape.group_id)

    def mark_loaded(self) -> None:
        self.offsets.mark_loaded()
        self.groups.mark_loaded()
