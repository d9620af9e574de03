"""What members of groups are answered while their coordinator cannot serve them."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.broker.handlers.committed_offsets import CommittedOffsetHandlers
from penstock.broker.handlers.groups import GroupHandlers
from penstock.broker.remote_groups import RemoteGroups
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.events import Heartbeat
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from support import callers


class Refusing:
    """A coordinator that cannot serve anybody."""

    def __init__(self, code: Code) -> None:
        self._code = code

    async def heartbeat(self, group_id: str, event: Heartbeat) -> Code:
        raise ApiError(self._code)

    async def check_reader(self, group_id: str, member_id: str | None, epoch: int) -> None:
        raise ApiError(self._code)


class NobodyElse:
    """No other broker coordinates the group."""

    async def offsets(self, group: OffsetFetchRequestGroup, version: int, *, require_stable: bool) -> None:
        return None


@pytest.mark.parametrize(
    ("reason", "answer"),
    [
        # A member whose group is being loaded has nothing to do: its session begins when that is done.
        (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NONE),
        (Code.NOT_COORDINATOR, Code.NOT_COORDINATOR),
        (Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_a_heartbeat_to_a_coordinator_that_loads_the_group_is_good(reason: Code, answer: Code) -> None:
    handlers = GroupHandlers(cast(GroupCoordinator, Refusing(reason)))
    request = HeartbeatRequest(group_id="workers", generation_id=1, member_id="one")
    response = await handlers.heartbeat(request, RequestContext(4, callers.client()))
    assert response.error_code == answer


@pytest.mark.parametrize("version", [1, 3, 5, 7])
@pytest.mark.parametrize("reason", [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR])
async def test_offsets_that_cannot_be_told_are_refused_one_by_one(version: int, reason: Code) -> None:
    """Version 1 has nothing else, and aiokafka, which speaks version 3, looks at nothing else: it would take no
    partitions for no offsets. librdkafka, which speaks version 7, never reads a partition again that has an error.
    """
    handlers = CommittedOffsetHandlers(
        cast(GroupCoordinator, Refusing(reason)),
        cast(RemoteGroups, NobodyElse()),
        cast(MetadataChanges, None),
        ManualClock(),
    )
    asked = (OffsetFetchRequestTopic(name="orders", partition_indexes=(0, 2)),)
    request = OffsetFetchRequest(group_id="workers", topics=asked)
    response = await handlers.offset_fetch(request, RequestContext(version, callers.client()))
    told = [
        (each.partition_index, each.committed_offset, each.error_code)
        for topic in response.topics
        for each in topic.partitions
    ]
    assert told == ([(0, -1, reason), (2, -1, reason)] if version <= 3 else [])
    assert response.error_code == reason
