"""FindCoordinator: who looks after a group or a transactional id."""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.coordinators import Coordinators
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.errors import ApiError, Code
from penstock.protocol.messages.find_coordinator import (
    GROUP,
    TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.replication.placement import partition_for

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
        """The broker that leads the partition of the internal topic which the key belongs to."""
        try:
            if key_type == GROUP:
                topic, partitions = OFFSETS_TOPIC, await self._coordinators.groups.coordinator().prepare()
            elif key_type == TRANSACTION:
                topic, partitions = TRANSACTIONS_TOPIC, await self._coordinators.transactions.coordinator().prepare()
            else:
                raise ApiError(Code.INVALID_REQUEST, f"there are no coordinators of type {key_type}")
        except ApiError as error:
            code = error.code if error.code is Code.INVALID_REQUEST else Code.COORDINATOR_NOT_AVAILABLE
            return _nobody(key, code, str(error))
        image = self._controller.image
        leader = image.topics[topic].partitions[partition_for(key, partitions)].leader
        broker = image.brokers.get(leader)
        if broker is None:
            return _nobody(key, Code.COORDINATOR_NOT_AVAILABLE, "nobody leads the partition that it belongs to")
        return Coordinator(key=key, node_id=broker.id, host=broker.host, port=broker.port)


def _nobody(key: str, code: Code, reason: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=reason)
