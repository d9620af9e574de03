"""Database groups as a configuration resource, over a real tree, with SQLite files as databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.config_descriptions import ConfigDescriptions
from penstock.broker.database_group_settings import DatabaseGroupSettings
from penstock.broker.handlers.configs import ConfigHandlers, ResourceType
from penstock.broker.requests.context import RequestContext
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions import database_groups
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import BrokerInfo, DatabaseGroupInfo, DatabaseServer, ListenerEndpoint
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.database_address import DatabaseAddress
from penstock.config.loader import load
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from penstock.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.incremental_alter_configs import (
    APPEND,
    DELETE,
    SET,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from penstock.protocol.messages.list_config_resources import ListConfigResourcesRequest
from penstock.sql.passwords import PasswordKey, new_key
from penstock.sql.server_status import ServerStatus
from support import callers
from support.tree import register

BROKER = BrokerId(1)
CONTEXT = RequestContext(4, callers.client())
KEY = PasswordKey(new_key())
DATABASE = ResourceType.DATABASE


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[MetadataChanges]:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = MetadataChanges(tree, MetadataSettings("cluster", BROKER))
    await metadata.start()
    endpoints = (ListenerEndpoint("PLAINTEXT", "127.0.0.1", 19092),)
    info = BrokerInfo(BROKER, "127.0.0.1", 19092, endpoints=endpoints, has_shared_storage=True)
    await register(metadata, replace(info, database_key=KEY.fingerprint))
    yield metadata
    await tree.close()


class Statuses:
    """What somebody who asks the servers has found out."""

    def __init__(self, *found: ServerStatus) -> None:
        self.found = found

    def status(self, group: str) -> Sequence[ServerStatus]:
        return self.found if group == "orders" else ()


def made(
    metadata: MetadataChanges, *, key: PasswordKey | None = KEY, statuses: Statuses | None = None
) -> ConfigHandlers:
    default = DatabaseAddress.parse("mysql://penstock:secret@db.example/queues")
    databases = DatabaseGroupSettings(metadata, key, default, statuses)
    return ConfigHandlers(metadata, BROKER, ConfigDescriptions(load(None, {}, {})), databases)


@pytest.fixture
def handlers(metadata: MetadataChanges) -> ConfigHandlers:
    return made(metadata)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/orders.db"


async def alter(
    handlers: ConfigHandlers, name: str, *configs: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[Code, str]:
    changed = tuple(IncrementalConfig(name=key, config_operation=kind, value=value) for key, kind, value in configs)
    resource = IncrementalConfigsResource(resource_type=DATABASE, resource_name=name, configs=changed)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (result,) = (await handlers.incremental_alter_configs(request, CONTEXT)).responses
    return Code(result.error_code), result.error_message or ""


async def add(handlers: ConfigHandlers, url: str, name: str = "orders") -> None:
    assert await alter(handlers, name, ("servers", SET, url)) == (Code.NONE, "")


async def described(handlers: ConfigHandlers, name: str) -> Mapping[str, str | None]:
    resource = DescribeConfigsResource(resource_type=DATABASE, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True)
    (result,) = (await handlers.describe_configs(request, CONTEXT)).results
    assert result.error_code == 0, result.error_message
    for config in result.configs:
        assert config.is_sensitive == (config.name == "servers")
        assert all(synonym.value == config.value for synonym in config.synonyms)
    return {config.name: config.value for config in result.configs}


async def listed(handlers: ConfigHandlers, *types: int) -> list[tuple[int, str]]:
    request = ListConfigResourcesRequest(resource_types=types)
    response = await handlers.list_config_resources(request, RequestContext(1, callers.client()))
    assert response.error_code == 0
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


class TestAdding:
    async def test_a_group_is_made_with_its_password_encrypted_and_the_tables_in_its_database(
        self, metadata: MetadataChanges, handlers: ConfigHandlers, file: str, tmp_path: Path
    ) -> None:
        await add(handlers, file)
        group = metadata.image.databases["orders"]
        assert [server.address for server in group.servers] == [file]
        assert KEY.decrypt(group.servers[0].secret) == ""
        assert (tmp_path / "orders.db").stat().st_size

    async def test_validating_changes_nothing(
        self, metadata: MetadataChanges, handlers: ConfigHandlers, file: str
    ) -> None:
        assert await alter(handlers, "orders", ("servers", SET, file), validate_only=True) == (Code.NONE, "")
        assert not metadata.image.databases

    async def test_a_broker_without_the_key_says_what_to_do(self, metadata: MetadataChanges, file: str) -> None:
        code, said = await alter(made(metadata, key=None), "orders", ("servers", SET, file))
        assert code is Code.INVALID_REQUEST
        assert "set sql.key_file on all brokers" in said

    @pytest.mark.parametrize(
        ("servers", "said"),
        [
            ("", "1 to 16"),
            ("mysql://user:secret@host", "has to name one database"),
            ("sqlite:////no/such/folder/a.db", "cannot be used"),
            ("sqlite:///a.db sqlite:///b.db", "has no replicas"),
            ("mysql://user:secret@127.0.0.1:1/db", "cannot be used"),
        ],
    )
    async def test_what_cannot_be_used_is_refused_without_the_password(
        self, metadata: MetadataChanges, handlers: ConfigHandlers, servers: str, said: str
    ) -> None:
        code, reason = await alter(handlers, "orders", ("servers", SET, servers))
        assert code is Code.INVALID_CONFIG
        assert said in reason
        assert "secret" not in reason
        assert not metadata.image.databases

    async def test_one_file_is_not_two_groups(
        self, metadata: MetadataChanges, handlers: ConfigHandlers, file: str, tmp_path: Path
    ) -> None:
        await add(handlers, file)
        code, said = await alter(handlers, "billing", ("servers", SET, file))
        assert (code, "is a server of the group 'orders' already" in said) == (Code.INVALID_CONFIG, True)
        (tmp_path / "alias.db").symlink_to(tmp_path / "orders.db")
        code, said = await alter(handlers, "billing", ("servers", SET, f"sqlite:///{tmp_path}/alias.db"))
        assert (code, "is the database of the group 'orders'" in said) == (Code.INVALID_CONFIG, True)

    async def test_a_plain_alter_configs_changes_nothing(
        self, metadata: MetadataChanges, handlers: ConfigHandlers, file: str
    ) -> None:
        await add(handlers, file)
        for configs in ((), (AlterableConfig(name="draining", value="true"),)):
            resource = AlterConfigsResource(resource_type=DATABASE, resource_name="orders", configs=configs)
            response = await handlers.alter_configs(AlterConfigsRequest(resources=(resource,)), CONTEXT)
            assert response.responses[0].error_code == Code.INVALID_REQUEST
            assert "one by one" in (response.responses[0].error_message or "")
        assert set(metadata.image.databases) == {"orders"}


class TestChanging:
    @pytest.fixture(autouse=True)
    async def orders(self, handlers: ConfigHandlers, file: str) -> None:
        await add(handlers, file)

    async def test_draining_is_set_and_deleted(self, metadata: MetadataChanges, handlers: ConfigHandlers) -> None:
        for kind, value, expected in (
            (SET, "true", True),
            (SET, "false", False),
            (SET, "TRUE", True),
            (DELETE, None, False),
        ):
            assert await alter(handlers, "orders", ("draining", kind, value)) == (Code.NONE, "")
            assert metadata.image.databases["orders"].is_draining is expected

    async def test_the_servers_can_be_given_again(
        self, metadata: MetadataChanges, handlers: ConfigHandlers, file: str
    ) -> None:
        await add(handlers, file)
        assert metadata.image.databases["orders"].generation == 0

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("draining", SET, "perhaps"), "draining"),
            (("drain", SET, "true"), "the nearest that can be changed is draining"),
            (("partitions", SET, "3"), "Unknown setting partitions"),
            (("servers", APPEND, "sqlite:///b.db"), "no lists"),
            (("primary", DELETE, None), "always has a primary"),
            (("primary", SET, "other:3306"), "has no server other:3306"),
        ],
    )
    async def test_what_means_nothing_is_refused(
        self, handlers: ConfigHandlers, change: tuple[str, int, str | None], said: str
    ) -> None:
        code, reason = await alter(handlers, "orders", change)
        assert code is Code.INVALID_CONFIG
        assert said in reason

    async def test_a_group_without_servers_is_gone(self, metadata: MetadataChanges, handlers: ConfigHandlers) -> None:
        both = (("servers", DELETE, None), ("draining", SET, "true"))
        assert (await alter(handlers, "orders", *both))[0] is Code.INVALID_CONFIG
        all_of_it = (("servers", DELETE, None), ("draining", DELETE, None), ("primary", DELETE, None))
        assert await alter(handlers, "orders", *all_of_it) == (Code.NONE, "")
        assert not metadata.image.databases
        assert (await alter(handlers, "orders", *all_of_it))[0] is Code.INVALID_REQUEST

    async def test_a_group_that_has_partitions_is_not_removed(
        self, metadata: MetadataChanges, handlers: ConfigHandlers
    ) -> None:
        await metadata.create_topics([TopicCreation("t", 2, overrides={"penstock.storage": "sql"})])
        code, said = await alter(handlers, "orders", ("servers", DELETE, None))
        assert (code, "drain it first" in said) == (Code.INVALID_REQUEST, True)


class TestDescribing:
    async def test_a_group_is_told_without_its_password(
        self, metadata: MetadataChanges, handlers: ConfigHandlers
    ) -> None:
        servers = tuple(
            DatabaseServer(f"mysql://user@{host}:3306/db?ssl_ca=%2Fca.pem", KEY.encrypt("pass")) for host in ("a", "b")
        )
        group = DatabaseGroupInfo("orders", servers, primary=1, generation=2)
        await metadata.change(lambda draft: draft.put_database(group))
        assert await described(handlers, "orders") == {
            "servers": None,
            "primary": "b:3306",
            "draining": "false",
            "generation": "2",
            "partitions": "0",
            "partitions.leaving": "0",
            "partitions.arriving": "0",
            "server.0.address": "mysql://user@a:3306/db?ssl_ca=%2Fca.pem",
            "server.0.role": "replica",
            "server.1.address": "mysql://user@b:3306/db?ssl_ca=%2Fca.pem",
            "server.1.role": "primary",
        }
        fine, wrong = ServerStatus(True, True), ServerStatus(True, False)
        for found, states in (
            ((ServerStatus(True, False, 120), fine), ("up", "up")),
            ((ServerStatus(None), ServerStatus(False, problem="no answer")), ("unknown", "down")),
            ((fine, wrong), ("writable", "read-only")),
        ):
            told = await described(made(metadata, statuses=Statuses(*found)), "orders")
            assert (told["server.0.state"], told["server.1.state"]) == states
            assert told.get("server.0.lag_ms") == ("120" if found[0].lag_ms else None)
            assert told.get("server.1.problem") == (found[1].problem or None)

    async def test_the_default_group_is_told_too(self, handlers: ConfigHandlers) -> None:
        told = await described(handlers, "default")
        assert told["server.0.address"] == "mysql://penstock@db.example:3306/queues"
        assert (told["servers"], told["primary"], told["partitions"]) == (None, "db.example:3306", "0")

    async def test_partitions_are_counted_where_they_are_and_where_they_go(
        self, metadata: MetadataChanges, handlers: ConfigHandlers, file: str
    ) -> None:
        await add(handlers, file)
        await metadata.create_topics([TopicCreation("t", 4, overrides={"penstock.storage": "sql"})])
        await alter(handlers, "orders", ("draining", SET, "true"))
        await metadata.change(database_groups.begin_moves)
        counts = ("partitions", "partitions.leaving", "partitions.arriving", "draining")
        told = {name: await described(handlers, name) for name in ("orders", "default")}
        assert [told["orders"][each] for each in counts] == ["2", "2", "0", "true"]
        assert [told["default"][each] for each in counts] == ["2", "0", "2", "false"]

    async def test_an_unknown_group_is_refused(self, handlers: ConfigHandlers) -> None:
        resource = DescribeConfigsResource(resource_type=DATABASE, resource_name="other", configuration_keys=None)
        (result,) = (await handlers.describe_configs(DescribeConfigsRequest(resources=(resource,)), CONTEXT)).results
        assert (result.error_code, result.error_message) == (
            Code.INVALID_REQUEST,
            "There is no database group 'other'.",
        )

    async def test_groups_are_listed_for_those_who_ask_for_them(self, handlers: ConfigHandlers, file: str) -> None:
        await add(handlers, file)
        assert await listed(handlers, DATABASE) == [(100, "default"), (100, "orders")]
        assert all(kind != DATABASE for kind, _ in await listed(handlers))
