"""Which part of a broker gives which metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.broker.metrics import broker_metrics
from penstock.broker.metrics.catalogue import EVENT_LOOP_BUSY_SECONDS, EVENT_LOOP_LAG_SECONDS
from penstock.broker.metrics.delay_metrics import register_delays
from penstock.broker.metrics.group_metrics import GroupReadings
from penstock.broker.metrics.registry import Metrics
from penstock.broker.metrics.replication_metrics import ReplicationReadings
from penstock.broker.metrics.transaction_metrics import register_transactions
from penstock.broker.stages import Stages
from penstock.cluster.metadata import MetadataImage
from penstock.config.broker import Config


def registered_metrics(
    stages: Stages, topic_defaults: Callable[[MetadataImage], Mapping[str, str]], config: Config
) -> Metrics:
    """The metrics of a broker whose parts are these."""
    cluster, data, serving, background = stages.cluster, stages.data, stages.serving, stages.background
    metadata, replicas, coordinators = cluster.metadata, data.replicas, serving.coordinators
    partition_series = config.limits.partition_series
    metrics = Metrics(serving.requests)
    broker_metrics.register_build(metrics)
    metrics.register_histogram(EVENT_LOOP_LAG_SECONDS, stages.monitor.lag)
    metrics.register_histogram(EVENT_LOOP_BUSY_SECONDS, stages.monitor.busy)
    broker_metrics.register_connections(metrics, stages.listeners, serving.fetch_handler)
    broker_metrics.register_quotas(metrics, serving.quotas, stages.listeners)
    broker_metrics.register_denials(metrics, serving.permissions)
    broker_metrics.register_logins(metrics, stages.listeners.logins)
    broker_metrics.register_logs(metrics, replicas, data.segmented, partition_series)
    broker_metrics.register_damage(metrics, replicas, serving.repair, coordinators)
    broker_metrics.register_databases(metrics, cluster.databases, replicas)
    broker_metrics.register_disk(metrics, cluster.folder.path)
    broker_metrics.register_views(metrics, data.catalogue.effort)
    broker_metrics.register_archive(metrics, background.archive, replicas, partition_series)
    ReplicationReadings(metadata, replicas, topic_defaults, lambda: background.controller.epoch is not None).register(
        metrics
    )
    register_transactions(metrics, coordinators.transactions)
    register_delays(metrics, data.delays, partition_series)
    GroupReadings(coordinators.groups, metadata, replicas, data.catalogue, config.groups.lag_series).register(metrics)
    return metrics
