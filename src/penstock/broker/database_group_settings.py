"""Database groups as a configuration resource: from settings to a change of the metadata, and back to a description.

Passwords come in with a change. The broker encrypts them at once and never returns them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.broker.config_descriptions import Described, SettingOrigin, SettingSource
from penstock.cluster.decisions.database_groups import GroupChange, server_index
from penstock.cluster.decisions.settings import Increment, OperationKind, SettingOperation
from penstock.cluster.metadata import DEFAULT_DATABASE, DatabaseGroupInfo, DatabaseServer, MetadataImage
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.config import database_group as names
from penstock.config.database_address import DatabaseAddress
from penstock.config.database_group import DATABASE_SETTINGS, GROUP_DRAINING, PRIMARY, SERVERS, server_entry
from penstock.config.setting import Kind, Setting, nearest
from penstock.errors import ApiError, Code, ConfigError

if TYPE_CHECKING:
    from penstock.sql.passwords import PasswordKey
    from penstock.sql.server_status import DatabaseStatus

_SOURCE = SettingSource.DYNAMIC_DEFAULT_BROKER
"""Set while brokers run, for all of them."""


class DatabaseGroupSettings:
    """Changes and describes the database groups of the cluster."""

    def __init__(
        self,
        metadata: MetadataChanges,
        key: PasswordKey | None,
        default: DatabaseAddress | None,
        status: DatabaseStatus | None = None,
    ) -> None:
        """`default` is the address of the default group, if this broker has one."""
        self._metadata = metadata
        self._key = key
        self._default = default
        self._status = status
        self._turn = asyncio.Lock()
        """Of the request whose servers are looked at: each look takes threads, and seconds if nothing answers."""

    def names(self, image: MetadataImage) -> Iterable[str]:
        """All groups that this broker knows."""
        return image.databases if self._default is None else (DEFAULT_DATABASE, *image.databases)

    async def alter(self, changes: Mapping[str, Increment], *, validate_only: bool) -> Mapping[str, ApiError | None]:
        """What became of each change. Servers are looked at before anything is committed."""
        wanted: dict[str, GroupChange] = {}
        errors: dict[str, ApiError | None] = {}
        for name, change in changes.items():
            try:
                wanted[name] = self._understood(change)
            except ApiError as error:
                errors[name] = error
        # First what needs no connections.
        refused = await self._metadata.alter_database_groups(wanted, validate_only=True)
        errors |= {name: error for name, error in refused.items() if error is not None}
        for name, group in wanted.items():
            try:
                if name not in errors:
                    await self._look_at(name, group, validate_only)
            except ApiError as error:
                errors[name] = error
        left = {name: group for name, group in wanted.items() if name not in errors}
        return errors | dict(await self._metadata.alter_database_groups(left, validate_only=validate_only))

    def describe(self, image: MetadataImage, name: str) -> list[Described]:
        """The settings of a group, and what is known of it."""
        group = self._group(image, name)
        is_fixed = name == DEFAULT_DATABASE
        primary = DatabaseAddress.parse(group.servers[group.primary].address).server
        described = [
            _described(SERVERS.name, None, SERVERS, is_fixed=is_fixed),
            _described(PRIMARY.name, primary, PRIMARY, is_fixed=is_fixed),
            _described(GROUP_DRAINING.name, str(group.is_draining).lower(), GROUP_DRAINING, is_fixed=is_fixed),
        ]
        return [*described, *(_told(entry, value) for entry, value in self._facts(image, group))]

    def _facts(self, image: MetadataImage, group: DatabaseGroupInfo) -> Iterator[tuple[str, object]]:
        counts: Counter[str] = Counter()
        for topic in image.topics.values():
            for partition in topic.partitions if topic.is_shared else ():
                counts[names.PARTITIONS] += partition.database == group.name
                counts[names.LEAVING] += partition.database == group.name and partition.database_to is not None
                counts[names.ARRIVING] += partition.database_to == group.name
        yield names.GENERATION, group.generation
        for fact in (names.PARTITIONS, names.LEAVING, names.ARRIVING):
            yield fact, counts[fact]
        statuses = () if self._status is None else self._status.status(group.name)
        for number, server in enumerate(group.servers):
            is_primary = number == group.primary
            yield server_entry(number, names.ADDRESS), server.address
            yield server_entry(number, names.ROLE), "primary" if is_primary else "replica"
            if number < len(statuses):
                status = statuses[number]
                yield server_entry(number, names.STATE), status.state(is_primary=is_primary)
                if status.lag_ms is not None:
                    yield server_entry(number, names.LAG_MS), status.lag_ms
                if status.problem:
                    yield server_entry(number, names.PROBLEM), status.problem

    def _group(self, image: MetadataImage, name: str) -> DatabaseGroupInfo:
        if name == DEFAULT_DATABASE and self._default is not None:
            return DatabaseGroupInfo(name, (DatabaseServer(self._default.public_text),))
        group = image.databases.get(name)
        if group is None:
            raise ApiError(Code.INVALID_REQUEST, f"There is no database group '{name}'.")
        return group

    def _understood(self, change: Increment) -> GroupChange:
        operations = {each.name: each for each in change.operations}
        for name in operations:
            if name not in DATABASE_SETTINGS:
                known = nearest(name, DATABASE_SETTINGS)
                raise ApiError(
                    Code.INVALID_CONFIG, f"Unknown setting {name}: the nearest that can be changed is {known}."
                )
        kinds = {name: each.kind for name, each in operations.items()}
        if any(kind not in (OperationKind.SET, OperationKind.DELETE) for kind in kinds.values()):
            raise ApiError(Code.INVALID_CONFIG, "The settings of a database group are no lists: set or delete them.")
        if kinds.get(SERVERS.name) is OperationKind.DELETE:
            if any(kind is not OperationKind.DELETE for kind in kinds.values()):
                raise ApiError(
                    Code.INVALID_CONFIG, f"A group without {SERVERS.name} is removed: nothing else can be set."
                )
            return GroupChange(is_removal=True)
        if kinds.get(PRIMARY.name) is OperationKind.DELETE:
            raise ApiError(Code.INVALID_CONFIG, f"A group always has a {PRIMARY.name}; set it to another server.")
        if SERVERS.name in kinds and PRIMARY.name in kinds:
            raise ApiError(Code.INVALID_CONFIG, f"{SERVERS.name} and {PRIMARY.name} are set one after the other.")
        servers, fingerprint = self._servers(operations.get(SERVERS.name))
        primary = operations.get(PRIMARY.name)
        return GroupChange(
            servers=servers,
            key=fingerprint,
            primary=None if primary is None else _value(primary),
            is_draining=_flag(operations.get(GROUP_DRAINING.name)),
        )

    def _servers(self, operation: SettingOperation | None) -> tuple[tuple[DatabaseServer, ...] | None, str]:
        if operation is None:
            return None, ""
        if self._key is None:
            raise ApiError(
                Code.INVALID_REQUEST,
                "This broker has no key to keep passwords with: set sql.key_file on all brokers, and start them again.",
            )
        try:
            addresses = [DatabaseAddress.parse(text) for text in _value(operation).split()]
        except ConfigError as error:
            raise ApiError(Code.INVALID_CONFIG, f"{SERVERS.name}: {error}") from None
        servers = tuple(DatabaseServer(each.public_text, self._key.encrypt(each.password)) for each in addresses)
        return servers, self._key.fingerprint

    async def _look_at(self, name: str, group: GroupChange, validate_only: bool) -> None:
        if group.servers is None and group.primary is None:
            return
        async with self._turn:
            if group.servers is not None:
                await self._check(name, group.servers, validate_only)
            if group.primary is not None:
                await self._check_primary(name, group.primary)

    async def _check_primary(self, name: str, primary: str) -> None:
        from penstock.storage.sql.server_check import ServerRefused, check_primary

        group = self._metadata.image.databases.get(name)
        if group is None or self._key is None:
            # The commit finds out that it is gone. Without a key no server can be asked.
            return
        server = group.servers[server_index(group, primary)]
        try:
            await check_primary(self._key.address(server.address, server.secret))
        except (ServerRefused, ConfigError) as error:
            raise ApiError(Code.INVALID_CONFIG, f"{error}; nothing was changed.") from error

    async def _check(self, name: str, given: Sequence[DatabaseServer], validate_only: bool) -> None:
        from penstock.storage.sql.server_check import GroupServers, ServerRefused, check_servers

        assert self._key is not None
        image = self._metadata.image
        addresses = tuple(self._key.address(server.address, server.secret) for server in given)
        primary, existing = 0, image.databases.get(name)
        if existing is not None:
            former = DatabaseAddress.parse(existing.servers[existing.primary].address)
            # It is among them, or it has become another one meanwhile, which the commit finds out.
            primary = next((number for number, each in enumerate(addresses) if each.place == former.place), 0)
        servers = GroupServers(name, image.cluster_id, addresses, primary, tuple(image.databases))
        try:
            await check_servers(servers, validate_only=validate_only)
        except ServerRefused as error:
            raise ApiError(Code.INVALID_CONFIG, f"{error}; nothing was changed.") from error


def _flag(operation: SettingOperation | None) -> bool | None:
    if operation is None:
        return None
    if operation.kind is OperationKind.DELETE:
        return False
    try:
        return GROUP_DRAINING.parse(_value(operation)) is True
    except ConfigError as error:
        raise ApiError(Code.INVALID_CONFIG, str(error)) from None


def _value(operation: SettingOperation) -> str:
    if operation.value is None:
        raise ApiError(Code.INVALID_REQUEST, f"Null value not supported for : {operation.name}")
    return operation.value


def _described(name: str, value: str | None, setting: Setting, *, is_fixed: bool) -> Described:
    origins = (SettingOrigin(name, value, _SOURCE),)
    return Described(name, value, _SOURCE, is_fixed, setting.kind, setting.doc, origins, setting.is_secret)


def _told(name: str, value: object) -> Described:
    text = str(value)
    return Described(name, text, _SOURCE, True, Kind.STRING, "", (SettingOrigin(name, text, _SOURCE),))
