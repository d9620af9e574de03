"""InitProducerId: the id and the epoch of an idempotent or transactional producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.coordinators import OnDemand
from penstock.broker.requests.context import RequestContext
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code
from penstock.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.transactions.producer_ids import ProducerIds
from penstock.transactions.state_machine import NO_PRODUCER, Producer

if TYPE_CHECKING:
    from penstock.transactions.coordinator import TransactionCoordinator

_FENCED_FROM = 4
"""Older versions answer a fenced producer that its epoch is wrong."""


class ProducerIdHandlers:
    def __init__(self, metadata: MetadataChanges, transactions: OnDemand[TransactionCoordinator]) -> None:
        self._ids = ProducerIds(metadata)
        self._transactions = transactions

    async def init_producer_id(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        expected = Producer(request.producer_id, request.producer_epoch)
        try:
            if request.transactional_id is None:
                return InitProducerIdResponse(producer_id=await self._ids.next(), producer_epoch=0)
            if not request.transactional_id or (expected.id < 0) != (expected.epoch < 0):
                raise ApiError(
                    Code.INVALID_REQUEST, "the transactional id is empty, or only one of producer id and epoch is set"
                )
            decision = await self._transactions.coordinator().init(
                request.transactional_id, NO_PRODUCER if expected.id < 0 else expected, request.transaction_timeout_ms
            )
        except ApiError as error:
            return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)
        code = decision.code
        if code is Code.PRODUCER_FENCED and context.version < _FENCED_FROM:
            code = Code.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(
            error_code=code, producer_id=decision.producer.id, producer_epoch=decision.producer.epoch
        )
