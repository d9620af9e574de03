"""DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from penstock.broker.handlers.change_results import not_written
from penstock.broker.requests.context import RequestContext
from penstock.cluster.decisions.access import matching
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import ApiError, Code, CoordinationError
from penstock.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from penstock.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from penstock.security.acls import (
    Acl,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.principal import Principal

MAX_ACLS = 10_000
"""That one request may create: Kafka's bound."""
MAX_FILTERS = 1000

W = TypeVar("W", bound=IntEnum)

_DISABLED = ApiError(
    Code.SECURITY_DISABLED, "No authorizer is configured on the broker: set security.authorizer = acls."
)


class AclHandlers:
    """Answers requests about access control lists; without an authorizer there are none."""

    def __init__(self, metadata: MetadataChanges, *, is_enabled: bool) -> None:
        self._metadata = metadata
        self._is_enabled = is_enabled

    async def describe_acls(self, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
        try:
            self._check_enabled()
            wanted = _filter(request)
        except ApiError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=str(error))
        found: dict[ResourcePattern, list[AclDescription]] = {}
        async for resource, entry in context.work.over(matching(self._metadata.image.acls, wanted)):
            await context.work.grow(1)
            found.setdefault(resource, []).append(
                AclDescription(
                    principal=str(entry.principal),
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission,
                )
            )
        return DescribeAclsResponse(
            resources=tuple(
                DescribeAclsResource(resource_type=type_, resource_name=name, pattern_type=pattern, acls=tuple(entries))
                for (type_, name, pattern), entries in found.items()
            )
        )

    async def create_acls(self, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        results: dict[int, ApiError | None] = {}
        wanted: dict[int, Acl] = {}
        too_many = _too_many(len(request.creations), MAX_ACLS, "ACLs")
        async for at, creation in context.work.over(enumerate(request.creations)):
            try:
                self._check_enabled()
                if too_many is not None:
                    raise too_many
                wanted[at] = _acl(creation)
            except ApiError as error:
                results[at] = error
        if wanted:
            try:
                created = await self._metadata.create_acls(list(wanted.values()))
            except CoordinationError as error:
                created = [not_written(error)] * len(wanted)
            results |= zip(wanted, created, strict=True)
        return CreateAclsResponse(results=tuple(_created(results[at]) for at in range(len(request.creations))))

    async def delete_acls(self, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        results: dict[int, list[Acl] | ApiError] = {}
        wanted: dict[int, AclFilter] = {}
        too_many = _too_many(len(request.filters), MAX_FILTERS, "filters")
        async for at, given in context.work.over(enumerate(request.filters)):
            try:
                self._check_enabled()
                if too_many is not None:
                    raise too_many
                wanted[at] = _filter(given)
            except ApiError as error:
                results[at] = error
        if wanted:
            try:
                deleted = await self._metadata.delete_acls(list(wanted.values()))
                results |= {at: list(found) for at, found in zip(wanted, deleted, strict=True)}
            except (ApiError, CoordinationError) as error:
                refusal = error if isinstance(error, ApiError) else not_written(error)
                results |= dict.fromkeys(wanted, refusal)
        answers = []
        for at in range(len(request.filters)):
            found = results[at]
            if isinstance(found, ApiError):
                answers.append(DeleteAclsFilterResult(error_code=found.code, error_message=str(found)))
                continue
            await context.work.grow(1 + len(found))
            answers.append(DeleteAclsFilterResult(matching_acls=tuple(map(_deleted, found))))
        return DeleteAclsResponse(filter_results=tuple(answers))

    def _check_enabled(self) -> None:
        if not self._is_enabled:
            raise _DISABLED


def _created(error: ApiError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult()
    return AclCreationResult(error_code=error.code, error_message=str(error))


def _acl(creation: AclCreation) -> Acl:
    resource = ResourcePattern(
        _word(ResourceType, creation.resource_type, "resource type"),
        creation.resource_name,
        _word(PatternType, creation.resource_pattern_type, "pattern type"),
    )
    try:
        principal = Principal.parse(creation.principal)
    except ValueError as error:
        raise ApiError(Code.INVALID_REQUEST, f"Could not parse the principal: {error}") from error
    operation = _word(Operation, creation.operation, "operation")
    permission = _word(Permission, creation.permission_type, "permission type")
    return Acl(resource, AclEntry(principal, creation.host, operation, permission))


def _filter(given: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    wanted = AclFilter(
        _word(ResourceType, given.resource_type_filter, "resource type"),
        given.resource_name_filter,
        _word(PatternType, given.pattern_type_filter, "pattern type"),
        given.principal_filter,
        given.host_filter,
        _word(Operation, given.operation, "operation"),
        _word(Permission, given.permission_type, "permission type"),
    )
    if 0 in (wanted.type, wanted.pattern, wanted.operation, wanted.permission):
        raise ApiError(Code.INVALID_REQUEST, "The filter contains UNKNOWN elements.")
    return wanted


def _word(kind: type[W], number: int, noun: str) -> W:
    try:
        return kind(number)
    except ValueError:
        raise ApiError(Code.INVALID_REQUEST, f"There is no {noun} {number}.") from None


def _too_many(count: int, allowed: int, noun: str) -> ApiError | None:
    if count <= allowed:
        return None
    return ApiError(Code.INVALID_REQUEST, f"{count} {noun} in one request; {allowed} are allowed.")


def _deleted(acl: Acl) -> DeleteAclsMatchingAcl:
    (type_, name, pattern), (principal, host, operation, permission) = acl
    return DeleteAclsMatchingAcl(
        resource_type=type_,
        resource_name=name,
        pattern_type=pattern,
        principal=str(principal),
        host=host,
        operation=operation,
        permission_type=permission,
    )
