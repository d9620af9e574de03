"""DescribeClientQuotas and AlterClientQuotas (KIP-546). Each entity of a change has its own result."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.handlers.change_results import results_or_failure
from penstock.broker.requests.context import RequestContext
from penstock.cluster.decisions.quotas import QuotaChange
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code
from penstock.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntity,
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
)
from penstock.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasEntity,
    DescribeClientQuotasEntry,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasValue,
)
from penstock.security.quota_entity import QuotaEntity, quota_entity
from penstock.security.quota_filter import QuotaFilter, UnknownTypeError
from penstock.security.quota_keys import QuotaLimits


class ClientQuotaHandlers:
    """Answers requests about quotas."""

    def __init__(self, metadata: MetadataChanges) -> None:
        self._metadata = metadata

    async def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, context: RequestContext
    ) -> DescribeClientQuotasResponse:
        try:
            wanted = QuotaFilter(
                ((each.entity_type, each.match_type, each.match) for each in request.components),
                strict=request.strict,
            )
        except ValueError as error:
            code = Code.UNSUPPORTED_VERSION if isinstance(error, UnknownTypeError) else Code.INVALID_REQUEST
            return DescribeClientQuotasResponse(error_code=code, error_message=str(error))
        quotas = self._metadata.image.quotas
        found = [
            _described(entity, quotas[entity]) async for entity in context.work.over(quotas) if wanted.matches(entity)
        ]
        return DescribeClientQuotasResponse(entries=tuple(found))

    async def alter_client_quotas(
        self, request: AlterClientQuotasRequest, context: RequestContext
    ) -> AlterClientQuotasResponse:
        entities: list[QuotaEntity | ApiError] = [_entity(entry) for entry in request.entries]
        changes: dict[QuotaEntity, QuotaChange] = {}
        results: Mapping[QuotaEntity, ApiError | None]
        for at, (entity, entry) in enumerate(zip(list(entities), request.entries, strict=True)):
            if isinstance(entity, ApiError):
                continue
            if entity in changes:
                entities[at] = ApiError(Code.INVALID_REQUEST, f"The request names {entity} twice.")
            else:
                changes[entity] = {each.key: None if each.remove else each.value for each in entry.ops}
        results = await results_or_failure(
            self._metadata.alter_quotas(changes, validate_only=request.validate_only), changes
        )
        return AlterClientQuotasResponse(
            entries=tuple(
                _result(entry, entity if isinstance(entity, ApiError) else results[entity])
                for entry, entity in zip(request.entries, entities, strict=True)
            )
        )


def _described(entity: QuotaEntity, limits: QuotaLimits) -> DescribeClientQuotasEntry:
    return DescribeClientQuotasEntry(
        entity=tuple(
            DescribeClientQuotasEntity(entity_type=type_, entity_name=name or None)
            for type_, name in entity.names.items()
        ),
        values=tuple(DescribeClientQuotasValue(key=key.value, value=limit) for key, limit in limits.items()),
    )


def _entity(entry: AlterClientQuotasEntry) -> QuotaEntity | ApiError:
    names = {each.entity_type: each.entity_name for each in entry.entity}
    if len(names) < len(entry.entity):
        return ApiError(Code.INVALID_REQUEST, "An entity type is given twice.")
    if len({each.key for each in entry.ops}) < len(entry.ops):
        return ApiError(Code.INVALID_REQUEST, "A quota key is given twice.")
    try:
        return quota_entity(names)
    except ValueError as error:
        return ApiError(Code.INVALID_REQUEST, str(error))


def _result(entry: AlterClientQuotasEntry, error: ApiError | None) -> AlterClientQuotasResult:
    entity = tuple(
        AlterClientQuotasEntity(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity
    )
    if error is None:
        return AlterClientQuotasResult(entity=entity)
    return AlterClientQuotasResult(error_code=error.code, error_message=str(error), entity=entity)
