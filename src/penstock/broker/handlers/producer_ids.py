"""InitProducerId: every idempotent producer gets an id that nobody had before."""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.cluster.controller import Controller
from penstock.errors import Code, CoordinationError
from penstock.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_BLOCK = 1000
"""Ids are taken from the coordination tree in blocks; what a crash leaves of a block is never used."""


class ProducerIdHandlers:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._ids = iter(range(0))

    async def init_producer_id(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=Code.INVALID_REQUEST, producer_epoch=-1)
        try:
            return InitProducerIdResponse(producer_id=await self._next_id(), producer_epoch=0)
        except CoordinationError:
            return InitProducerIdResponse(error_code=Code.COORDINATOR_NOT_AVAILABLE, producer_epoch=-1)

    async def _next_id(self) -> int:
        while True:
            for producer_id in self._ids:
                return producer_id
            self._ids = iter(await self._controller.allocate_producer_ids(_BLOCK))
