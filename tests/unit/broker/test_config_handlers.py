"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs over a real controller and tree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from penstock.broker.config_descriptions import ConfigDescriptions
from penstock.broker.database_group_settings import DatabaseGroupSettings
from penstock.broker.handlers.configs import ConfigHandlers, ResourceType
from penstock.broker.requests.context import RequestContext
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import BrokerInfo, ListenerEndpoint
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.loader import load
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol import apis
from penstock.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from penstock.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from penstock.protocol.messages.incremental_alter_configs import (
    APPEND,
    DELETE,
    SET,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from support import callers
from support.tree import register

BROKER = BrokerId(1)
TOPIC, OF_BROKER = ResourceType.TOPIC, ResourceType.BROKER
CONTEXT = RequestContext(4, callers.client())

# The broker's start sets these two; everything else is at its default.
FLAGS = {"topic.retention.ms": "7000", "broker.default_partitions": "3"}


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[MetadataChanges]:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    loaded = load(None, {}, FLAGS)
    metadata = MetadataChanges(tree, MetadataSettings.of(loaded.config, "cluster"))
    await metadata.start()
    endpoints = (ListenerEndpoint("PLAINTEXT", "127.0.0.1", 19092), ListenerEndpoint("INTER_BROKER", "::1", 40123))
    await register(metadata, BrokerInfo(BROKER, "127.0.0.1", 19092, endpoints=endpoints))
    await metadata.create_topics([TopicCreation("orders"), TopicCreation("other")])
    yield metadata
    await tree.close()


@pytest.fixture
def handlers(metadata: MetadataChanges) -> ConfigHandlers:
    return ConfigHandlers(
        metadata, BROKER, ConfigDescriptions(load(None, {}, FLAGS)), DatabaseGroupSettings(metadata, None, None)
    )


async def describe(
    handlers: ConfigHandlers, type: int, name: str, *keys: str, details: bool = True
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=type, resource_name=name, configuration_keys=keys or None)
    response = await handlers.describe_configs(
        DescribeConfigsRequest(resources=(resource,), include_synonyms=details, include_documentation=details),
        CONTEXT,
    )
    for version in range(apis.DESCRIBE_CONFIGS.min_version, apis.DESCRIBE_CONFIGS.max_version + 1):
        apis.encode_response(apis.DESCRIBE_CONFIGS, version, 1, response)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (type, name)
    return result


async def described(handlers: ConfigHandlers, type: int, name: str) -> Mapping[str, DescribeConfigsResourceResult]:
    result = await describe(handlers, type, name)
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


async def replace(handlers: ConfigHandlers, type: int, name: str, **settings: str | None) -> int:
    configs = tuple(AlterableConfig(name=key.replace("_", "."), value=value) for key, value in settings.items())
    resource = AlterConfigsResource(resource_type=type, resource_name=name, configs=configs)
    response = await handlers.alter_configs(AlterConfigsRequest(resources=(resource,)), CONTEXT)
    for version in range(apis.ALTER_CONFIGS.min_version, apis.ALTER_CONFIGS.max_version + 1):
        apis.encode_response(apis.ALTER_CONFIGS, version, 1, response)
    (result,) = response.responses
    assert bool(result.error_message) == bool(result.error_code)
    return result.error_code


def step(name: str, operation: int, value: str | None = None) -> IncrementalConfig:
    return IncrementalConfig(name=name, config_operation=operation, value=value)


async def increment(
    handlers: ConfigHandlers,
    *resources: tuple[int, str, tuple[IncrementalConfig, ...]],
    validate_only: bool = False,
) -> list[int]:
    response = await handlers.incremental_alter_configs(
        IncrementalAlterConfigsRequest(
            resources=tuple(
                IncrementalConfigsResource(resource_type=type, resource_name=name, configs=steps)
                for type, name, steps in resources
            ),
            validate_only=validate_only,
        ),
        CONTEXT,
    )
    for version in (0, 1):
        apis.encode_response(apis.INCREMENTAL_ALTER_CONFIGS, version, 1, response)
    assert [(r.resource_type, r.resource_name) for r in response.responses] == [r[:2] for r in resources]
    return [result.error_code for result in response.responses]


class TestDescribeTopics:
    async def test_a_value_comes_from_the_nearest_place_that_sets_it(self, handlers: ConfigHandlers) -> None:
        async def seen() -> tuple[str | None, int]:
            config = (await described(handlers, TOPIC, "orders"))["retention.ms"]
            return config.value, config.config_source

        assert await seen() == ("7000", 4)
        assert await replace(handlers, OF_BROKER, "", log_retention_ms="3000") == 0
        assert await seen() == ("3000", 3)
        assert await replace(handlers, OF_BROKER, "1", log_retention_ms="2000") == 0
        assert await seen() == ("2000", 2)
        assert await replace(handlers, TOPIC, "orders", retention_ms="1000") == 0
        assert await seen() == ("1000", 1)
        synonyms = (await described(handlers, TOPIC, "orders"))["retention.ms"].synonyms
        assert [(synonym.name, synonym.value, synonym.source) for synonym in synonyms] == [
            ("retention.ms", "1000", 1),
            ("log.retention.ms", "2000", 2),
            ("log.retention.ms", "3000", 3),
            ("log.retention.ms", "7000", 4),
            ("log.retention.ms", "1209600000", 5),
        ]

    async def test_a_default_is_shown_with_type_and_documentation(self, handlers: ConfigHandlers) -> None:
        configs = await described(handlers, TOPIC, "orders")
        policy = configs["cleanup.policy"]
        assert (policy.value, policy.config_source, policy.config_type) == ("delete", 5, 7)
        assert policy.documentation
        assert not policy.read_only and not policy.is_sensitive
        assert (configs["preallocate"].value, configs["preallocate"].config_type) == ("false", 1)
        assert configs["penstock.storage"].value == "segmented"
        assert configs["penstock.storage"].read_only

    async def test_the_storage_of_a_topic_is_shown_whatever_the_default_has_become(
        self, metadata: MetadataChanges
    ) -> None:
        handlers = ConfigHandlers(
            metadata,
            BROKER,
            ConfigDescriptions(load(None, {}, {"sql.url": "sqlite:///queue.db"})),
            DatabaseGroupSettings(metadata, None, None),
        )
        storage = (await described(handlers, TOPIC, "orders"))["penstock.storage"]
        assert (storage.value, storage.config_source) == ("segmented", 5)

    async def test_values_are_shown_as_understood(self, handlers: ConfigHandlers) -> None:
        assert await replace(handlers, TOPIC, "orders", retention_ms="0500", unclean_leader_election_enable="TRUE") == 0
        configs = await described(handlers, TOPIC, "orders")
        assert (configs["retention.ms"].value, configs["unclean.leader.election.enable"].value) == ("500", "true")

    async def test_details_are_left_out_unless_asked_for(self, handlers: ConfigHandlers) -> None:
        result = await describe(handlers, TOPIC, "orders", details=False)
        assert all(config.synonyms == () and config.documentation is None for config in result.configs)

    async def test_only_the_named_keys_are_shown(self, handlers: ConfigHandlers) -> None:
        result = await describe(handlers, TOPIC, "orders", "segment.ms", "no.such")
        assert [config.name for config in result.configs] == ["segment.ms"]

    @pytest.mark.parametrize(
        ("type", "name", "code"),
        [
            (TOPIC, "no-such", Code.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "bad name", Code.INVALID_TOPIC_EXCEPTION),
            (TOPIC, "", Code.INVALID_TOPIC_EXCEPTION),
            (OF_BROKER, "2", Code.INVALID_REQUEST),
            (OF_BROKER, "one", Code.INVALID_REQUEST),
            (8, "2", Code.INVALID_REQUEST),
            (16, "1", Code.INVALID_REQUEST),
            (0, "", Code.INVALID_REQUEST),
        ],
    )
    async def test_what_is_not_there_is_refused(
        self, handlers: ConfigHandlers, type: int, name: str, code: Code
    ) -> None:
        result = await describe(handlers, type, name)
        assert (result.error_code, result.configs) == (code, ())
        assert result.error_message


class TestDescribeBrokers:
    async def test_settings_of_the_start_are_shown_read_only_under_kafkas_names(self, handlers: ConfigHandlers) -> None:
        configs = await described(handlers, OF_BROKER, "1")
        partitions = configs["num.partitions"]
        assert (partitions.value, partitions.config_source, partitions.read_only) == ("3", 4, True)
        assert [(one.value, one.source) for one in partitions.synonyms] == [("3", 4), ("1", 5)]
        factor = configs["default.replication.factor"]
        assert (factor.value, factor.config_source, factor.read_only) == ("1", 5, True)
        assert configs["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
        assert configs["inter.broker.listener.name"].value == "INTER_BROKER"
        assert configs["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:19092,INTER_BROKER://[::1]:40123"
        assert configs["auto.create.topics.enable"].value == "true"
        assert configs["broker.rack"].value is None
        assert configs["limits.parked_fetches"].value == "20000"
        assert configs["sasl.enabled.mechanisms"].value == "SCRAM-SHA-256,SCRAM-SHA-512"

    async def test_defaults_of_topics_are_shown_as_changeable(self, handlers: ConfigHandlers) -> None:
        retention = (await described(handlers, OF_BROKER, "1"))["log.retention.ms"]
        assert (retention.value, retention.config_source, retention.read_only) == ("7000", 4, False)

    async def test_no_setting_is_shown_twice(self, handlers: ConfigHandlers) -> None:
        names = [config.name for config in (await describe(handlers, OF_BROKER, "1")).configs]
        assert len(names) == len(set(names))

    async def test_for_all_brokers_only_what_was_set_is_shown(self, handlers: ConfigHandlers) -> None:
        assert await described(handlers, OF_BROKER, "") == {}
        await replace(handlers, OF_BROKER, "", log_retention_ms="3000")
        configs = await described(handlers, OF_BROKER, "")
        assert {name: (one.value, one.config_source) for name, one in configs.items()} == {
            "log.retention.ms": ("3000", 3)
        }


class TestAlterConfigs:
    async def test_all_settings_are_replaced(self, handlers: ConfigHandlers, metadata: MetadataChanges) -> None:
        assert await replace(handlers, TOPIC, "orders", retention_ms="5", segment_ms="6") == 0
        assert await replace(handlers, TOPIC, "orders", segment_ms="7") == 0
        assert metadata.image.topics["orders"].overrides == {"segment.ms": "7"}

    @pytest.mark.parametrize(
        ("type", "name", "settings", "code"),
        [
            (TOPIC, "no-such", {"retention_ms": "5"}, Code.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "orders", {"retention_ms": "soon"}, Code.INVALID_CONFIG),
            (TOPIC, "orders", {"no_such": "1"}, Code.INVALID_CONFIG),
            (TOPIC, "orders", {"retention_ms": None}, Code.INVALID_REQUEST),
            (TOPIC, "", {}, Code.INVALID_REQUEST),
            (OF_BROKER, "1", {"num_partitions": "5"}, Code.INVALID_REQUEST),
            (OF_BROKER, "", {"log_retention_ms": "soon"}, Code.INVALID_REQUEST),
            (OF_BROKER, "2", {}, Code.INVALID_REQUEST),
            (8, "1", {}, Code.INVALID_REQUEST),
        ],
    )
    async def test_what_cannot_be_done_is_refused(
        self,
        handlers: ConfigHandlers,
        metadata: MetadataChanges,
        type: int,
        name: str,
        settings: Mapping[str, str | None],
        code: Code,
    ) -> None:
        before = metadata.image
        assert await replace(handlers, type, name, **settings) == code
        assert metadata.image is before


class TestIncrementalAlterConfigs:
    async def test_each_resource_is_answered_for_itself_in_order(
        self, handlers: ConfigHandlers, metadata: MetadataChanges
    ) -> None:
        codes = await increment(
            handlers,
            (TOPIC, "orders", (step("cleanup.policy", APPEND, "compact"), step("segment.ms", DELETE))),
            (TOPIC, "no-such", (step("segment.ms", SET, "5"),)),
            (OF_BROKER, "1", (step("log.retention.ms", SET, "5"),)),
            (OF_BROKER, "", (step("listeners", SET, "x"),)),
            (TOPIC, "other", (step("retention.ms", APPEND, "5"),)),
            (16, "metrics", ()),
        )
        assert codes == [
            Code.NONE,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.NONE,
            Code.INVALID_REQUEST,
            Code.INVALID_CONFIG,
            Code.INVALID_REQUEST,
        ]
        assert metadata.image.topics["orders"].overrides == {"cleanup.policy": "delete,compact"}
        assert metadata.image.settings_of(BROKER) == {"log.retention.ms": "5"}

    async def test_a_resource_named_twice_is_refused_both_times(
        self, handlers: ConfigHandlers, metadata: MetadataChanges
    ) -> None:
        steps = (step("segment.ms", SET, "5"),)
        codes = await increment(handlers, (TOPIC, "orders", steps), (TOPIC, "orders", steps), (TOPIC, "other", steps))
        assert codes == [Code.INVALID_REQUEST, Code.INVALID_REQUEST, Code.NONE]
        assert metadata.image.topics["orders"].overrides == {}

    @pytest.mark.parametrize(
        "steps",
        [
            (step("segment.ms", SET, "5"), step("segment.ms", DELETE)),
            (step("segment.ms", SET),),
            (step("segment.ms", 4, "5"),),
        ],
    )
    async def test_a_malformed_change_is_refused(
        self, handlers: ConfigHandlers, steps: tuple[IncrementalConfig, ...]
    ) -> None:
        assert await increment(handlers, (TOPIC, "orders", steps)) == [Code.INVALID_REQUEST]

    async def test_validating_changes_nothing(self, handlers: ConfigHandlers, metadata: MetadataChanges) -> None:
        before = metadata.image
        codes = await increment(
            handlers,
            (TOPIC, "orders", (step("segment.ms", SET, "5"),)),
            (TOPIC, "other", (step("segment.ms", SET, "soon"),)),
            (OF_BROKER, "", (step("log.retention.ms", SET, "5"),)),
            validate_only=True,
        )
        assert codes == [Code.NONE, Code.INVALID_CONFIG, Code.NONE]
        assert metadata.image is before
