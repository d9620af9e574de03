"""What a broker with a database (`sql.url`) has besides: the groups of servers, the engine on them, the coordination
tree in them, and the background work for all of this.

Only `broker.py` and `coordination_tree.py` import this module, and only if there is a database: other brokers load
neither this nor a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.background.cluster_tables import ClusterTables
from penstock.broker.background.database_watch import DatabaseWatch
from penstock.broker.stages import ClusterStage
from penstock.clock import Clock
from penstock.cluster.coordination.sql import SqlCoordination
from penstock.cluster.database_addresses import follow_groups
from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.config.broker import Config
from penstock.delay.inbox_intake import InboxIntake
from penstock.errors import ConfigError
from penstock.replication.replicas import Replicas
from penstock.sql.database import Database
from penstock.sql.errors import DatabaseError
from penstock.sql.groups import DatabaseGroups
from penstock.sql.migrations import is_current
from penstock.storage.contract import Engine
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.metadata_tables import METADATA

if TYPE_CHECKING:
    from penstock.cluster.controller.controller import Controller

_NAMESPACE = "penstock"
"""Of the coordination tree in a database that topics live in, too."""


async def open_databases(config: Config, clock: Clock, to_close: AsyncExitStack) -> DatabaseGroups:
    """Waits for the database as long as a starting broker may; ConfigError if it cannot be used."""
    settings = config.sql
    try:
        database = await Database.open(
            settings.address(),
            connections=settings.connections,
            timeout_ms=settings.timeout_ms,
            patience_ms=config.cluster.connect_timeout_ms,
        )
        to_close.push_async_callback(database.close)
        # Components check the tables that they open; the background tasks write these.
        await database.run(partial(is_current, component=METADATA), is_read_only=True)
    except DatabaseError as error:
        raise ConfigError(f"the database cannot be used: {error}") from error
    databases = DatabaseGroups(database, clock)
    to_close.push_async_callback(databases.close)
    databases.start()
    return databases


async def open_coordination(databases: DatabaseGroups, config: Config, clock: Clock) -> SqlCoordination:
    """The tree of a cluster that has nothing but the database."""
    return await SqlCoordination.open(
        databases.default.primary.address,
        _NAMESPACE,
        config.cluster.lease_ms,
        clock,
        config.cluster.connect_timeout_ms,
    )


def new_engine(databases: DatabaseGroups, config: Config, clock: Clock, cluster_id: str) -> Engine:
    settings = config.sql
    return SqlEngine(
        databases,
        config.log,
        config.limits,
        clock,
        cluster_id=cluster_id,
        buffer_bytes=settings.buffer_bytes,
        cache_bytes=settings.cache_bytes,
        retry_ms=settings.retry_ms,
        range_bytes=settings.range_bytes,
    )


def follow_database_groups(databases: DatabaseGroups, cluster: ClusterStage, to_close: AsyncExitStack) -> None:
    """Has the groups of the image used, now and when it changes."""

    def image_changed(old: MetadataImage | None, new: MetadataImage) -> None:
        if old is None or old.databases != new.databases:
            follow_groups(databases, cluster.database_key, new.databases)

    image_changed(None, cluster.metadata.image)
    to_close.callback(cluster.metadata.subscribe(image_changed))


def start_database_work(
    databases: DatabaseGroups,
    cluster: ClusterStage,
    replicas: Replicas,
    controller: Controller,
    storage_of: Callable[[TopicImage, MetadataImage], str],
    clock: Clock,
    to_close: AsyncExitStack,
) -> None:
    """Tables that show the cluster, the watch over servers, and delayed messages that clients insert with SQL."""
    metadata = cluster.metadata
    tables = ClusterTables(databases, lambda: metadata.image, lambda: controller.epoch, storage_of, clock)
    to_close.push_async_callback(tables.close)
    tables.start()
    watch = DatabaseWatch(databases, metadata, cluster.coordination, lambda: controller.epoch is not None, clock)
    to_close.push_async_callback(watch.close)
    watch.start()
    intake = InboxIntake(databases, lambda: list(replicas))
    to_close.push_async_callback(intake.close)
    intake.start()
