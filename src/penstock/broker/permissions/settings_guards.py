"""Guards of calls about settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock.broker.handlers.configs import ResourceType as ConfigType
from penstock.broker.permissions.access import Access
from penstock.broker.permissions.guard import Handler, Need
from penstock.broker.requests.context import RequestContext
from penstock.config.draining import DRAINING
from penstock.config.retired import RETIRED_SETTING
from penstock.errors import Code
from penstock.protocol.messages.alter_configs import AlterConfigsResourceResponse, AlterConfigsResponse
from penstock.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType

MORE_THAN_SETTINGS = {
    RETIRED_SETTING: Need(Operation.ALTER, ResourceType.TOPIC),
    DRAINING.name: Need(Operation.ALTER, ResourceType.CLUSTER),
}
"""Settings that do what another call needs ALTER for: they take partitions away, or move them."""

_OWN_ACLS = {ConfigType.TOPIC: ResourceType.TOPIC, ConfigType.GROUP: ResourceType.GROUP}
_DENIED = "Not authorized."


def _resource(type_: int, name: str) -> tuple[ResourceType, str]:
    """What the settings of a resource are protected as: those of brokers, loggers and database groups are the
    cluster's.
    """
    own = _OWN_ACLS.get(ConfigType(type_)) if type_ in _OWN_ACLS else None
    return (ResourceType.CLUSTER, CLUSTER_NAME) if own is None else (own, name)


async def describe_configs(
    request: DescribeConfigsRequest, context: RequestContext, access: Access, handler: Handler
) -> DescribeConfigsResponse:
    """DESCRIBE_CONFIGS on the topic, the group, or the cluster for everything else."""
    allowed, denied = [], []
    async for resource in context.work.over(request.resources):
        code = access.refusal(Operation.DESCRIBE_CONFIGS, *_resource(resource.resource_type, resource.resource_name))
        if code is Code.NONE:
            allowed.append(resource)
        else:
            denied.append(
                DescribeConfigsResult(
                    error_code=code,
                    error_message=_DENIED,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
    if denied and not allowed:
        return DescribeConfigsResponse(results=tuple(denied))
    asked = replace(request, resources=tuple(allowed)) if denied else request
    response: DescribeConfigsResponse = await handler(asked, context)
    return replace(response, results=(*response.results, *denied)) if denied else response


async def alter_configs(
    request: Any, context: RequestContext, access: Access, handler: Handler
) -> AlterConfigsResponse:
    response: AlterConfigsResponse = await _altered(request, context, access, handler, AlterConfigsResponse)
    return response


async def incremental_alter_configs(
    request: Any, context: RequestContext, access: Access, handler: Handler
) -> IncrementalAlterConfigsResponse:
    response: IncrementalAlterConfigsResponse = await _altered(
        request, context, access, handler, IncrementalAlterConfigsResponse
    )
    return response


async def _altered(request: Any, context: RequestContext, access: Access, handler: Handler, response_type: Any) -> Any:
    """ALTER_CONFIGS on the topic, the group, or the cluster for everything else; and what single settings need."""
    allowed, denied = [], []
    async for resource in context.work.over(request.resources):
        code = Code.NONE
        for (operation, type_), name in _needs(resource, access):
            code = code or access.refusal(operation, type_, name)
        if code is Code.NONE:
            allowed.append(resource)
        else:
            denied.append(
                AlterConfigsResourceResponse(
                    error_code=code,
                    error_message=_DENIED,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
    if denied and not allowed:
        return response_type(responses=tuple(denied))
    response = await handler(replace(request, resources=tuple(allowed)) if denied else request, context)
    return replace(response, responses=(*response.responses, *denied)) if denied else response


def _needs(resource: Any, access: Access) -> Iterator[tuple[Need, str]]:
    type_, name = _resource(resource.resource_type, resource.resource_name)
    yield Need(Operation.ALTER_CONFIGS, type_), name
    topic = access.image.topics.get(name) if type_ is ResourceType.TOPIC else None
    if topic is not None and topic.view_of is not None:
        # Other tags show other records of the base.
        yield Need(Operation.READ, ResourceType.TOPIC), topic.view_of
    for config in resource.configs:
        more = MORE_THAN_SETTINGS.get(config.name)
        if more is not None:
            yield more, name if more.type is type_ else CLUSTER_NAME
