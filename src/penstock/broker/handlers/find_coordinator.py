"""FindCoordinator: which broker coordinates a group or a transactional id."""

from __future__ import annotations

from penstock.broker.coordinators import Coordinators
from penstock.broker.requests.context import RequestContext
from penstock.cluster.metadata import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.cluster.metadata_changes import MetadataChanges
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
    def __init__(self, coordinators: Coordinators, metadata: MetadataChanges) -> None:
        self._coordinators = coordinators
        self._metadata = metadata

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        many = context.version >= _MANY_COORDINATORS_FROM
        keys = request.coordinator_keys if many else (request.key,)
        listener = context.caller.listener
        found = tuple([await self._find(key, request.key_type, listener) async for key in context.work.over(keys)])
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

    async def _find(self, key: str, key_type: int, listener: str) -> Coordinator:
        """The broker that leads the partition of the internal topic which the key belongs to, at this listener."""
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
        image = self._metadata.image
        leader = image.topics[topic].partitions[partition_for(key, partitions)].leader
        broker = image.brokers.get(leader)
        if broker is None:
            return _nobody(key, Code.COORDINATOR_NOT_AVAILABLE, "the partition that it belongs to has no leader")
        endpoint = broker.endpoint(listener)
        if endpoint is None:
            reason = f"the coordinator, broker {broker.id}, has no listener {listener}"
            return _nobody(key, Code.COORDINATOR_NOT_AVAILABLE, reason)
        return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port)


def _nobody(key: str, code: Code, reason: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=reason)
