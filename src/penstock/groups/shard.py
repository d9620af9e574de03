"""The groups of one partition of the internal topic: their membership and their offsets.

Pure: every method takes the time and returns an `Outcome`; durable state changes only in `apply`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.cluster.metadata import MetadataImage
from penstock.errors import ApiError, Code
from penstock.groups import group_types
from penstock.groups.classic.generation import Generation, GenerationRecord
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.commits import Commit
from penstock.groups.consumer import classic_protocol
from penstock.groups.consumer.events import ConsumerHeartbeat, HeartbeatAnswer
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import ConsumerRecord, EpochRecord, is_removal
from penstock.groups.events import Heartbeat, Join, Joined, Leaver, MemberEpoch, Outcome, Sync, Synced
from penstock.groups.group_creation import check_known, create_or_upgrade
from penstock.groups.group_types import Group
from penstock.groups.offset_store import OffsetStore
from penstock.groups.offsets import Committed, GroupTombstone, OffsetRecord
from penstock.groups.pause import NOT_PAUSED, Pause
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.ids import TopicPartition
from penstock.protocol.messages.consumer_protocol import PROTOCOL_TYPE

OneRecord = GenerationRecord | ConsumerRecord | OffsetRecord | GroupTombstone
Record = OneRecord | Commit
"""What an event wants written: single records, or the records of a commit."""


class Shard:
    """Groups by name."""

    def __init__(self, group_rules: GroupRules, offset_rules: OffsetRules, image: MetadataImage) -> None:
        self._group_rules = group_rules
        self._offset_rules = offset_rules
        self.image = image
        """The topics as they are; its owner brings a new one when they change."""
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore(offset_rules)
        self._timers: list[tuple[int, str]] = []
        """When to look at which group, a heap; an entry counts if `_timed` agrees with it."""
        self._timed: dict[str, int] = {}
        self._pauses: dict[str, Pause] = {}
        """Of groups that are here and of those that may come."""

    def apply(self, record: Record, now_ms: int, pending_for: int | None = None) -> None:
        """Takes in a record that is in the log; a commit may be pending for the end of a producer's transaction."""
        if isinstance(record, OffsetRecord):  # by far the most
            if pending_for is None:
                self.offsets.apply(record)
            else:
                self.offsets.apply_pending(pending_for, record)
        elif isinstance(record, Commit):
            self.offsets.take(record)
        elif isinstance(record, GenerationRecord):
            group = self._group(record.group_id)
            group.apply(record, now_ms)
            self._set_timer(group)
        elif isinstance(record, GroupTombstone):
            if isinstance(self.groups.get(record.group_id), ClassicGroup):
                del self.groups[record.group_id]
        else:
            self._apply_to_consumers(record, now_ms)

    def loaded(self, now_ms: int) -> Outcome:
        """All records are in: from now on members can be heard."""
        outcome = Outcome()
        for group in self.groups.values():
            outcome.take(group.restart_sessions(now_ms))
            self._set_timer(group)
        return outcome

    def not_written(self, records: Iterable[Record], now_ms: int) -> Outcome:
        """These could not be appended; the clients that waited for them have got an error."""
        outcome = Outcome()
        for record in records:
            group = self.groups.get(record.group_id)
            if isinstance(record, GenerationRecord) and isinstance(group, ClassicGroup):
                outcome = group.not_written(now_ms)
                self._set_timer(group)
        return outcome

    def join(self, group_id: str, event: Join, now_ms: int) -> Outcome:
        outcome = Outcome()
        known = self.groups.get(group_id)
        if isinstance(known, ConsumerGroup) and known.members:
            outcome = classic_protocol.join(known, event, self._group_rules, self.image, now_ms)
            self._set_timer(known)
            return outcome
        if (known is None or isinstance(known, ConsumerGroup)) and event.member_id:
            outcome.reply(event.token, Joined(code=Code.UNKNOWN_MEMBER_ID, member_id=event.member_id))
            return outcome
        if not self._has_room_for(group_id):
            outcome.reply(event.token, Joined(code=Code.GROUP_MAX_SIZE_REACHED))
            return outcome
        group = self._group(group_id)
        if isinstance(known, ConsumerGroup):
            group.generation = Generation(number=known.state.epoch)
            outcome.records += known.state.removal()
        outcome.take(group.join(event, now_ms))
        self._tidy(group)
        return outcome

    def consumer_heartbeat(
        self, group_id: str, event: ConsumerHeartbeat, now_ms: int
    ) -> tuple[HeartbeatAnswer, Outcome]:
        """Raises ApiError if the member is refused."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            answered = group.heartbeat(event, self.image, now_ms)
            self._set_timer(group)
            return answered
        check_known(group, event, group_id)
        (answer,), outcome = self.consumer_joins(group_id, [event], now_ms)
        if isinstance(answer, ApiError):
            raise answer
        return answer, outcome

    def consumer_joins(
        self, group_id: str, events: Sequence[ConsumerHeartbeat], now_ms: int
    ) -> tuple[list[HeartbeatAnswer | ApiError], Outcome]:
        """Members that join at the same time: one epoch and one plan for all of them. An error is the answer to a
        refused member; raises ApiError if all are refused.
        """
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            answered = group.heartbeats(events, self.image, now_ms)
            self._set_timer(group)
            return answered
        if not self._has_room_for(group_id):
            raise ApiError(Code.GROUP_MAX_SIZE_REACHED, "There are too many groups.")
        return create_or_upgrade(
            group, self._new_consumer_group(group_id), events, self._group_rules, self.image, now_ms
        )

    def sync(self, group_id: str, event: Sync, now_ms: int) -> Outcome:
        group = self.groups.get(group_id)
        if group is None:
            outcome = Outcome()
            outcome.reply(event.token, Synced(code=Code.UNKNOWN_MEMBER_ID))
            return outcome
        if isinstance(group, ConsumerGroup):
            outcome = classic_protocol.sync(group, event, self.image, now_ms)
            self._set_timer(group)
            return outcome
        return group.sync(event, now_ms)

    def heartbeat(self, group_id: str, event: Heartbeat, now_ms: int) -> Code:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            code = classic_protocol.heartbeat(group, event, now_ms)
            self._set_timer(group)
            return code
        return Code.UNKNOWN_MEMBER_ID if group is None else group.heartbeat(event, now_ms)

    def leave(self, group_id: str, leavers: tuple[Leaver, ...], now_ms: int) -> tuple[list[Code], Outcome]:
        group = self.groups.get(group_id)
        if group is None:
            return [Code.UNKNOWN_MEMBER_ID] * len(leavers), Outcome()
        if isinstance(group, ConsumerGroup):
            return classic_protocol.leave(group, leavers, self.image, now_ms)
        codes, outcome = group.leave(leavers, now_ms)
        self._tidy(group)
        return codes, outcome

    def commit(
        self,
        group_id: str,
        member: MemberEpoch,
        offsets: Mapping[TopicPartition, Committed],
        now_ms: int,
        *,
        in_transaction: bool = False,
    ) -> tuple[Code | None, Mapping[TopicPartition, Code], Outcome]:
        """A refusal of the whole commit, or an answer for each partition."""
        outcome = Outcome()
        refusal = self._commit_refusal(group_id, member, now_ms, in_transaction=in_transaction)
        if refusal is not None:
            return refusal, {}, outcome
        group = self.groups.get(group_id)
        if group is not None:
            group_types.heard(group, member.member_id, now_ms)
        codes, records = self.offsets.admit(group_id, offsets)
        outcome.records += records
        return None, codes, outcome

    def reset(
        self, group_id: str, offsets: Mapping[TopicPartition, Committed], now_ms: int
    ) -> tuple[Code | None, Mapping[TopicPartition, Code], Outcome]:
        """Sets offsets and puts the members out, both or neither; if one partition is refused, all are."""
        if not self._has_room_for(group_id):
            return Code.INVALID_COMMIT_OFFSET_SIZE, {}, Outcome()
        codes, records = self.offsets.admit(group_id, offsets)
        if len(records) < len(offsets):
            refused = {at: code or Code.OPERATION_NOT_ATTEMPTED for at, code in codes.items()}
            return None, refused, Outcome()
        group = self.groups.get(group_id)
        outcome = group.fence_all(now_ms) if group is not None and group.members else Outcome()
        outcome.records += records
        outcome.is_whole = True
        return None, codes, outcome

    def commit_initial(
        self, group_id: str, offsets: Mapping[TopicPartition, Committed]
    ) -> tuple[dict[TopicPartition, Committed | None], Outcome]:
        """Where a group shall begin: commits what has no offset yet, if it has members; gives what there is then."""
        outcome = Outcome()
        held = self.fetch(group_id, offsets)
        group = self.groups.get(group_id)
        if group is not None and group.members:
            missing = {at: offset for at, offset in offsets.items() if held[at] is None}
            codes, records = self.offsets.admit(group_id, missing)
            outcome.records += records
            held |= {at: offset for at, offset in missing.items() if codes[at] is Code.NONE}
        return held, outcome

    def pause(self, group_id: str, pause: Pause, now_ms: int) -> Outcome:
        """What a group's members receive has been decided, whether there is such a group already or not."""
        self._pauses.pop(group_id, None)
        if pause != NOT_PAUSED:
            self._pauses[group_id] = pause
        group = self.groups.get(group_id)
        if group is None:
            return Outcome()
        outcome = group.set_pause(pause, now_ms)
        self._set_timer(group)
        return outcome

    def fetch(self, group_id: str, wanted: Iterable[TopicPartition] | None) -> dict[TopicPartition, Committed | None]:
        """The committed offsets of the wanted partitions, of all if None."""
        held = self.offsets.of(group_id)
        return dict(held) if wanted is None else {at: held.get(at) for at in wanted}

    def delete_group(self, group_id: str) -> tuple[Code, Outcome]:
        group = self.groups.get(group_id)
        outcome = Outcome()
        if group is None and group_id not in self.offsets:
            return Code.GROUP_ID_NOT_FOUND, outcome
        if group is not None and not group_types.is_empty(group):
            return Code.NON_EMPTY_GROUP, outcome
        outcome.records += self.offsets.removals(group_id)
        if group is not None:
            outcome.records += group_types.removal(group)
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
        if group is not None and group.members and group_types.protocol_type(group) != PROTOCOL_TYPE:
            return Code.NON_EMPTY_GROUP, codes, outcome
        held = self.offsets.of(group_id)
        subscribed = frozenset() if group is None else group_types.subscribed(group, self.image)
        for at in dict.fromkeys(wanted):
            if subscribed is None or at.topic in subscribed:
                codes[at] = Code.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            codes[at] = Code.NONE
            if at in held:
                outcome.records.append(OffsetRecord(group_id, at, None))
        return Code.NONE, codes, outcome

    def forget_partitions(self, is_gone: Callable[[TopicPartition], bool]) -> Outcome:
        """The offsets of partitions that are gone go with them."""
        return Outcome(records=[*self.offsets.removals_of(is_gone)])

    def expire(self, now_ms: int) -> Outcome:
        """Removes offsets that are void, and groups of which nothing is left."""
        outcome = Outcome()
        for group_id in {*self.groups, *self.offsets.group_ids}:
            group = self.groups.get(group_id)
            expired = self._void(group_id, group, now_ms)
            outcome.records += [OffsetRecord(group_id, at, None) for at in expired]
            is_all = len(expired) == len(self.offsets.of(group_id)) and not self.offsets.pending(group_id)
            if group is not None and group_types.is_idle(group) and is_all:
                outcome.records += group_types.removal(group)
        return outcome

    def is_due(self, now_ms: int) -> bool:
        """Whether `tick` may have something to do."""
        return bool(self._timers) and self._timers[0][0] <= now_ms

    def tick(self, now_ms: int) -> dict[str, Outcome]:
        """What ends by the clock, an outcome for each group it ends something in."""
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, group_id = heapq.heappop(self._timers)
            if self._timed.get(group_id) == at_ms:
                del self._timed[group_id]
                due.append(group_id)
        outcomes = {}
        for group_id in due:
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                outcomes[group_id] = group.tick(self.image, now_ms)
                self._set_timer(group)
            elif group is not None:
                outcomes[group_id] = group.tick(now_ms)
                self._tidy(group)
        return outcomes

    def abandon(self, code: Code) -> Outcome:
        """This broker no longer coordinates the shard: answers every request that waits."""
        outcome = Outcome()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                outcome.replies += group.abandon(code).replies
        return outcome

    def _group(self, group_id: str) -> ClassicGroup:
        found = self.groups.get(group_id)
        if not isinstance(found, ClassicGroup):
            found = self.groups[group_id] = ClassicGroup(group_id, self._group_rules)
            found.pause = self._pauses.get(group_id, NOT_PAUSED)
        return found

    def _new_consumer_group(self, group_id: str) -> ConsumerGroup:
        group = ConsumerGroup(group_id, self._group_rules)
        group.take_settings(self.image)
        group.pause = self._pauses.get(group_id, NOT_PAUSED)
        return group

    def _apply_to_consumers(self, record: ConsumerRecord, now_ms: int) -> None:
        """What is written last says of which kind a group is; what takes something back makes no group."""
        group = self.groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            if is_removal(record):
                return
            group = self.groups[record.group_id] = self._new_consumer_group(record.group_id)
        if isinstance(record, EpochRecord) and record.epoch is None:
            del self.groups[record.group_id]
            return
        group.apply(record, now_ms)
        self._set_timer(group)

    def _has_room_for(self, group_id: str) -> bool:
        is_known = group_id in self.groups or group_id in self.offsets
        return is_known or len(self.groups) + len(self.offsets) < self._offset_rules.max_groups

    def _tidy(self, group: ClassicGroup) -> None:
        """After something happened in a group: a client that gave up at the door leaves nothing behind."""
        if group.is_blank:
            self.groups.pop(group.group_id, None)
        else:
            self._set_timer(group)

    def _set_timer(self, group: Group) -> None:
        due_ms = group_types.due_ms(group)
        if due_ms is not None and due_ms < self._timed.get(group.group_id, 1 << 63):
            self._timed[group.group_id] = due_ms
            heapq.heappush(self._timers, (due_ms, group.group_id))

    def _commit_refusal(self, group_id: str, member: MemberEpoch, now_ms: int, *, in_transaction: bool) -> Code | None:
        group = self.groups.get(group_id)
        if not self._has_room_for(group_id):
            return Code.INVALID_COMMIT_OFFSET_SIZE
        if member.epoch < 0 and (group is None or group_types.is_empty(group)):
            # A consumer that assigned its partitions itself, or an administrator; or a member that a reset removed.
            return Code.UNKNOWN_MEMBER_ID if group is not None and group.guard.is_on(now_ms) else None
        if group is None:
            return Code.UNKNOWN_MEMBER_ID if group_id in self.offsets else Code.GROUP_ID_NOT_FOUND
        return group_types.commit_refusal(group, member, in_transaction=in_transaction)

    def _void(self, group_id: str, group: Group | None, now_ms: int) -> list[TopicPartition]:
        """Offsets that have expired, also those of topics that the group no longer subscribes to."""
        subscribed: frozenset[str] | None = frozenset()
        since_ms = -1
        if group is not None and group_types.is_empty(group):
            since_ms = group_types.empty_since_ms(group)
        elif group is not None:
            subscribed = group_types.subscribed(group, self.image) if group_types.has_settled(group) else None
        return [] if subscribed is None else self.offsets.void(group_id, subscribed, since_ms, now_ms)
