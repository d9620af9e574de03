"""Database groups: the databases that topics in SQL storage are spread over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.admin.connection import AdminConnection, Deadline
from penstock.admin.errors import AdminError
from penstock.admin.results import Results
from penstock.admin.wire import call
from penstock.config import database_group as names
from penstock.config.database_address import DatabaseAddress
from penstock.config.database_group import DATABASE_RESOURCE, GROUP_DRAINING, PRIMARY, SERVERS, server_entry
from penstock.errors import Code, code_from
from penstock.protocol import apis
from penstock.protocol.apis import Api
from penstock.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.protocol.messages.incremental_alter_configs import (
    DELETE,
    SET,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from penstock.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

T = TypeVar("T")

_DESCRIBE_VERSION = 4
_ALTER_VERSION = 1
_LIST_VERSION = 1


@dataclass(frozen=True, slots=True)
class DatabaseServerDescription:
    """A server of a database group, as the answering broker sees it."""

    address: str
    """Without the password."""
    is_primary: bool
    state: str | None
    """`up`, `down`, `read-only` (a primary that takes no writes), `writable` (a replica that does) or `unknown`; None
    if the broker does not use the group.
    """
    lag_ms: int | None
    """How far a replica is behind, if that is known."""
    problem: str
    """Why it does not answer."""

    @property
    def name(self) -> str:
        """HOST:PORT, or the path of a file."""
        return DatabaseAddress.parse(self.address).server


@dataclass(frozen=True, slots=True)
class DatabaseGroupDescription:
    """A database group, and what is in it."""

    name: str
    servers: tuple[DatabaseServerDescription, ...]
    is_draining: bool
    generation: int
    """How often another server has become the primary."""
    partitions: int
    """Those that are in it, also if they are on their way to another one."""
    leaving: int
    """Partitions that are being moved to another group."""
    arriving: int
    """Partitions that are being moved here."""

    @property
    def primary(self) -> DatabaseServerDescription:
        return next(server for server in self.servers if server.is_primary)


class DatabaseOperations:
    """Operations on database groups. The client library knows no such thing, so they go to a bootstrap server over a
    connection without TLS or SASL (`wire`), passwords included.
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def list(self) -> tuple[DatabaseGroupDescription, ...]:
        """All groups that the broker knows, the default one first."""
        deadline = self._connection.deadline()
        request = ListConfigResourcesRequest(resource_types=(DATABASE_RESOURCE,))
        told = self._ask(apis.LIST_CONFIG_RESOURCES, _LIST_VERSION, request, ListConfigResourcesResponse, deadline)
        if told.error_code != Code.NONE:
            raise _error(told.error_code, "the broker is of a version that knows no database groups")
        found = [each.resource_name for each in told.config_resources]
        return tuple(self._describe(found, deadline).all().values())

    def describe(self, groups: Iterable[str]) -> Results[str, DatabaseGroupDescription]:
        """These groups."""
        return self._describe(dict.fromkeys(groups), self._connection.deadline())

    def add(self, name: str, servers: Sequence[str]) -> None:
        """Makes a group of these servers, which are addresses with passwords; the first is the primary.

        The broker connects to all of them, which may take longer than other calls.
        """
        if name in {group.name for group in self.list()}:
            raise AdminError(Code.INVALID_REQUEST.name, f"there is a database group {name} already")
        self.set_servers(name, servers)

    def set_servers(self, name: str, servers: Sequence[str]) -> None:
        """Gives a group other servers, or other users and passwords for them. The primary must be among them."""
        self._alter({name: [_set(SERVERS.name, " ".join(servers))]})[name]

    def drain(self, groups: Iterable[str]) -> Results[str, None]:
        """Has the partitions of these groups moved to others. That takes its time: `describe` shows what is left."""
        return self._alter({name: [_set(GROUP_DRAINING.name, "true")] for name in groups})

    def undrain(self, groups: Iterable[str]) -> Results[str, None]:
        """Lets these groups have partitions again; those that are on their way to others stay."""
        return self._alter({name: [_deleted(GROUP_DRAINING.name)] for name in groups})

    def promote(self, name: str, server: str) -> None:
        """Makes a server, HOST:PORT, the primary of its group."""
        self._alter({name: [_set(PRIMARY.name, server)]})[name]

    def remove(self, groups: Iterable[str]) -> Results[str, None]:
        """Forgets groups that have no partitions. What is in their databases stays there."""
        return self._alter({name: [_deleted(SERVERS.name)] for name in groups})

    def _describe(self, groups: Iterable[str], deadline: Deadline) -> Results[str, DatabaseGroupDescription]:
        request = DescribeConfigsRequest(
            resources=tuple(
                DescribeConfigsResource(resource_type=DATABASE_RESOURCE, resource_name=name, configuration_keys=None)
                for name in groups
            )
        )
        if not request.resources:
            return Results()
        told = self._ask(apis.DESCRIBE_CONFIGS, _DESCRIBE_VERSION, request, DescribeConfigsResponse, deadline)
        values = {
            each.resource_name: _group(each.resource_name, {config.name: config.value for config in each.configs})
            for each in told.results
            if each.error_code == Code.NONE
        }
        errors = {
            each.resource_name: _error(each.error_code, each.error_message)
            for each in told.results
            if each.error_code != Code.NONE
        }
        return Results(values, errors)

    def _alter(self, changes: Mapping[str, Sequence[IncrementalConfig]]) -> Results[str, None]:
        deadline = self._connection.deadline()
        if not changes:
            return Results()
        request = IncrementalAlterConfigsRequest(
            resources=tuple(
                IncrementalConfigsResource(resource_type=DATABASE_RESOURCE, resource_name=name, configs=tuple(wanted))
                for name, wanted in changes.items()
            ),
            validate_only=False,
        )
        told = self._ask(
            apis.INCREMENTAL_ALTER_CONFIGS, _ALTER_VERSION, request, IncrementalAlterConfigsResponse, deadline
        )
        errors = {
            each.resource_name: _error(each.error_code, each.error_message)
            for each in told.responses
            if each.error_code != Code.NONE
        }
        return Results({name: None for name in changes if name not in errors}, errors)

    def _ask(self, api: Api, version: int, request: object, response: type[T], deadline: Deadline) -> T:
        listener = self._connection.listener()
        return call(listener, api, version, request, response, self._connection.settings, deadline)


