"""Settings of groups over DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.config_descriptions import ConfigDescriptions, SettingSource
from penstock.broker.database_group_settings import DatabaseGroupSettings
from penstock.broker.handlers.configs import ConfigHandlers, ResourceType
from penstock.broker.requests.context import RequestContext
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import BrokerInfo
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.loader import load
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol import apis
from penstock.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from penstock.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.list_config_resources import ListConfigResourcesRequest
from support import callers
from support.tree import Tree, register

BROKER = BrokerId(1)
CONTEXT = RequestContext(1, callers.client())


@pytest.fixture
async def metadata(tree: Tree) -> AsyncIterator[MetadataChanges]:
    metadata = MetadataChanges(tree, MetadataSettings.of(load(None, {}, {}).config, "cluster"))
    await metadata.start()
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 19092))
    await metadata.create_topics([TopicCreation("orders")])
    yield metadata


@pytest.fixture
def handlers(metadata: MetadataChanges) -> ConfigHandlers:
    return ConfigHandlers(
        metadata, BROKER, ConfigDescriptions(load(None, {}, {})), DatabaseGroupSettings(metadata, None, None)
    )


async def alter(handlers: ConfigHandlers, group_id: str, **settings: str) -> Code:
    configs = tuple(AlterableConfig(name=name.replace("_", "."), value=value) for name, value in settings.items())
    resource = AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name=group_id, configs=configs)
    (answer,) = (await handlers.alter_configs(AlterConfigsRequest(resources=(resource,)), CONTEXT)).responses
    return Code(answer.error_code)


async def described(handlers: ConfigHandlers, group_id: str) -> dict[str, tuple[str | None, int]]:
    resource = DescribeConfigsResource(resource_type=ResourceType.GROUP, resource_name=group_id)
    (result,) = (await handlers.describe_configs(DescribeConfigsRequest(resources=(resource,)), CONTEXT)).results
    assert result.error_code == Code.NONE
    return {config.name: (config.value, config.config_source) for config in result.configs}


async def test_what_was_set_is_described(handlers: ConfigHandlers) -> None:
    assert await alter(handlers, "g", penstock_paused="True") is Code.NONE
    found = await described(handlers, "g")
    assert found["penstock.paused"] == ("true", SettingSource.GROUP)
    assert found["consumer.session.timeout.ms"] == ("45000", SettingSource.DEFAULT)


async def test_what_the_broker_was_started_with_is_the_default(metadata: MetadataChanges) -> None:
    loaded = load(None, {}, {"groups.consumer_session_timeout_ms": "60000"})
    handlers = ConfigHandlers(metadata, BROKER, ConfigDescriptions(loaded), DatabaseGroupSettings(metadata, None, None))
    assert (await described(handlers, "g"))["consumer.session.timeout.ms"] == ("60000", SettingSource.STATIC_BROKER)
    await alter(handlers, "g", consumer_session_timeout_ms="50000")
    assert (await described(handlers, "g"))["consumer.session.timeout.ms"] == ("50000", SettingSource.GROUP)


async def test_a_group_that_does_not_exist_has_the_defaults(handlers: ConfigHandlers) -> None:
    assert {source for _, source in (await described(handlers, "none")).values()} == {SettingSource.DEFAULT}


async def test_replacing_all_settings_takes_back_what_is_not_named(handlers: ConfigHandlers) -> None:
    await alter(handlers, "g", penstock_paused="true")
    await alter(handlers, "g", penstock_offset_initial="earliest")
    found = await described(handlers, "g")
    assert found["penstock.paused"] == ("false", SettingSource.DEFAULT)
    assert found["penstock.offset.initial"] == ("earliest", SettingSource.GROUP)


async def test_unknown_names_and_groups_without_a_name_are_refused(handlers: ConfigHandlers) -> None:
    assert await alter(handlers, "g", retention_ms="1") is Code.INVALID_CONFIG
    assert await alter(handlers, "", penstock_paused="true") is Code.INVALID_REQUEST
    resource = DescribeConfigsResource(resource_type=ResourceType.GROUP, resource_name="")
    (result,) = (await handlers.describe_configs(DescribeConfigsRequest(resources=(resource,)), CONTEXT)).results
    assert result.error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (
            (),
            {
                ("orders", ResourceType.TOPIC),
                ("1", ResourceType.BROKER),
                ("1", ResourceType.BROKER_LOGGER),
                ("g", ResourceType.GROUP),
            },
        ),
        ((ResourceType.GROUP,), {("g", ResourceType.GROUP)}),
        ((ResourceType.BROKER_LOGGER,), {("1", ResourceType.BROKER_LOGGER)}),
        ((16,), set()),
    ],
)
async def test_what_has_settings_is_listed(
    handlers: ConfigHandlers, types: tuple[int, ...], expected: set[tuple[str, int]]
) -> None:
    await alter(handlers, "g", penstock_paused="true")
    response = await handlers.list_config_resources(ListConfigResourcesRequest(resource_types=types), CONTEXT)
    apis.encode_response(apis.LIST_CONFIG_RESOURCES, 1, 1, response)
    assert {(found.resource_name, found.resource_type) for found in response.config_resources} == expected


async def test_types_that_are_not_known_are_refused(handlers: ConfigHandlers) -> None:
    response = await handlers.list_config_resources(ListConfigResourcesRequest(resource_types=(3,)), CONTEXT)
    assert response.error_code == Code.UNSUPPORTED_VERSION


async def test_the_oldest_version_asks_for_client_metrics_of_which_there_are_none(handlers: ConfigHandlers) -> None:
    await alter(handlers, "g", penstock_paused="true")
    response = await handlers.list_config_resources(ListConfigResourcesRequest(), RequestContext(0, callers.client()))
    assert response.config_resources == ()
