"""The servers of database groups, as this process reaches them: addresses of the metadata, with their passwords."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.cluster.metadata import DatabaseGroupInfo
from penstock.errors import ConfigError
from penstock.logs import fields
from penstock.sql.groups import DatabaseGroups, GroupAddresses

if TYPE_CHECKING:
    from penstock.sql.passwords import PasswordKey

logger = logging.getLogger(__name__)


def follow_groups(databases: DatabaseGroups, key: PasswordKey | None, groups: Mapping[str, DatabaseGroupInfo]) -> None:
    """Has the groups of an image used, but for those whose passwords this broker cannot read."""
    wanted: dict[str, GroupAddresses] = {}
    for name, group in groups.items():
        try:
            if key is None:
                raise ConfigError("sql.key_file is not set")
            servers = tuple(key.address(server.address, server.secret) for server in group.servers)
        except ConfigError as error:
            logger.error("cannot use a database group", extra=fields(group=name, reason=str(error)))
        else:
            wanted[name] = GroupAddresses(servers, group.primary, group.generation)
    databases.follow(wanted)
