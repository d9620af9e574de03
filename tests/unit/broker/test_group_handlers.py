"""What members of groups are answered while their coordinator cannot serve them."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.broker.handlers.groups import GroupHandlers
from penstock.broker.requests.context import RequestContext
from penstock.errors import ApiError, Code
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.events import Heartbeat
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from support import callers


class Refusing:
    """A coordinator that cannot serve anybody."""

    def __init__(self, code: Code) -> None:
        self._code = code

    async def heartbeat(self, group_id: str, event: Heartbeat) -> Code:
        raise ApiError(self._code)


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
