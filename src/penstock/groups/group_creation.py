"""A heartbeat of the consumer protocol creates a group, or turns a classic group into a consumer group."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cluster.metadata import MetadataImage
from penstock.errors import ApiError, Code
from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.consumer.events import ConsumerHeartbeat, HeartbeatAnswer
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import EpochRecord, GroupEpoch
from penstock.groups.consumer.state import ConsumerStateDraft
from penstock.groups.events import Outcome
from penstock.groups.offsets import GroupTombstone
from penstock.groups.rules import GroupRules
from penstock.groups.upgrade import to_consumer
from penstock.protocol.messages.consumer_group_heartbeat import JOIN


def create_or_upgrade(
    group: ClassicGroup | None,
    fresh: ConsumerGroup,
    events: Sequence[ConsumerHeartbeat],
    rules: GroupRules,
    image: MetadataImage,
    now_ms: int,
) -> tuple[list[HeartbeatAnswer | ApiError], Outcome]:
    """The first members of a consumer group join: there was no group, or a classic one, which is upgraded.

    `fresh` is a scratch copy: the records make the group. Raises ApiError if the group cannot be created.
    """
    draft = ConsumerStateDraft(fresh.state)
    if group is None:
        return fresh.heartbeats(events, image, now_ms, draft)
    if group.state is GroupState.EMPTY:
        draft.write(EpochRecord(group.group_id, GroupEpoch(group.generation.number, 0)))
    else:
        if len(group.members) >= rules.max_members:
            raise ApiError(Code.GROUP_MAX_SIZE_REACHED, f"The group has {rules.max_members} members already.")
        records = to_consumer(group, image)
        if records is None:
            raise ApiError(Code.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")
        draft.write(*records)
    answers, outcome = fresh.heartbeats(events, image, now_ms, draft)
    if not outcome.records:
        return answers, outcome
    outcome.replies += group.abandon(Code.REBALANCE_IN_PROGRESS).replies
    # Last, so that one who reads the log sees a group at every moment.
    outcome.records.append(GroupTombstone(group.group_id))
    return answers, outcome


def check_known(group: ClassicGroup | None, event: ConsumerHeartbeat, group_id: str) -> None:
    """Raises ApiError unless the member asks to join a group that is no consumer group yet."""
    event.check()
    if event.epoch != JOIN:
        static_ids = {} if group is None else group.roster.static_ids
        if event.instance_id in static_ids:
            raise ApiError(Code.FENCED_INSTANCE_ID, f"Instance id {event.instance_id} has another member now.")
        # To a member whose group is not ours any more this says: join again.
        raise ApiError(Code.UNKNOWN_MEMBER_ID, f"There is no consumer group {group_id}.")
