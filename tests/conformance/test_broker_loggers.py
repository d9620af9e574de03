"""Log levels at run time: a broker's loggers as settings that administrators see and change (KIP-412)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from penstock.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.incremental_alter_configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from penstock.protocol.messages.list_config_resources import ListConfigResourcesRequest
from support.broker_process import BrokerProcess
from support.wire import Wire

LOGGERS = 8
OWN = "penstock.broker.logger_levels"
"""The logger that says that a level was changed."""


@pytest.fixture
def broker(new_broker: Any) -> BrokerProcess:
    """One of its own: levels are the process's."""
    process: BrokerProcess = new_broker()
    return process


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker.address) as connection:
        yield connection


def described(wire: Wire, broker_id: str = "1", *names: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(resource_type=LOGGERS, resource_name=broker_id, configuration_keys=names or None)
    (result,) = wire.ask(apis.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=(resource,)))["results"]
    found: dict[str, Any] = result
    return found


def levels(wire: Wire) -> dict[str, str]:
    result = described(wire)
    assert result["error_code"] == 0, result
    return {config["name"]: config["value"] for config in result["configs"]}


def alter(wire: Wire, *changes: tuple[str, int, str | None], broker_id: str = "1", validate_only: bool = False) -> int:
    configs = tuple(IncrementalConfig(name=name, config_operation=kind, value=value) for name, kind, value in changes)
    resource = IncrementalConfigsResource(resource_type=LOGGERS, resource_name=broker_id, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (result,) = wire.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)["responses"]
    assert result["error_code"] == 0 or result["error_message"], result
    code: int = result["error_code"]
    return code


def test_loggers_are_listed_with_their_levels(wire: Wire) -> None:
    found = levels(wire)
    assert found["root"] == found["penstock"] == found[OWN] == "INFO"
    (config,) = described(wire, "1", "penstock")["configs"]
    assert (config["read_only"], config["is_sensitive"], config["config_source"]) == (False, False, 6)


def test_a_level_is_set_and_removed_and_decides_what_is_logged(wire: Wire, broker: BrokerProcess) -> None:
    assert alter(wire, ("penstock.broker", SET, "ERROR"), ("penstock", SET, "DEBUG")) == 0
    found = levels(wire)
    assert found["penstock"] == "DEBUG" and found[OWN] == found["penstock.broker"] == "ERROR"
    assert found["root"] == "INFO"
    assert alter(wire, ("root", SET, "TRACE")) == 0
    assert "level of root" not in broker.log, "this logger says nothing below ERROR"
    assert alter(wire, ("penstock.broker", DELETE, None)) == 0
    assert levels(wire)[OWN] == "DEBUG"
    assert "the log level of penstock.broker was removed" in broker.log
    assert alter(wire, ("penstock", DELETE, None)) == 0
    assert levels(wire)[OWN] == "TRACE"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(("penstock", SET, "LOUD"), Code.INVALID_CONFIG, id="no level"),
        pytest.param(("penstock", SET, ""), Code.INVALID_CONFIG, id="empty"),
        pytest.param(("penstock", SET, None), Code.INVALID_REQUEST, id="no value"),
        pytest.param(("no.such.logger", SET, "INFO"), Code.INVALID_CONFIG, id="unknown"),
        pytest.param(("no.such.logger", DELETE, None), Code.INVALID_CONFIG, id="unknown, removed"),
        pytest.param(("root", DELETE, None), Code.INVALID_REQUEST, id="root removed"),
        pytest.param(("penstock", APPEND, "INFO"), Code.INVALID_REQUEST, id="appended"),
        pytest.param(("penstock", SUBTRACT, "INFO"), Code.INVALID_REQUEST, id="subtracted"),
        pytest.param(("penstock", 9, "INFO"), Code.INVALID_REQUEST, id="no operation"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_of_it_is_done(
    wire: Wire, change: tuple[str, int, str | None], code: Code
) -> None:
    before = levels(wire)
    assert alter(wire, ("penstock.broker", SET, "ERROR"), change) == code
    assert levels(wire) == before
    assert "no.such.logger" not in before


def test_validating_changes_nothing(wire: Wire) -> None:
    assert alter(wire, ("penstock", SET, "ERROR"), validate_only=True) == 0
    assert alter(wire, ("penstock", SET, "LOUD"), validate_only=True) == Code.INVALID_CONFIG
    assert levels(wire)["penstock"] == "INFO"


@pytest.mark.parametrize("broker_id", ["", "2", "x"])
def test_loggers_are_those_of_the_broker_that_is_asked(wire: Wire, broker_id: str) -> None:
    assert described(wire, broker_id)["error_code"] == Code.INVALID_REQUEST
    assert alter(wire, ("penstock", SET, "ERROR"), broker_id=broker_id) == Code.INVALID_REQUEST
    assert levels(wire)["penstock"] == "INFO"


def test_all_levels_at_once_cannot_be_replaced(wire: Wire) -> None:
    config = AlterableConfig(name="penstock", value="ERROR")
    resource = AlterConfigsResource(resource_type=LOGGERS, resource_name="1", configs=(config,))
    (result,) = wire.ask(apis.ALTER_CONFIGS, 2, AlterConfigsRequest(resources=(resource,)))["responses"]
    assert result["error_code"] == Code.INVALID_REQUEST
    assert levels(wire)["penstock"] == "INFO"


def test_every_broker_is_listed_as_a_resource(wire: Wire) -> None:
    answer = wire.ask(apis.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest(resource_types=(LOGGERS,)))
    assert [(found["resource_type"], found["resource_name"]) for found in answer["config_resources"]] == [(8, "1")]


def test_kafka_python_lists_sets_and_removes_levels(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    kind = ConfigResourceType.BROKER_LOGGER

    def alter(change: object) -> str:
        told = admin.alter_configs([ConfigResource(kind, "1", {"penstock.delay": change})])
        result: str = told["broker_logger"]["1"]
        return result

    def level() -> str:
        found = admin.describe_configs([ConfigResource(kind, "1")], config_filter="all")
        value: str = found["broker_logger"]["1"]["penstock.delay"]["value"]
        return value

    try:
        assert alter("WARN") == "OK"
        assert level() == "WARN"
        assert "'LOUD' is no log level" in alter("LOUD")
        assert alter(("DELETE", None)) == "OK"
        assert level() == "INFO"
    finally:
        admin.close()
