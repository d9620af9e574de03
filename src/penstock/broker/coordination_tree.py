"""Opens the coordination tree that the settings name: in ZooKeeper, in a database, or in a file of a broker alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Clock
from penstock.cluster.coordination.contract import Coordination
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.config.broker import Config
from penstock.extras import missing_extra

if TYPE_CHECKING:
    from penstock.cluster.coordination.zookeeper_session import ZooKeeperTls
    from penstock.sql.groups import DatabaseGroups

COORDINATION_FILE = "coordination.db"


async def open_coordination(
    config: Config, folder: Path, databases: DatabaseGroups | None, clock: Clock
) -> Coordination:
    """`folder` is the data folder; `databases` those of `sql.url`, if it is set."""
    settings = config.cluster
    if settings.coordinator is None and databases is not None:
        from penstock.broker.database_parts import open_coordination as open_in_database

        return await open_in_database(databases, config, clock)
    if settings.coordinator is None:
        return await EmbeddedCoordination.open(folder / COORDINATION_FILE)
    # Not loaded by a broker that is alone: its library is a part of its own of the package.
    try:
        from penstock.cluster.coordination.zookeeper import ZooKeeperCoordination
    except ModuleNotFoundError as error:
        raise missing_extra(error, "cluster.coordinator (ZooKeeper)") or error from None

    servers, chroot = settings.coordinator
    return await ZooKeeperCoordination.open(
        servers, chroot, settings.lease_ms, clock, settings.connect_timeout_ms, _zookeeper_tls(config)
    )


def _zookeeper_tls(config: Config) -> ZooKeeperTls | None:
    from penstock.cluster.coordination.zookeeper_session import ZooKeeperTls

    security = config.security
    if not config.cluster.coordinator_tls:
        return None
    return ZooKeeperTls(security.ca_file, security.certificate_file, security.key_file, security.key_password_file)
