"""What each cleaning job does."""

from __future__ import annotations

from penstock.admin import Cluster
from penstock.clock import Clock
from penstock.console.alerts.alert_engine import EVENTS
from penstock.console.cleaning.jobs import JobDefinition
from penstock.console.cleaning.message_history import delete_history
from penstock.console.cleaning.removed import Removed, all_removed
from penstock.console.cleaning.stale_metadata import StaleMetadata
from penstock.console.operations.clusters import Clusters, ManagedCluster
from penstock.console.polling.samples import remove_old_samples
from penstock.console.schemas.topic_schemas import TopicSchemas
from penstock.console.settings import RetentionSettings, SampleSettings
from penstock.console.state.audit import AuditLog
from penstock.console.state.rules import EventStore, RuleStore
from penstock.console.state.sessions import Sessions
from penstock.errors import PenstockError
from penstock.sql.database import Database

_DAY_MS = 24 * 3_600_000
_EMPTY = "EMPTY"
_GROUPS_AT_ONCE = 100


def cleaning_jobs(
    database: Database,
    audit: AuditLog,
    sessions: Sessions,
    events: EventStore,
    clusters: Clusters,
    schemas: TopicSchemas,
    rules: RuleStore,
    retention: RetentionSettings,
    samples: SampleSettings,
    clock: Clock,
) -> list[JobDefinition]:
    """All jobs; those that delete what is in a cluster are off until an admin switches them on."""

    stale = StaleMetadata(clusters, schemas, rules, clock)

    async def clean_audit(options: dict[str, int]) -> Removed:
        return Removed(await audit.remove_before(clock.now_ms() - options["days"] * _DAY_MS))

    async def clean_sessions(options: dict[str, int]) -> Removed:
        return Removed(await sessions.remove_expired())

    async def clean_samples(options: dict[str, int]) -> Removed:
        return Removed(await remove_old_samples(database, samples, clock.now_ms()))

    async def clean_alerts(options: dict[str, int]) -> Removed:
        return Removed(await events.remove_before(EVENTS, clock.now_ms() - options["days"] * _DAY_MS))

    async def clean_messages(options: dict[str, int]) -> Removed:
        before_ms = clock.now_ms() - options["days"] * _DAY_MS
        keeps_unread = bool(options["keep_unread"])
        return all_removed([await _history(managed, before_ms, keeps_unread) for managed in clusters.all()])

    async def clean_metadata(options: dict[str, int]) -> Removed:
        return await stale.remove(options["days"] * _DAY_MS)

    async def clean_groups(options: dict[str, int]) -> Removed:
        limit_ms = clock.now_ms() - options["days"] * _DAY_MS
        removed: list[Removed] = []
        for managed in clusters.all():
            idle = [
                group.name
                for group in managed.snapshot.groups.values()
                if group.state == _EMPTY and group.idle_since_ms is not None and group.idle_since_ms <= limit_ms
            ]
            for first in range(0, len(idle), _GROUPS_AT_ONCE):
                chosen = idle[first : first + _GROUPS_AT_ONCE]

                def delete(admin: Cluster, chosen: list[str] = chosen) -> Removed:
                    done = admin.groups.delete(chosen)
                    problems = tuple(f"group {name}: {error.message}" for name, error in done.errors.items())
                    return Removed(len(done.values), tuple(f"group {name}" for name in done.values), problems)

                removed.append(await managed.link.run(delete))
        return all_removed(removed)

    audit_days = retention.audit_ms // _DAY_MS
    alert_days = retention.alert_events_ms // _DAY_MS
    return [
        JobDefinition("audit", "Removes audit entries that are older.", clean_audit, options=(("days", audit_days),)),
        JobDefinition("sessions", "Removes sessions that have ended.", clean_sessions),
        JobDefinition("samples", "Removes samples of charts that are too old.", clean_samples),
        JobDefinition(
            "alert-history", "Removes alerts that ended long ago.", clean_alerts, options=(("days", alert_days),)
        ),
        JobDefinition(
            "message-history",
            "Deletes messages that are older, in all topics of all clusters, whatever retention they have. Not: what a"
            " group has not read (keep_unread 1), what the lake of the cluster has not archived yet, compacted topics,"
            " dead letters, delayed messages.",
            clean_messages,
            every_ms=_DAY_MS,
            is_enabled=False,
            is_destructive=True,
            options=(("days", 90), ("keep_unread", 1)),
        ),
        JobDefinition(
            "metadata",
            "Removes metadata that is not needed: offsets of running groups in topics that no member reads, empty retry"
            " and dead-letter topics of groups that are gone, schemas of topics that are gone, ended silences. Counted"
            " from when this console first saw them so.",
            clean_metadata,
            every_ms=_DAY_MS,
            is_enabled=False,
            is_destructive=True,
            options=(("days", 30),),
        ),
        JobDefinition(
            "idle-groups",
            "Deletes groups without members that have committed nothing for this long, with their offsets. Counted from"
            " when this console first saw them idle.",
            clean_groups,
            every_ms=_DAY_MS,
            is_enabled=False,
            is_destructive=True,
            options=(("days", 30),),
        ),
    ]


async def _history(managed: ManagedCluster, before_ms: int, keeps_unread: bool) -> Removed:
    """One cluster that cannot be cleaned does not keep the others from it."""
    try:
        return await delete_history(managed, before_ms, keeps_unread=keeps_unread)
    except PenstockError as error:
        return Removed(problems=(f"{managed.link.name}: {error}",))
