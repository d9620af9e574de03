"""Guards of calls about producers and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.broker.permissions.access import Access
from penstock.broker.permissions.guard import EachItem, Handler, Need, WholeRequest
from penstock.broker.requests.context import RequestContext
from penstock.errors import Code
from penstock.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from penstock.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from penstock.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from penstock.protocol.messages.end_txn import EndTxnResponse
from penstock.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.security.acls import Operation, ResourceType

_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
_GROUP = ResourceType.GROUP
_TOPIC = ResourceType.TOPIC
_SEVERAL_FROM = 4

add_offsets = WholeRequest(
    lambda request: (
        (Need(Operation.WRITE, _TRANSACTIONAL_ID), request.transactional_id),
        (Need(Operation.READ, _GROUP), request.group_id),
    ),
    lambda request, context, code: AddOffsetsToTxnResponse(error_code=code),
)
end = WholeRequest(
    lambda request: ((Need(Operation.WRITE, _TRANSACTIONAL_ID), request.transactional_id),),
    lambda request, context, code: EndTxnResponse(error_code=code),
)


async def init_producer_id(
    request: InitProducerIdRequest, context: RequestContext, access: Access, handler: Handler
) -> InitProducerIdResponse:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on some topic."""
    code = Code.NONE
    if request.transactional_id is not None:
        code = access.refusal(Operation.WRITE, _TRANSACTIONAL_ID, request.transactional_id)
    elif not access.may_write_idempotently():
        code = Code.CLUSTER_AUTHORIZATION_FAILED
    if code is not Code.NONE:
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    response: InitProducerIdResponse = await handler(request, context)
    return response


async def add_partitions(
    request: AddPartitionsToTxnRequest, context: RequestContext, access: Access, handler: Handler
) -> AddPartitionsToTxnResponse:
    """WRITE on each transactional id and on its topics; if one is denied, none is added to that transaction."""
    if context.version >= _SEVERAL_FROM:
        return await _add_to_several(request, context, access, handler)
    topics = request.v3_and_below_topics
    denied = await _denied(request.v3_and_below_transactional_id, topics, context, access)
    if denied is not None:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=denied)
    added: AddPartitionsToTxnResponse = await handler(request, context)
    return added


async def _add_to_several(
    request: AddPartitionsToTxnRequest, context: RequestContext, access: Access, handler: Handler
) -> AddPartitionsToTxnResponse:
    allowed, refused = [], []
    async for asked in context.work.over(request.transactions):
        denied = await _denied(asked.transactional_id, asked.topics, context, access)
        if denied is None:
            allowed.append(asked)
        else:
            refused.append(AddPartitionsToTxnResult(transactional_id=asked.transactional_id, topic_results=denied))
    if refused and not allowed:
        return AddPartitionsToTxnResponse(results_by_transaction=tuple(refused))
    added: AddPartitionsToTxnResponse = await handler(replace(request, transactions=tuple(allowed)), context)
    return replace(added, results_by_transaction=(*added.results_by_transaction, *refused))


async def _denied(
    transactional_id: str, topics: Sequence[AddPartitionsToTxnTopic], context: RequestContext, access: Access
) -> tuple[AddPartitionsToTxnTopicResult, ...] | None:
    """The answer for a transaction of which something is denied; None if all is allowed."""
    whole = access.refusal(Operation.WRITE, _TRANSACTIONAL_ID, transactional_id)
    codes: dict[str, Code] = {}
    if whole is Code.NONE:
        async for topic in context.work.over(topics):
            codes[topic.name] = access.refusal(Operation.WRITE, _TOPIC, topic.name)
        if not any(codes.values()):
            return None
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=whole or codes[topic.name] or Code.OPERATION_NOT_ATTEMPTED,
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )


async def commit_offsets(
    request: TxnOffsetCommitRequest, context: RequestContext, access: Access, handler: Handler
) -> TxnOffsetCommitResponse:
    """WRITE on the transactional id, READ on the group and on each topic."""
    code = access.refusal(Operation.WRITE, _TRANSACTIONAL_ID, request.transactional_id) or access.refusal(
        Operation.READ, _GROUP, request.group_id
    )
    if code is not Code.NONE:
        return TxnOffsetCommitResponse(topics=tuple(_not_committed(topic, code) for topic in request.topics))
    guard = EachItem(
        Need(Operation.READ, _TOPIC),
        "topics",
        lambda topic: str(topic.name),
        "topics",
        _not_committed,
        TxnOffsetCommitResponse,
    )
    response: TxnOffsetCommitResponse = await guard(request, context, access, handler)
    return response


def _not_committed(topic: TxnOffsetCommitRequestTopic, code: Code) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=tuple(
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ),
    )


async def describe_transactions(
    request: DescribeTransactionsRequest, context: RequestContext, access: Access, handler: Handler
) -> DescribeTransactionsResponse:
    """DESCRIBE on each transactional id; topics that may not be described are left out."""
    guard = EachItem(
        Need(Operation.DESCRIBE, _TRANSACTIONAL_ID),
        "transactional_ids",
        str,
        "transaction_states",
        lambda name, code: TransactionState(transactional_id=name, error_code=code),
        DescribeTransactionsResponse,
    )
    response: DescribeTransactionsResponse = await guard(request, context, access, handler)
    return replace(
        response,
        transaction_states=tuple(
            replace(
                state,
                topics=tuple(each for each in state.topics if access.sees(Operation.DESCRIBE, _TOPIC, each.topic)),
            )
            for state in response.transaction_states
        ),
    )


async def list_transactions(
    request: ListTransactionsRequest, context: RequestContext, access: Access, handler: Handler
) -> ListTransactionsResponse:
    """Those that may be described."""
    response: ListTransactionsResponse = await handler(request, context)
    states = [
        state
        async for state in context.work.over(response.transaction_states)
        if access.sees(Operation.DESCRIBE, _TRANSACTIONAL_ID, state.transactional_id)
    ]
    return replace(response, transaction_states=tuple(states))
