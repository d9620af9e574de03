"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

Settings belong to a resource: a topic, a group, this broker (its id), or all brokers (the empty name). Each resource
of a request is answered for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.broker.context import RequestContext
from penstock.broker.descriptions import Described, Descriptions
from penstock.broker.handlers.committing import duplicates, results_or_failure
from penstock.cluster.controller import Controller
from penstock.cluster.settings import Increment, Operation, OperationKind, Replacement, SettingsChange
from penstock.cluster.topics import check_name
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId
from penstock.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from penstock.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from penstock.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from penstock.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_ALL_TYPES_FROM = 1
_EMPTY_TYPES = (8, 16)
"""Broker loggers and client metrics: Kafka has settings of them, there are none here."""


class ResourceType(IntEnum):
    """What has settings; numbered as on the wire."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(frozen=True, slots=True)
class _Alteration:
    """One resource of an alter request, as far as it could be understood."""

    resource_type: int
    resource_name: str
    change: SettingsChange | ApiError


class ConfigHandlers:
    """Answers requests about settings."""

    def __init__(self, controller: Controller, broker_id: BrokerId, descriptions: Descriptions) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._descriptions = descriptions

    async def describe_configs(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            try:
                described, error = self._described(resource), None
            except ApiError as refusal:
                described, error = [], refusal
            keys = set(resource.configuration_keys or ())
            results.append(
                DescribeConfigsResult(
                    error_code=Code.NONE if error is None else error.code,
                    error_message=None if error is None else str(error),
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=tuple(
                        _described_config(setting, request) for setting in described if not keys or setting.name in keys
                    ),
                )
            )
        return DescribeConfigsResponse(results=tuple(results))

    async def alter_configs(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        alterations = [
            _Alteration(resource.resource_type, resource.resource_name, _replacement(resource.configs))
            for resource in request.resources
        ]
        return AlterConfigsResponse(responses=await self._alter(alterations, request.validate_only))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        alterations = [
            _Alteration(resource.resource_type, resource.resource_name, _increment(resource.configs))
            for resource in request.resources
        ]
        return IncrementalAlterConfigsResponse(responses=await self._alter(alterations, request.validate_only))

    async def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        """What has settings; of groups those that have some of their own. Without types, all types are meant."""
        image = self._controller.image
        names: Mapping[int, Iterable[str]] = {
            ResourceType.TOPIC: image.topics,
            ResourceType.BROKER: map(str, image.brokers),
            ResourceType.GROUP: image.settings_by_group,
        }
        if context.version < _ALL_TYPES_FROM:
            # It was ListClientMetricsResources then, of which there are none.
            return ListConfigResourcesResponse()
        wanted = set(request.resource_types) or {*names, *_EMPTY_TYPES}
        if not wanted <= {*names, *_EMPTY_TYPES}:
            return ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION)
        return ListConfigResourcesResponse(
            config_resources=tuple(
                ConfigResource(resource_name=name, resource_type=kind)
                for kind in names
                if kind in wanted
                for name in names[kind]
            )
        )

    def _described(self, resource: DescribeConfigsResource) -> Sequence[Described]:
        image = self._controller.image
        name = resource.resource_name
        match resource.resource_type:
            case ResourceType.TOPIC:
                check_name(name)
                topic = image.topics.get(name)
                if topic is None:
                    raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
                return self._descriptions.topic(image, topic)
            case ResourceType.BROKER:
                if self._broker_of(name) is None:
                    return self._descriptions.all_brokers(image)
                return self._descriptions.broker(image)
            case ResourceType.GROUP:
                if not name:
                    raise ApiError(Code.INVALID_REQUEST, "Default group resources are not allowed.")
                return self._descriptions.group(image, name)
        raise ApiError(Code.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")

    def _broker_of(self, name: str) -> BrokerId | None:
        """This broker, or None for all of them."""
        if not name:
            return None
        if name != str(self._broker_id):
            raise ApiError(
                Code.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._broker_id} or empty string, but received {name}",
            )
        return self._broker_id

    async def _alter(
        self, alterations: Sequence[_Alteration], validate_only: bool
    ) -> tuple[AlterConfigsResourceResponse, ...]:
        twice = duplicates((one.resource_type, one.resource_name) for one in alterations)
        topics: dict[str, SettingsChange] = {}
        brokers: dict[BrokerId | None, SettingsChange] = {}
        groups: dict[str, SettingsChange] = {}
        errors: dict[tuple[int, str], ApiError | None] = {}
        for one in alterations:
            key = (one.resource_type, one.resource_name)
            try:
                if key in twice:
                    raise ApiError(Code.INVALID_REQUEST, "Each resource must appear at most once.")
                if isinstance(one.change, ApiError):
                    raise one.change
                match one.resource_type:
                    case ResourceType.TOPIC:
                        topics[one.resource_name] = one.change
                    case ResourceType.BROKER:
                        brokers[self._broker_of(one.resource_name)] = one.change
                    case ResourceType.GROUP:
                        groups[one.resource_name] = one.change
                    case _:
                        raise ApiError(Code.INVALID_REQUEST, f"Unknown resource type {one.resource_type}")
            except ApiError as error:
                errors[key] = error
        # Brokers first: a topic's settings are then checked against the defaults that the same request sets.
        of_brokers = await results_or_failure(
            self._controller.alter_broker_settings(brokers, validate_only=validate_only), brokers
        )
        of_topics = await results_or_failure(
            self._controller.alter_topic_settings(topics, validate_only=validate_only), topics
        )
        of_groups = await results_or_failure(
            self._controller.alter_group_settings(groups, validate_only=validate_only), groups
        )
        errors |= {
            (int(ResourceType.BROKER), "" if broker is None else str(broker)): error
            for broker, error in of_brokers.items()
        }
        errors |= {(int(ResourceType.TOPIC), name): error for name, error in of_topics.items()}
        errors |= {(int(ResourceType.GROUP), name): error for name, error in of_groups.items()}
        return tuple(_altered(one, errors) for one in alterations)


def _described_config(setting: Described, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    if request.include_synonyms:
        synonyms = tuple(
            DescribeConfigsSynonym(name=origin.name, value=origin.value, source=origin.source)
            for origin in setting.origins
        )
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        config_source=setting.source,
        synonyms=synonyms,
        config_type=setting.kind,
        documentation=setting.documentation if request.include_documentation else None,
    )


def _replacement(configs: Sequence[AlterableConfig]) -> SettingsChange | ApiError:
    error = _malformed(configs, [config.name for config in configs if config.value is None])
    if error:
        return error
    return Replacement({config.name: config.value for config in configs if config.value is not None})


def _increment(configs: Sequence[IncrementalConfig]) -> SettingsChange | ApiError:
    without_value = [
        config.name for config in configs if config.value is None and config.config_operation != OperationKind.DELETE
    ]
    error = _malformed(configs, without_value)
    if error:
        return error
    operations = []
    for config in configs:
        try:
            kind = OperationKind(config.config_operation)
        except ValueError:
            return ApiError(Code.INVALID_REQUEST, f"Unknown operations type {config.config_operation}")
        operations.append(Operation(config.name, kind, config.value))
    return Increment(tuple(operations))


def _malformed(
    configs: Sequence[AlterableConfig] | Sequence[IncrementalConfig], without_value: Sequence[str]
) -> ApiError | None:
    if duplicates(config.name for config in configs):
        return ApiError(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    if without_value:
        return ApiError(Code.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}")
    return None


def _altered(one: _Alteration, errors: Mapping[tuple[int, str], ApiError | None]) -> AlterConfigsResourceResponse:
    error = errors[one.resource_type, one.resource_name]
    return AlterConfigsResourceResponse(
        error_code=Code.NONE if error is None else error.code,
        error_message=None if error is None else str(error),
        resource_type=one.resource_type,
        resource_name=one.resource_name,
    )
