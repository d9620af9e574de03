"""Resetting a group's offsets: first a plan, which says what will be handled again or skipped, then the change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from penstock.admin.errors import AdminError
from penstock.admin.groups import GroupOperations
from penstock.admin.offsets import OffsetOperations
from penstock.admin.positions import AtOffset, OffsetBounds, Position
from penstock.admin.results import Results
from penstock.errors import Code
from penstock.ids import TopicPartition
from penstock.sdk.topic_names import dead_topic, is_retry_topic


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """This many offsets further than the committed one, or back if negative."""

    count: int


ResetTarget = Position | ShiftBy


@dataclass(frozen=True, slots=True)
class TopicEffect:
    """What a reset means for the records of one topic; upper bounds, because offsets have gaps."""

    repeated: int
    skipped: int


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset would do."""

    group: str
    member_count: int
    """Members that brokers fence when the plan is applied."""
    before: Mapping[TopicPartition, int]
    """All committed offsets of the group."""
    after: Mapping[TopicPartition, int]
    """The offsets that are set."""
    errors: Mapping[TopicPartition, AdminError]
    """Requested partitions that cannot be reset."""
    left_out: tuple[str, ...]
    """Retry and dead-letter topics of the group, which a reset leaves out unless the caller includes them."""

    @property
    def effects(self) -> Mapping[str, TopicEffect]:
        """By topic."""
        found: dict[str, TopicEffect] = {}
        for at, offset in self.after.items():
            moved = offset - self.before.get(at, offset)
            so_far = found.get(at.topic, TopicEffect(0, 0))
            found[at.topic] = TopicEffect(so_far.repeated + max(0, -moved), so_far.skipped + max(0, moved))
        return found


class ResetOperations:
    """Resets offsets of groups."""

    def __init__(self, groups: GroupOperations, offsets: OffsetOperations) -> None:
        self._groups = groups
        self._offsets = offsets

    def plan(
        self,
        group: str,
        target: ResetTarget,
        partitions: Collection[TopicPartition] | None = None,
        *,
        include_retries: bool = False,
    ) -> ResetPlan:
        """What setting these partitions to a target means; None: all that the group has committed an offset for,
        without its retry and dead-letter topics unless they are included. Changes nothing.
        """
        before = {at: each.offset for at, each in self._groups.committed([group])[group].items()}
        chosen = list(partitions) if partitions is not None else list(before)
        left_out: tuple[str, ...] = ()
        if partitions is None and not include_retries:
            left_out = tuple(sorted({at.topic for at in chosen if _is_own_topic(group, at.topic)}))
            chosen = [at for at in chosen if at.topic not in left_out]
        resolved = self._resolve(chosen, target, before)
        return ResetPlan(group, self._member_count(group), before, resolved.values, resolved.errors, left_out)

    def apply(self, plan: ResetPlan) -> Results[TopicPartition, None]:
        """Sets the offsets of a plan."""
        return self._groups.set_offsets(plan.group, plan.after)

    def _member_count(self, group: str) -> int:
        described = self._groups.describe([group])
        if group in described.values:
            return len(described.values[group].members)
        if described.errors[group].code == Code.GROUP_ID_NOT_FOUND.name:
            return 0
        raise described.errors[group]

    def _resolve(
        self, partitions: Iterable[TopicPartition], target: ResetTarget, before: Mapping[TopicPartition, int]
    ) -> Results[TopicPartition, int]:
        ranges = self._offsets.ranges(partitions)
        if isinstance(target, ShiftBy):
            found = _shifted(target, ranges.values, before)
        else:
            found = self._offsets.resolve(ranges.values, target)
        errors = {**ranges.errors, **found.errors}
        if isinstance(target, AtOffset):
            errors |= {
                at: AdminError(Code.OFFSET_OUT_OF_RANGE.name, f"{at} ends at {held.end}, before offset {target.offset}")
                for at, held in ranges.values.items()
                if target.offset > held.end
            }
        return Results({at: offset for at, offset in found.values.items() if at not in errors}, errors)


def _shifted(
    target: ShiftBy, ranges: Mapping[TopicPartition, OffsetBounds], before: Mapping[TopicPartition, int]
) -> Results[TopicPartition, int]:
    values, errors = {}, {}
    for at, held in ranges.items():
        if at in before:
            values[at] = held.clamp(before[at] + target.count)
        else:
            errors[at] = AdminError(Code.INVALID_REQUEST.name, f"{at} has no committed offset to shift")
    return Results(values, errors)


def _is_own_topic(group: str, topic: str) -> bool:
    """Whether the SDK keeps the group's retries or dead letters in a topic."""
    return is_retry_topic(group, topic) or topic == dead_topic(group)
