"""A broker's own values on /metrics: connections, logs, disk, views, archive, build."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.broker.background.archive_hold import ArchiveHold
from penstock.broker.coordinators import Coordinators
from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.metrics import catalogue
from penstock.broker.metrics.registry import Metrics, Sample
from penstock.broker.permissions.access import Permissions
from penstock.broker.requests.client_limits import ClientLimits
from penstock.net.listener import Listeners
from penstock.net.login import Logins
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.replicas import Replicas
from penstock.storage.contract import Engine
from penstock.views.search import Effort

if TYPE_CHECKING:
    from penstock.sql.groups import DatabaseGroups


def register_build(metrics: Metrics) -> None:
    labels = (__version__, platform.python_version())
    metrics.register_source((catalogue.BUILD_INFO,), lambda: [(catalogue.BUILD_INFO, labels, 1)])


def register_connections(metrics: Metrics, listeners: Listeners, fetches: FetchHandler) -> None:
    metrics.register(catalogue.CONNECTIONS, lambda: listeners.connections)
    metrics.register(catalogue.CONNECTIONS_ACCEPTED, lambda: listeners.accepted)
    metrics.register(catalogue.CONNECTIONS_REFUSED, lambda: listeners.refused)
    metrics.register(catalogue.REQUEST_BYTES_HELD, lambda: listeners.request_bytes_held)
    metrics.register(catalogue.FOLLOWER_SESSIONS, lambda: fetches.follower_sessions)
    metrics.register(catalogue.PARKED_FETCHES, lambda: fetches.parked)


def register_quotas(metrics: Metrics, quotas: ClientLimits, listeners: Listeners) -> None:
    metrics.register(catalogue.CONNECTIONS_MUTED, lambda: listeners.muted)
    metrics.register(catalogue.CONNECTIONS_HELD, lambda: listeners.held)
    metrics.register_source((catalogue.THROTTLED_REQUESTS, catalogue.THROTTLE_SECONDS), lambda: _throttled(quotas))


def register_denials(metrics: Metrics, permissions: Permissions | None) -> None:
    counts = {} if permissions is None else permissions.denials.counts
    metrics.register_source(
        (catalogue.AUTHORIZATION_DENIED,),
        lambda: [
            (catalogue.AUTHORIZATION_DENIED, (operation.name, type_.name), count)
            for (operation, type_), count in list(counts.items())
        ],
    )


def register_logins(metrics: Metrics, logins: Logins | None) -> None:
    """A broker whose listeners ask for no login has counted none."""
    metrics.register_source((catalogue.LOGINS,), lambda: () if logins is None else _logins(logins))
    metrics.register(catalogue.SESSIONS_EXPIRED, lambda: 0 if logins is None else logins.expired)


def _logins(logins: Logins) -> Iterator[Sample]:
    for result, counts in (("accepted", logins.accepted_by_mechanism), ("failed", logins.failed_by_mechanism)):
        for mechanism, count in counts.items():
            yield catalogue.LOGINS, (mechanism, result), count


def register_logs(metrics: Metrics, replicas: Replicas, engine: Engine, partition_series: int) -> None:
    """At most `partition_series` partitions have series of their own."""
    metrics.register(catalogue.OPEN_FILES, lambda: engine.open_files)
    metrics.register(
        catalogue.UNWRITTEN_BYTES,
        lambda: sum(each.unwritten_bytes for each in (engine, *replicas.shared_engines)),
    )
    metrics.register(catalogue.PARTITIONS_LEFT_OUT, lambda: max(0, replicas.count - partition_series))
    metrics.register_source(
        (catalogue.LOG_SIZE_BYTES, catalogue.LOG_START_OFFSET, catalogue.LOG_END_OFFSET),
        lambda: _logs(replicas, partition_series),
    )


def register_damage(metrics: Metrics, replicas: Replicas, repair: DamageRepair, coordinators: Coordinators) -> None:
    metrics.register_source((catalogue.DAMAGED_RANGES,), lambda: _damaged_ranges(replicas))
    metrics.register(catalogue.DAMAGE_REPAIRED, lambda: repair.repaired)
    metrics.register_source(
        (catalogue.STATE_LOST_RANGES,),
        lambda: [(catalogue.STATE_LOST_RANGES, labels, lost) for labels, lost in coordinators.lost_ranges()],
    )


def register_databases(metrics: Metrics, databases: DatabaseGroups | None, replicas: Replicas) -> None:
    metrics.register(
        catalogue.DATABASE_LOST_RECORDS, lambda: sum(engine.lost_records for engine in replicas.shared_engines)
    )
    families = (catalogue.DATABASE_SERVERS_UP, catalogue.DATABASE_REPLICATION_LAG_SECONDS)
    metrics.register_source(families, lambda: () if databases is None else _database_servers(databases))


def register_disk(metrics: Metrics, folder: Path) -> None:
    metrics.register_thread_source((catalogue.DISK_FREE_BYTES, catalogue.DISK_SIZE_BYTES), lambda: _disk(folder))


def register_views(metrics: Metrics, effort: Effort) -> None:
    metrics.register(catalogue.VIEW_LOOKED_AT_BYTES, lambda: effort.looked_at_bytes)
    metrics.register(catalogue.VIEW_SHOWN_BYTES, lambda: effort.shown_bytes)


def register_archive(metrics: Metrics, archive: ArchiveHold, replicas: Replicas, partition_series: int) -> None:
    """At most `partition_series` partitions have series of their own."""
    metrics.register(catalogue.ARCHIVE_LOST_BYTES, lambda: archive.lost_bytes)
    metrics.register_source(
        (catalogue.ARCHIVE_LAG_RECORDS,), lambda: _archive_lags(archive, replicas, partition_series)
    )


def _throttled(quotas: ClientLimits) -> Iterator[Sample]:
    for key, counts in quotas.counts.items():
        yield catalogue.THROTTLED_REQUESTS, (key.value,), counts.throttled
        yield catalogue.THROTTLE_SECONDS, (key.value,), counts.seconds


def _logs(replicas: Replicas, limit: int) -> Iterator[Sample]:
    for partition in list(islice(replicas, limit)):
        log = partition.log
        labels = (log.topic_partition.topic, str(log.topic_partition.partition))
        yield catalogue.LOG_SIZE_BYTES, labels, log.size_bytes
        yield catalogue.LOG_START_OFFSET, labels, log.start_offset
        yield catalogue.LOG_END_OFFSET, labels, log.end_offset


def _archive_lags(archive: ArchiveHold, replicas: Replicas, limit: int) -> Iterator[Sample]:
    for at, archived in list(islice(archive.archived.items(), limit)):
        partition = replicas.here(at)
        if partition is not None and partition.leadership is not None:
            lag = partition.high_watermark - max(archived, partition.log.start_offset)
            yield catalogue.ARCHIVE_LAG_RECORDS, (at.topic, str(at.partition)), max(0, lag)


def _disk(folder: Path) -> Iterator[Sample]:
    found = os.statvfs(folder)
    yield catalogue.DISK_FREE_BYTES, (), found.f_bavail * found.f_frsize
    yield catalogue.DISK_SIZE_BYTES, (), found.f_blocks * found.f_frsize


def _database_servers(databases: DatabaseGroups) -> Iterator[Sample]:
    for group in databases:
        for server in group.servers:
            role = "primary" if server is group.primary else "replica"
            name = server.address.server
            yield catalogue.DATABASE_SERVERS_UP, (group.name, name, role), int(not server.is_down)
            if server is not group.primary and (lag_ms := group.lag_ms(server)) is not None:
                yield catalogue.DATABASE_REPLICATION_LAG_SECONDS, (group.name, name), lag_ms / 1000


def _damaged_ranges(replicas: Replicas) -> Iterator[Sample | None]:
    found = 0
    for partition in replicas:
        found += len(partition.log.damage)
        yield None
    yield catalogue.DAMAGED_RANGES, (), found
