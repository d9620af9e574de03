"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

Settings belong to a resource: a topic, a group, this broker (its id), all brokers (the empty name), the loggers of this
broker, or a database group. Each resource of a request has its own result.

The broker answers a change when the partitions that it has are set accordingly, or `limits.topic_wait_ms` are over
(`carried_out`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from penstock.broker import logger_levels
from penstock.broker.config_descriptions import ConfigDescriptions, Described
from penstock.broker.database_group_settings import DatabaseGroupSettings
from penstock.broker.handlers.change_results import deadline_of, duplicates, results_or_failure
from penstock.broker.requests.context import RequestContext
from penstock.cluster.decisions.settings import Increment, OperationKind, Replacement, SettingOperation, SettingsChange
from penstock.cluster.decisions.topics import check_name
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config.broker import Limits
from penstock.config.database_group import DATABASE_RESOURCE
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId
from penstock.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
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
    IncrementalConfigsResource,
)
from penstock.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.replication.replicas import Replicas

Alter = TypeVar("Alter", AlterConfigsRequest, IncrementalAlterConfigsRequest)
Altered = TypeVar("Altered", AlterConfigsResponse, IncrementalAlterConfigsResponse)

DEFAULT_LIMITS = Limits()
_ALL_TYPES_FROM = 1
_EMPTY_TYPES = (16,)
"""Client metrics: Kafka has settings of them, there are none here."""
_LOGGER_SOURCE = 6
_ON_REQUEST = (DATABASE_RESOURCE,)
"""Types that Kafka's clients do not know: the broker lists them only for clients that name them."""
_STRING = 2


class ResourceType(IntEnum):
    """What has settings; numbered as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32
    DATABASE = DATABASE_RESOURCE


_ONE_BY_ONE: Mapping[int, str] = {
    ResourceType.BROKER_LOGGER: "Log levels",
    ResourceType.DATABASE: "Settings of database groups",
}
"""Resources that AlterConfigs does not replace as a whole, with their names in messages: a client that leaves out a
setting does not mean to remove it.
"""


@dataclass(frozen=True, slots=True)
class _Alteration:
    """One resource of an alter request, as far as it could be understood."""

    resource_type: int
    resource_name: str
    change: SettingsChange | ApiError


class ConfigHandlers:
    """Answers requests about settings."""

    def __init__(
        self,
        metadata: MetadataChanges,
        broker_id: BrokerId,
        descriptions: ConfigDescriptions,
        databases: DatabaseGroupSettings,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._max_resources = limits.topics_per_request
        self._metadata = metadata
        self._broker_id = broker_id
        self._descriptions = descriptions
        self._databases = databases

    async def describe_configs(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse:
        results = []
        too_many = self._too_many(len(request.resources))
        # A resource is described once, however often it is named.
        asked = dict.fromkeys(request.resources) if too_many is None else request.resources
        async for resource in context.work.over(asked):
            configs: Sequence[DescribeConfigsResourceResult] = ()
            keys = set(resource.configuration_keys or ())
            try:
                if too_many is not None:
                    raise too_many
                if resource.resource_type == ResourceType.BROKER_LOGGER:
                    self._check_logger_resource(resource.resource_name)
                    configs = [config for config in _described_loggers() if not keys or config.name in keys]
                else:
                    described = [found for found in self._described(resource) if not keys or found.name in keys]
                    configs = [_described_config(setting, request) for setting in described]
                error = None
            except ApiError as refusal:
                error = refusal
            await context.work.grow(1 + len(configs) * (3 if request.include_synonyms else 1))
            results.append(
                DescribeConfigsResult(
                    error_code=Code.NONE if error is None else error.code,
                    error_message=None if error is None else str(error),
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=tuple(configs),
                )
            )
        return DescribeConfigsResponse(results=tuple(results))

    async def alter_configs(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        if too_many := self._too_many(len(request.resources)):
            return AlterConfigsResponse(responses=await _none_altered(request.resources, too_many, context))
        alterations = [
            _Alteration(
                resource.resource_type,
                resource.resource_name,
                ApiError(Code.INVALID_REQUEST, f"{noun} can only be changed one by one (IncrementalAlterConfigs).")
                if (noun := _ONE_BY_ONE.get(resource.resource_type)) is not None
                else _replacement(resource.configs),
            )
            for resource in request.resources
        ]
        return AlterConfigsResponse(responses=await self._alter(alterations, request.validate_only))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        if too_many := self._too_many(len(request.resources)):
            return IncrementalAlterConfigsResponse(responses=await _none_altered(request.resources, too_many, context))
        alterations = [
            _Alteration(resource.resource_type, resource.resource_name, _increment(resource.configs))
            for resource in request.resources
        ]
        return IncrementalAlterConfigsResponse(responses=await self._alter(alterations, request.validate_only))

    async def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        """What has settings; of groups those that have some of their own. Without types, all of Kafka's are meant."""
        image = self._metadata.image
        names: Mapping[int, Iterable[str]] = {
            ResourceType.TOPIC: image.topics,
            ResourceType.BROKER: map(str, image.brokers),
            ResourceType.BROKER_LOGGER: map(str, image.brokers),
            ResourceType.GROUP: image.settings_by_group,
            ResourceType.DATABASE: self._databases.names(image),
        }
        if context.version < _ALL_TYPES_FROM:
            # It was ListClientMetricsResources then, of which there are none.
            return ListConfigResourcesResponse()
        wanted = set(request.resource_types) or {*names, *_EMPTY_TYPES}.difference(_ON_REQUEST)
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

    def _too_many(self, count: int) -> ApiError | None:
        if count <= self._max_resources:
            return None
        return ApiError(
            Code.INVALID_REQUEST,
            f"{count} resources are named; limits.topics_per_request allows {self._max_resources}.",
        )

    def _described(self, resource: DescribeConfigsResource) -> Sequence[Described]:
        image = self._metadata.image
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
            case ResourceType.DATABASE:
                return self._databases.describe(image, name)
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

    def _check_logger_resource(self, name: str) -> None:
        """Loggers are those of one process: there are none of all brokers."""
        if name != str(self._broker_id):
            raise ApiError(
                Code.INVALID_REQUEST, f"Unexpected broker id, expected {self._broker_id}, but received '{name}'"
            )

    def _alter_loggers(self, name: str, change: SettingsChange, *, validate_only: bool) -> None:
        self._check_logger_resource(name)
        assert isinstance(change, Increment)
        logger_levels.check(change.operations)
        if not validate_only:
            logger_levels.apply(change.operations)

    async def _alter(
        self, alterations: Sequence[_Alteration], validate_only: bool
    ) -> tuple[AlterConfigsResourceResponse, ...]:
        twice = duplicates((one.resource_type, one.resource_name) for one in alterations)
        topics: dict[str, SettingsChange] = {}
        brokers: dict[BrokerId | None, SettingsChange] = {}
        groups: dict[str, SettingsChange] = {}
        databases: dict[str, Increment] = {}
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
                    case ResourceType.DATABASE:
                        assert isinstance(one.change, Increment)
                        databases[one.resource_name] = one.change
                    case ResourceType.BROKER_LOGGER:
                        self._alter_loggers(one.resource_name, one.change, validate_only=validate_only)
                        errors[key] = None
                    case _:
                        raise ApiError(Code.INVALID_REQUEST, f"Unknown resource type {one.resource_type}")
            except ApiError as error:
                errors[key] = error
        # Brokers first: a topic's settings are then checked against the defaults that the same request sets.
        of_brokers = await results_or_failure(
            self._metadata.alter_broker_settings(brokers, validate_only=validate_only), brokers
        )
        of_topics = await results_or_failure(
            self._metadata.alter_topic_settings(topics, validate_only=validate_only), topics
        )
        of_groups = await results_or_failure(
            self._metadata.alter_group_settings(groups, validate_only=validate_only), groups
        )
        if databases:
            of_databases = await results_or_failure(
                self._databases.alter(databases, validate_only=validate_only), databases
            )
            errors |= {(int(ResourceType.DATABASE), name): error for name, error in of_databases.items()}
        errors |= {
            (int(ResourceType.BROKER), "" if broker is None else str(broker)): error
            for broker, error in of_brokers.items()
        }
        errors |= {(int(ResourceType.TOPIC), name): error for name, error in of_topics.items()}
        errors |= {(int(ResourceType.GROUP), name): error for name, error in of_groups.items()}
        return tuple(_altered(one, errors) for one in alterations)


