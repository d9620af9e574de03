"""The committed offsets of the groups of a shard, and those pending in transactions.

Pure; state changes only in `apply`, `apply_pending` and `end_transaction`, which apply what is in the log. Of two
commits for the same partition the later one in the log wins, whenever its transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from penstock.errors import Code
from penstock.groups.commits import Commit, CommitShape
from penstock.groups.offsets import Committed, OffsetRecord
from penstock.groups.rules import OffsetRules
from penstock.ids import TopicPartition

_NONE: Mapping[TopicPartition, Committed] = {}
_RECENT_SHAPES = 4
"""Commits of a group that are kept as they came; commits of one shape replace each other."""


class OffsetStore:
    """Offsets by group and partition."""

    def __init__(self, rules: OffsetRules) -> None:
        self._rules = rules
        self._committed: dict[str, dict[TopicPartition, Committed]] = {}
        """Every group that has offsets is in it; look with `of`."""
        self._recent: dict[str, dict[CommitShape, Commit]] = {}
        """Commits that `_committed` is still without, by group, in the order of the log."""
        self.committed: Mapping[str, Mapping[TopicPartition, Committed]] = _CommittedOffsets(self._committed, self.of)
        self._pending: dict[str, dict[TopicPartition, dict[int, tuple[int, Committed]]]] = {}
        """By group, partition and producer: the place in the log, and what is committed if the transaction is."""
        self._groups_of: dict[int, set[str]] = {}
        """The groups in which a producer has something pending."""
        self._taken_in = 0
        """Records taken in: the place of the last one."""

    @property
    def group_ids(self) -> Iterable[str]:
        """Groups that have offsets, pending ones included."""
        return self._committed.keys() | self._pending.keys()

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._committed or group_id in self._pending

    def __len__(self) -> int:
        return len(self._committed)

    def of(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        if group_id in self._recent:
            held = self._committed[group_id]
            for commit in self._recent.pop(group_id).values():
                held.update(commit.offsets)
        return self._committed.get(group_id, _NONE)

    @property
    def producers(self) -> tuple[int, ...]:
        """Those that have something pending."""
        return tuple(self._groups_of)

    def groups_of(self, producer_id: int) -> frozenset[str]:
        """Groups in which a producer has something pending."""
        return frozenset(self._groups_of.get(producer_id, ()))

    def pending(self, group_id: str) -> frozenset[TopicPartition]:
        """Partitions whose offset may change when a transaction ends."""
        return frozenset(self._pending.get(group_id, ()))

    def apply(self, record: OffsetRecord) -> None:
        """Takes in a commit, or the removal of one."""
        self._taken_in += 1
        self._set(record, self._taken_in)

    def take(self, commit: Commit) -> None:
        """Takes in a commit that is in the log."""
        group_id = commit.group_id
        if group_id in self._pending:
            for at, committed in commit.items():
                self.apply(OffsetRecord(group_id, at, committed))
            return
        self._taken_in += len(commit)
        recent = self._recent.setdefault(group_id, {})
        if recent.pop(commit.shape, None) is None and len(recent) >= _RECENT_SHAPES:
            self.of(group_id)
            recent = self._recent[group_id] = {}
        recent[commit.shape] = commit
        if group_id not in self._committed:
            self._committed[group_id] = {}

    def apply_pending(self, producer_id: int, record: OffsetRecord) -> None:
        """Takes in a commit that counts only if the producer's transaction is committed."""
        if record.committed is not None:
            by_producer = self._pending.setdefault(record.group_id, {}).setdefault(record.at, {})
            self._taken_in += 1
            by_producer[producer_id] = (self._taken_in, record.committed)
            self._groups_of.setdefault(producer_id, set()).add(record.group_id)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The end of a producer's transaction is in the log."""
        for group_id in self._groups_of.pop(producer_id, set()):
            for at, by_producer in list(self._pending.get(group_id, {}).items()):
                ended = by_producer.pop(producer_id, None)
                if not by_producer:
                    self._drop_pending(group_id, at)
                if ended is not None and committed:
                    place, offset = ended
                    self._set(OffsetRecord(group_id, at, offset), place)

    def admit(
        self, group_id: str, offsets: Mapping[TopicPartition, Committed]
    ) -> tuple[Mapping[TopicPartition, Code], Sequence[OffsetRecord | Commit]]:
        """An answer for each partition of a commit, and the records of those that are accepted."""
        if isinstance(offsets, Commit) and self._has_room_for(offsets):
            return offsets.shape.accepted, [offsets]
        codes = dict.fromkeys(offsets, Code.NONE)
        records = []
        held, pending = self.of(group_id), self._pending.get(group_id, {})
        room = self._rules.max_offsets - len(held) - len(pending)
        max_metadata_bytes = self._rules.max_metadata_bytes
        for at, committed in offsets.items():
            is_new = at not in held and at not in pending
            if len(committed.metadata) > max_metadata_bytes:
                codes[at] = Code.OFFSET_METADATA_TOO_LARGE
            elif is_new and room < 1:
                codes[at] = Code.INVALID_COMMIT_OFFSET_SIZE
            else:
                room -= is_new
                records.append(OffsetRecord(group_id, at, committed))
        return codes, records

    def _has_room_for(self, commit: Commit) -> bool:
        """Whether it can be accepted whole: what one like it has committed before needs no room."""
        group_id = commit.group_id
        if commit.shape in self._recent.get(group_id, ()):
            return True
        held, pending = self.of(group_id), self._pending.get(group_id, _NONE)
        new = sum(at not in held and at not in pending for at in commit.shape.places)
        return new <= self._rules.max_offsets - len(held) - len(pending)

    def removals(self, group_id: str) -> list[OffsetRecord]:
        """What takes back everything that a group has, pending or not."""
        places = dict.fromkeys([*self.of(group_id), *self._pending.get(group_id, ())])
        return [OffsetRecord(group_id, at, None) for at in places]

    def removals_of(self, is_gone: Callable[[TopicPartition], bool]) -> list[OffsetRecord]:
        return [record for group_id in self.group_ids for record in self.removals(group_id) if is_gone(record.at)]

    def void(self, group_id: str, subscribed: frozenset[str], since_ms: int, now_ms: int) -> list[TopicPartition]:
        """Offsets of topics that the group no longer subscribes to, and that have expired (KIP-211).

        `since_ms` is when the group became empty. What a transaction may still change is kept.
        """
        pending = self._pending.get(group_id, {})
        return [
            at
            for at, committed in self.of(group_id).items()
            if at.topic not in subscribed and at not in pending and now_ms >= self._void_from_ms(committed, since_ms)
        ]

    def _void_from_ms(self, committed: Committed, since_ms: int) -> int:
        if committed.expire_ms >= 0:
            return committed.expire_ms
        return max(since_ms, committed.committed_ms) + self._rules.retention_ms

    def _set(self, record: OffsetRecord, place: int) -> None:
        """What was pending before this place in the log is overtaken by it."""
        group_id, at, committed = record
        if group_id in self._pending:
            self._overtake(group_id, at, place)
        if group_id in self._recent:
            self.of(group_id)
        held = self._committed.get(group_id)
        if committed is not None:
            if held is None:
                held = self._committed[group_id] = {}
            held[at] = committed
        elif held is not None:
            held.pop(at, None)
            if not held:
                del self._committed[group_id]

    def _overtake(self, group_id: str, at: TopicPartition, place: int) -> None:
        by_producer = self._pending[group_id].get(at)
        if by_producer is not None:
            for producer_id in [each for each, (earlier, _) in by_producer.items() if earlier < place]:
                del by_producer[producer_id]
            if not by_producer:
                self._drop_pending(group_id, at)

    def _drop_pending(self, group_id: str, at: TopicPartition) -> None:
        del self._pending[group_id][at]
        if not self._pending[group_id]:
            del self._pending[group_id]


class _CommittedOffsets(Mapping[str, Mapping[TopicPartition, Committed]]):
    """The offsets of all groups, as they are at each look."""

    __slots__ = ("_groups", "_of")

    def __init__(self, groups: Mapping[str, object], of: Callable[[str], Mapping[TopicPartition, Committed]]) -> None:
        self._groups = groups
        self._of = of

    def __getitem__(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        if group_id not in self._groups:
            raise KeyError(group_id)
        return self._of(group_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)
