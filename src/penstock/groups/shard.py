"""The groups of one partition of the internal topic: their membership and their offsets.

Pure: every method takes the time and gives an `Outcome`; state that must survive changes only in `apply`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from penstock.errors import Code
from penstock.groups.classic import ClassicGroup, GroupState
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, Outcome, Sync, Synced
from penstock.groups.generation import GroupRecord
from penstock.groups.offsets import Committed, GroupTombstone, OffsetRecord
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.subscription import topics_of_all
from penstock.ids import TopicPartition
from penstock.protocol.messages.consumer_protocol import PROTOCOL_TYPE

Record = GroupRecord | OffsetRecord | GroupTombstone


class Shard:
    """Groups by name."""

    def __init__(self, group_rules: GroupRules, offset_rules: OffsetRules) -> None:
        self._group_rules = group_rules
        self._offset_rules = offset_rules
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, Committed]] = {}
        self._timers: list[tuple[int, str]] = []
        """When to look at which group, a heap; an entry counts if `_timed` agrees with it."""
        self._timed: dict[str, int] = {}

    def apply(self, record: Record, now_ms: int) -> None:
        """Takes in a record that is in the log."""
        if isinstance(record, GroupRecord):
            group = self._group(record.group_id)
            group.apply(record, now_ms)
            self._set_timer(group)
        elif isinstance(record, GroupTombstone):
            self.groups.pop(record.group_id, None)
        elif record.committed is not None:
            self.offsets.setdefault(record.group_id, {})[record.at] = record.committed
        else:
            held = self.offsets.get(record.group_id, {})
            held.pop(record.at, None)
            if not held:
                self.offsets.pop(record.group_id, None)

    def loaded(self, now_ms: int) -> None:
        """All records are in: from now on members can be heard."""
        for group in self.groups.values():
            group.restart_sessions(now_ms)
            self._set_timer(group)

    def not_written(self, records: Iterable[Record], now_ms: int) -> Outcome:
        """These could not be appended; who waited for them was told so."""
        outcome = Outcome()
        for record in records:
            group = self.groups.get(record.group_id)
            if isinstance(record, GroupRecord) and group is not None:
                outcome = group.not_written(now_ms)
                self._set_timer(group)
        return outcome

    def join(self, group_id: str, event: Join, now_ms: int) -> Outcome:
        outcome = Outcome()
        if group_id not in self.groups and event.member_id:
            outcome.reply(event.token, Joined(code=Code.UNKNOWN_MEMBER_ID, member_id=event.member_id))
            return outcome
        if not self._has_room_for(group_id):
            outcome.reply(event.token, Joined(code=Code.GROUP_MAX_SIZE_REACHED))
            return outcome
        group = self._group(group_id)
        outcome = group.join(event, now_ms)
        self._tidy(group)
        return outcome

    def sync(self, group_id: str, event: Sync, now_ms: int) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            outcome = Outcome()
            outcome.reply(event.token, Synced(code=Code.UNKNOWN_MEMBER_ID))
            return outcome
        return group.sync(event, now_ms)

    def heartbeat(self, group_id: str, event: Heartbeat, now_ms: int) -> Code:
        group = self.groups.get(group_id)
        return Code.UNKNOWN_MEMBER_ID if group is None else group.heartbeat(event, now_ms)

    def leave(self, group_id: str, leavers: tuple[Leaver, ...], now_ms: int) -> tuple[list[Code], Outcome]:
        group = self.groups.get(group_id)
        if group is None:
            return [Code.UNKNOWN_MEMBER_ID] * len(leavers), Outcome()
        codes, outcome = group.leave(leavers, now_ms)
        self._tidy(group)
        return codes, outcome

    def commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int],
        offsets: Mapping[TopicPartition, Committed],
        now_ms: int,
    ) -> tuple[Code | None, dict[TopicPartition, Code], Outcome]:
        """A refusal of the whole commit, or an answer for each partition. `member`: id, instance id, generation."""
        refusal = self._commit_refusal(group_id, *member)
        outcome = Outcome()
        codes: dict[TopicPartition, Code] = {}
        if refusal is not None:
            return refusal, codes, outcome
        group = self.groups.get(group_id)
        if group is not None and member[0] in group.members:
            group.members[member[0]].heard(now_ms)
        held = self.offsets.get(group_id, {})
        room = self._offset_rules.max_offsets - len(held)
        for at, committed in offsets.items():
            if len(committed.metadata) > self._offset_rules.max_metadata_bytes:
                codes[at] = Code.OFFSET_METADATA_TOO_LARGE
            elif at not in held and room < 1:
                codes[at] = Code.INVALID_COMMIT_OFFSET_SIZE
            else:
                room -= at not in held
                codes[at] = Code.NONE
                outcome.records.append(OffsetRecord(group_id, at, committed))
        return None, codes, outcome

    def fetch(self, group_id: str, wanted: Iterable[TopicPartition] | None) -> dict[TopicPartition, Committed | None]:
        """The committed offsets of the wanted partitions, of all if None."""
        held = self.offsets.get(group_id, {})
        return dict(held) if wanted is None else {at: held.get(at) for at in wanted}

    def delete_group(self, group_id: str) -> tuple[Code, Outcome]:
        group = self.groups.get(group_id)
        outcome = Outcome()
        if group is None and group_id not in self.offsets:
            return Code.GROUP_ID_NOT_FOUND, outcome
        if group is not None and group.state is not GroupState.EMPTY:
            return Code.NON_EMPTY_GROUP, outcome
        outcome.records += [OffsetRecord(group_id, at, None) for at in self.offsets.get(group_id, {})]
        if group is not None:
            outcome.records.append(GroupTombstone(group_id))
        return Code.NONE, outcome

    def delete_offsets(
        self, group_id: str, wanted: Iterable[TopicPartition]
    ) -> tuple[Code, dict[TopicPartition, Code], Outcome]:
        """Removes commits; not those of topics that the group's members are subscribed to."""
        outcome = Outcome()
        codes: dict[TopicPartition, Code] = {}
        group = self.groups.get(group_id)
        if group is None and group_id not in self.offsets:
            return Code.GROUP_ID_NOT_FOUND, codes, outcome
        if group is not None and group.members and group.generation.protocol_type != PROTOCOL_TYPE:
            return Code.NON_EMPTY_GROUP, codes, outcome
        held = self.offsets.get(group_id, {})
        subscribed = _subscribed(group)
        for at in dict.fromkeys(wanted):
            if subscribed is None or at.topic in subscribed:
                codes[at] = Code.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            codes[at] = Code.NONE
            if at in held:
                outcome.records.append(OffsetRecord(group_id, at, None))
        return Code.NONE, codes, outcome

    def forget_topics(self, is_gone: Callable[[str], bool]) -> Outcome:
        """The offsets of topics that are gone go with them."""
        outcome = Outcome()
        for group_id, held in self.offsets.items():
            outcome.records += [OffsetRecord(group_id, at, None) for at in held if is_gone(at.topic)]
        return outcome

    def expire(self, now_ms: int) -> Outcome:
        """Removes offsets that are void, and groups of which nothing is left."""
        outcome = Outcome()
        for group_id in self.groups.keys() | self.offsets.keys():
            group = self.groups.get(group_id)
            held = self.offsets.get(group_id, {})
            expired = self._void(group, held, now_ms)
            outcome.records += [OffsetRecord(group_id, at, None) for at in expired]
            if group is not None and group.is_idle and len(expired) == len(held):
                outcome.records.append(GroupTombstone(group_id))
        return outcome

    def is_due(self, now_ms: int) -> bool:
        """Whether `tick` may have something to do."""
        return bool(self._timers) and self._timers[0][0] <= now_ms

    def tick(self, now_ms: int) -> list[Outcome]:
        """What ends by the clock, an outcome for each group it ends something in."""
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, group_id = heapq.heappop(self._timers)
            if self._timed.get(group_id) == at_ms:
                del self._timed[group_id]
                due.append(group_id)
        outcomes = []
        for group_id in due:
            group = self.groups.get(group_id)
            if group is not None:
                outcomes.append(group.tick(now_ms))
                self._tidy(group)
        return outcomes

    def abandon(self, code: Code) -> Outcome:
        """The shard is no longer ours: whoever waits is told."""
        outcome = Outcome()
        for group in self.groups.values():
            outcome.replies += group.abandon(code).replies
        return outcome

    def _group(self, group_id: str) -> ClassicGroup:
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = ClassicGroup(group_id, self._group_rules)
        return found

    def _has_room_for(self, group_id: str) -> bool:
        is_known = group_id in self.groups or group_id in self.offsets
        return is_known or len(self.groups) + len(self.offsets) < self._offset_rules.max_groups

    def _tidy(self, group: ClassicGroup) -> None:
        """After something happened in a group: a client that gave up at the door leaves nothing behind."""
        if group.is_blank:
            self.groups.pop(group.group_id, None)
        else:
            self._set_timer(group)

    def _set_timer(self, group: ClassicGroup) -> None:
        if group.due_ms is not None and group.due_ms < self._timed.get(group.group_id, 1 << 63):
            self._timed[group.group_id] = group.due_ms
            heapq.heappush(self._timers, (group.due_ms, group.group_id))

    def _commit_refusal(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Code | None:
        group = self.groups.get(group_id)
        if not self._has_room_for(group_id):
            return Code.INVALID_COMMIT_OFFSET_SIZE
        if generation < 0 and (group is None or group.state is GroupState.EMPTY):
            # Somebody who has assigned himself his partitions, or an administrator.
            return None
        if group is None:
            return Code.UNKNOWN_MEMBER_ID if group_id in self.offsets else Code.GROUP_ID_NOT_FOUND
        if generation < 0 and not member_id and instance_id is None:
            return Code.UNKNOWN_MEMBER_ID
        refusal = group.check(member_id, instance_id, generation)
        if refusal is None and group.state is GroupState.COMPLETING:
            return Code.REBALANCE_IN_PROGRESS
        return refusal

    def _void(
        self, group: ClassicGroup | None, held: Mapping[TopicPartition, Committed], now_ms: int
    ) -> list[TopicPartition]:
        """Offsets that nobody will come back for (KIP-211), also those of topics that a group has left behind."""
        subscribed: frozenset[str] | None = frozenset()
        since_ms = -1
        if group is not None and group.state is GroupState.EMPTY:
            since_ms = group.changed_ms
        elif group is not None:
            subscribed = _subscribed(group) if group.state is GroupState.STABLE else None
        if subscribed is None:
            return []
        return [
            at
            for at, committed in held.items()
            if at.topic not in subscribed and now_ms >= self._void_from_ms(committed, since_ms)
        ]

    def _void_from_ms(self, committed: Committed, since_ms: int) -> int:
        if committed.expire_ms >= 0:
            return committed.expire_ms
        return max(since_ms, committed.committed_ms) + self._offset_rules.retention_ms


def _subscribed(group: ClassicGroup | None) -> frozenset[str] | None:
    """The topics that a group's members read; None where only they know."""
    if group is None or not group.members:
        return frozenset()
    agreed = group.generation
    if agreed.protocol_type != PROTOCOL_TYPE or agreed.protocol is None:
        return None
    return topics_of_all(group.members.values(), agreed.protocol)