def carried_out(
    alter: Callable[[Alter, RequestContext], Awaitable[Altered]], replicas: Replicas, topic_wait_ms: int
) -> Callable[[Alter, RequestContext], Awaitable[Altered]]:
    """A handler that answers when the partitions here have the settings that it changed, or will get them although
    that takes longer than `topic_wait_ms`. Settings of brokers are the defaults of every topic; no client uses a topic
    yet that is still being made.
    """

    async def handle(request: Alter, context: RequestContext) -> Altered:
        response = await alter(request, context)
        if not request.validate_only and not replicas.is_settled:
            names: set[str] = set()
            for each in response.responses:
                if each.error_code == Code.NONE and each.resource_type == ResourceType.TOPIC:
                    names.add(each.resource_name)
                elif each.error_code == Code.NONE and each.resource_type == ResourceType.BROKER:
                    names.update(replicas.usable_topics)
            if names:
                await replicas.late(names, deadline_of(topic_wait_ms))
        return response

    return handle


def _described_loggers() -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(name=name, value=level, config_source=_LOGGER_SOURCE, config_type=_STRING)
        for name, level in logger_levels.logger_levels().items()
    ]


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
        is_sensitive=setting.is_secret,
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
        operations.append(SettingOperation(config.name, kind, config.value))
    return Increment(tuple(operations))


def _malformed(
    configs: Sequence[AlterableConfig] | Sequence[IncrementalConfig], without_value: Sequence[str]
) -> ApiError | None:
    if duplicates(config.name for config in configs):
        return ApiError(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    if without_value:
        return ApiError(Code.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}")
    return None


async def _none_altered(
    resources: Iterable[AlterConfigsResource | IncrementalConfigsResource],
    error: ApiError,
    context: RequestContext,
) -> tuple[AlterConfigsResourceResponse, ...]:
    return tuple(
        [
            AlterConfigsResourceResponse(
                error_code=error.code,
                error_message=str(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            async for resource in context.work.over(resources)
        ]
    )


def _altered(one: _Alteration, errors: Mapping[tuple[int, str], ApiError | None]) -> AlterConfigsResourceResponse:
    error = errors[one.resource_type, one.resource_name]
    return AlterConfigsResourceResponse(
        error_code=Code.NONE if error is None else error.code,
        error_message=None if error is None else str(error),
        resource_type=one.resource_type,
        resource_name=one.resource_name,
    )
