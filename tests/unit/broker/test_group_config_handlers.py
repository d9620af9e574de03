"""Settings of groups over DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.descriptions import Descriptions, Source
from penstock.broker.handlers.configs import ConfigHandlers, ResourceType
from penstock.cluster.controller import Controller, ControllerSettings
from penstock.cluster.metadata import BrokerInfo
from penstock.cluster.topics import NewTopic
from penstock.config.loader import load
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol import apis
from penstock.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from penstock.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.list_config_resources import ListConfigResourcesRequest
from support.tree import Tree, register

BROKER = BrokerId(1)
CONTEXT = RequestContext(1, "test", "127.0.0.1")


@pytest.fixture
async def controller(tree: Tree) -> AsyncIterator[Controller]:
    controller = Controller(tree, ControllerSettings.of(load(None, {}, {}).config, "cluster"))
    await controller.start()
    await register(controller, BrokerInfo(BROKER, "127.0.0.1", 19092))
    await controller.create_topics([NewTopic("orders")])
    yield controller


@pytest.fixture
def handlers(controller: Controller) -> ConfigHandlers:
    return ConfigHandlers(controller, BROKER, Descriptions(load(None, {}, {})))


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
    assert found["penstock.paused"] == ("true", Source.GROUP)
    assert found["consumer.session.timeout.ms"] == ("45000", Source.DEFAULT)


async def test_what_the_broker_was_started_with_is_the_default(controller: Controller) -> None:
    loaded = load(None, {}, {"groups.consumer_session_timeout_ms": "60000"})
    handlers = ConfigHandlers(controller, BROKER, Descriptions(loaded))
    assert (await described(handlers, "g"))["consumer.session.timeout.ms"] == ("60000", Source.STATIC_BROKER)
    await alter(handlers, "g", consumer_session_timeout_ms="50000")
    assert (await described(handlers, "g"))["consumer.session.timeout.ms"] == ("50000", Source.GROUP)


async def test_a_group_that_does_not_exist_has_the_defaults(handlers: ConfigHandlers) -> None:
    assert {source for _, source in (await described(handlers, "none")).values()} == {Source.DEFAULT}


async def test_replacing_all_settings_takes_back_what_is_not_named(handlers: ConfigHandlers) -> None:
    await alter(handlers, "g", penstock_paused="true")
    await alter(handlers, "g", penstock_offset_initial="earliest")
    found = await described(handlers, "g")
    assert found["penstock.paused"] == ("false", Source.DEFAULT)
    assert found["penstock.offset.initial"] == ("earliest", Source.GROUP)


async def test_unknown_names_and_groups_without_a_name_are_refused(handlers: ConfigHandlers) -> None:
    assert await alter(handlers, "g", retention_ms="1") is Code.INVALID_CONFIG
    assert await alter(handlers, "", penstock_paused="true") is Code.INVALID_REQUEST
    resource = DescribeConfigsResource(resource_type=ResourceType.GROUP, resource_name="")
    (result,) = (await handlers.describe_configs(DescribeConfigsRequest(resources=(resource,)), CONTEXT)).results
    assert result.error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ((), {("orders", ResourceType.TOPIC), ("1", ResourceType.BROKER), ("g", ResourceType.GROUP)}),
        ((ResourceType.GROUP,), {("g", ResourceType.GROUP)}),
        ((8, 16), set()),
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
    response = await handlers.list_config_resources(
        ListConfigResourcesRequest(), RequestContext(0, "test", "127.0.0.1")
    )
    assert response.config_resources == ()