def _group(name: str, entries: Mapping[str, str | None]) -> DatabaseGroupDescription:
    servers: list[DatabaseServerDescription] = []
    while (address := entries.get(server_entry(len(servers), names.ADDRESS))) is not None:
        told = {
            what: entries.get(server_entry(len(servers), what))
            for what in (names.ROLE, names.STATE, names.LAG_MS, names.PROBLEM)
        }
        lag_ms = told[names.LAG_MS]
        servers.append(
            DatabaseServerDescription(
                address=address,
                is_primary=told[names.ROLE] == "primary",
                state=told[names.STATE],
                lag_ms=None if lag_ms is None else int(lag_ms),
                problem=told[names.PROBLEM] or "",
            )
        )
    return DatabaseGroupDescription(
        name=name,
        servers=tuple(servers),
        is_draining=entries.get(GROUP_DRAINING.name) == "true",
        generation=int(entries[names.GENERATION] or 0),
        partitions=int(entries[names.PARTITIONS] or 0),
        leaving=int(entries[names.LEAVING] or 0),
        arriving=int(entries[names.ARRIVING] or 0),
    )


def _set(name: str, value: str) -> IncrementalConfig:
    return IncrementalConfig(name=name, config_operation=SET, value=value)


def _deleted(name: str) -> IncrementalConfig:
    return IncrementalConfig(name=name, config_operation=DELETE, value=None)


def _error(code: int, message: str | None) -> AdminError:
    name = code_from(code).name
    return AdminError(name, message or name)
