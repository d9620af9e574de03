"""FindCoordinator: who looks after a group or a transactional id."""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.coordinators import Coordinators
from penstock.cluster.controller import Controller
from penstock.errors import ApiError, Code
from penstock.protocol.messages.find_coordinator import (
    GROUP,
    TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_MANY_COORDINATORS_FROM = 4


class CoordinatorHandlers:
    def __init__(self, coordinators: Coordinators, controller: Controller) -> None:
        self._coordinators = coordinators
        self._controller = controller

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        many = context.version >= _MANY_COORDINATORS_FROM
        keys = request.coordinator_keys if many else (request.key,)
        found = tuple([await self._find(key, request.key_type) for key in keys])
        if many:
            return FindCoordinatorResponse(coordinators=found)
        (one,) = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _find(self, key: str, key_type: int) -> Coordinator:
        """One broker is the coordinator of everything it can be asked for."""
        code, reason = Code.NONE, None
        try:
            if key_type == GROUP:
                await self._coordinators.groups.coordinator().prepare()
            elif key_type == TRANSACTION:
                await self._coordinators.transactions.coordinator().prepare()
            else:
                code, reason = Code.INVALID_REQUEST, f"there are no coordinators of type {key_type}"
        except ApiError as error:
            code, reason = Code.COORDINATOR_NOT_AVAILABLE, str(error)
        if code is not Code.NONE:
            return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=reason)
        image = self._controller.image
        broker = image.brokers[image.controller]
        return Coordinator(key=key, node_id=broker.id, host=broker.host, port=broker.port)
