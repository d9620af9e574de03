"""The consumer protocol's one request, as an event, and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ApiError, Code
from penstock.groups.consumer.assignment import Assignment
from penstock.protocol.messages.consumer_group_heartbeat import JOIN, LEAVE, LEAVE_STATIC


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """The heartbeat of a member; a field that is None, or a timeout of -1, has not changed since the last one."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    """Empty: no expression any more."""
    assignor: str | None = None
    owned: Assignment | None = None
    must_bring_its_id: bool = False
    """Clients make up their ids themselves (version 1 and above)."""

    @property
    def is_leave(self) -> bool:
        return self.epoch in (LEAVE, LEAVE_STATIC)

    @property
    def is_full(self) -> bool:
        """It says everything, which a member does that does not know where it stands."""
        has_subscription = self.topics is not None or self.pattern is not None
        return self.epoch == JOIN or (self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None)

    def check(self) -> None:
        """Raises ApiError if it says what no member may say."""
        for name, value in (("InstanceId", self.instance_id), ("RackId", self.rack_id)):
            if value == "":
                raise _invalid(f"{name} can't be empty.")
        if not self.member_id and (self.epoch != JOIN or self.must_bring_its_id):
            raise _invalid("MemberId can't be empty.")
        if self.epoch == JOIN:
            if self.rebalance_timeout_ms == -1:
                raise _invalid("RebalanceTimeoutMs must be provided in first request.")
            if self.owned is None or self.owned:
                raise _invalid("TopicPartitions must be empty when (re-)joining.")
            if self.topics is None and self.pattern is None:
                raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be set when (re-)joining.")
        elif self.epoch == LEAVE_STATIC and self.instance_id is None:
            raise _invalid("InstanceId can't be null.")
        elif self.epoch < LEAVE_STATIC:
            raise _invalid("MemberEpoch is invalid.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None: as it was."""


def _invalid(reason: str) -> ApiError:
    return ApiError(Code.INVALID_REQUEST, reason)
