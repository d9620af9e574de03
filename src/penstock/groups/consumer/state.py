"""The durable state of a consumer group; it changes only by records.

An event is decided on a draft: a copy that applies each record as it is decided, so that the next step sees it. The
group itself applies the same records once they are in the log.
"""

from __future__ import annotations

from enum import Enum

from penstock.groups.consumer.assignment import NOTHING, Assignment, TopicIdPartition
from penstock.groups.consumer.members import NEWCOMER, ConsumerMember, Current
from penstock.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)


class ConsumerGroupState(Enum):
    """Kafka's names, which ConsumerGroupDescribe shows."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerState:
    """Invariants: `_held` counts the partitions of every `Current`; `size` is that of the members."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.topics_hash = 0
        """Of the topics behind the subscriptions, as they were when the epoch began."""
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.currents: dict[str, Current] = {}
        self.targets: dict[str, Assignment] = {}
        self.static_ids: dict[str, str] = {}
        """Instance id to member id."""
        self._held: dict[TopicIdPartition, int] = {}
        """Members that have a partition, or have not said yet that they have let go of it: one, unless a classic leader
        gave it to several."""
        self.size = 0

    def copy(self) -> ConsumerState:
        copied = ConsumerState(self.group_id)
        copied.epoch, copied.topics_hash = self.epoch, self.topics_hash
        copied.assignment_epoch = self.assignment_epoch
        copied.members = dict(self.members)
        copied.currents = dict(self.currents)
        copied.targets = dict(self.targets)
        copied.static_ids = dict(self.static_ids)
        copied._held = dict(self._held)
        copied.size = self.size
        return copied

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.current_of(member_id).has_reached(self.assignment_epoch) for member_id in self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_all_classic(self) -> bool:
        """No member is left that speaks the new protocol."""
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    def current_of(self, member_id: str) -> Current:
        return self.currents.get(member_id, NEWCOMER)

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def free_of(self, partitions: Assignment) -> Assignment:
        """Those that no member has."""
        return partitions.difference(self._held)

    def is_waiting(self, member_id: str) -> bool:
        """Whether another member still has a part of its target."""
        missing = self.target_of(member_id) - self.current_of(member_id).assigned
        return self.free_of(missing) != missing

    def apply(self, record: ConsumerRecord) -> None:
        """Takes in a record; the end of the whole group is its owner's business."""
        match record:
            case EpochRecord(_, GroupEpoch(number, topics_hash)):
                self.epoch, self.topics_hash = number, topics_hash
            case TargetEpochRecord(_, epoch):
                self.assignment_epoch = epoch or 0
            case TargetRecord(_, member_id, target) if target is not None:
                self.targets[member_id] = target
            case TargetRecord(_, member_id):
                self.targets.pop(member_id, None)
            case CurrentRecord(_, member_id, current):
                self._own(member_id, current)
            case MemberRecord(_, member_id, member):
                self._describe(member_id, member)

    def removal_of(self, member_id: str) -> list[ConsumerRecord]:
        """What takes a member back; his partitions become free first."""
        return [
            CurrentRecord(self.group_id, member_id, None),
            TargetRecord(self.group_id, member_id, None),
            MemberRecord(self.group_id, member_id, None),
        ]

    def removal(self) -> list[ConsumerRecord]:
        """What takes the whole group back, its epoch last."""
        records = [
            record
            for member_id in dict.fromkeys([*self.members, *self.currents, *self.targets])
            for record in self.removal_of(member_id)
        ]
        return [*records, TargetEpochRecord(self.group_id, None), EpochRecord(self.group_id, None)]

    def _own(self, member_id: str, current: Current | None) -> None:
        before = self.currents.pop(member_id, NEWCOMER)
        after = NEWCOMER if current is None else current
        had, has = before.assigned | before.revoking, after.assigned | after.revoking
        for partition in had - has:
            self._held[partition] -= 1
            if not self._held[partition]:
                del self._held[partition]
        for partition in has - had:
            self._held[partition] = self._held.get(partition, 0) + 1
        if current is not None:
            self.currents[member_id] = current

    def _describe(self, member_id: str, member: ConsumerMember | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self.size -= before.size
            if before.instance_id is not None and self.static_ids.get(before.instance_id) == member_id:
                del self.static_ids[before.instance_id]
        if member is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = member
        self.size += member.size
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id


class ConsumerStateDraft:
    """The state as it will be once its records are in the log. It is copied only when it is read after a record was
    written: after the last record of most heartbeats it is not read.
    """

    def __init__(self, state: ConsumerState) -> None:
        self._state = state
        self._applied = 0
        """Records that `_state` has; it is a copy if there are any."""
        self.records: list[ConsumerRecord] = []

    @property
    def state(self) -> ConsumerState:
        if self._applied < len(self.records):
            if not self._applied:
                self._state = self._state.copy()
            for record in self.records[self._applied :]:
                self._state.apply(record)
            self._applied = len(self.records)
        return self._state

    @property
    def changes_members(self) -> bool:
        """Whether a member joins, leaves or changes what it says of itself."""
        return any(isinstance(record, MemberRecord) for record in self.records)

    def write(self, *records: ConsumerRecord) -> None:
        self.records += records
