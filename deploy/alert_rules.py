"""Prometheus' rules: lag of groups over all brokers, and what somebody should be told of.

One job is one cluster: everything is added up by the label `job`. A series is named by its definition, so a rule about
a metric that does not exist cannot be written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.broker.metrics import catalogue
from penstock.broker.metrics.catalogue import Family

GROUP_LAG = "penstock:group_lag:records"
GROUP_LAG_SUM = "penstock:group_lag:sum"
JOBS = 'job=~"penstock.*"'

STALL_S = "0.5"
"""A bound of the histogram: nobody was served for longer."""
DISK_LOW = 0.10
DISK_VERY_LOW = 0.03
ERROR_SHARE = 0.05
LAG_RECORDS = 1000
OVERDUE_S = 30
LATENESS_S = 10
ARCHIVE_LAG_RECORDS = 100_000
OPEN_TRANSACTION_S = 1200
"""Longer than transactions.max_timeout_ms allows by default."""
FDS_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Alert:
    """`summary` and `action` are for the person who is called: what is wrong, what to do first."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    action: str


def _sum(family: Family, *by: str) -> str:
    return f"sum by ({', '.join(('job', *by))}) ({family.exposed})"


def _max(family: Family, *by: str) -> str:
    return f"max by ({', '.join(('job', *by))}) ({family.exposed})"


def _rate(family: Family, window: str, *by: str) -> str:
    return f"sum by ({', '.join(('job', *by))}) (rate({family.exposed}[{window}]))"


def _increase(family: Family, window: str, *by: str) -> str:
    return f"sum by ({', '.join(('job', *by))}) (increase({family.exposed}[{window}]))"


def recordings() -> Iterator[tuple[str, str]]:
    """The end of a partition is known by its brokers, what a group has committed by its coordinator."""
    ends = _max(catalogue.LOG_END_OFFSET, "topic", "partition")
    committed = _max(catalogue.GROUP_COMMITTED_OFFSET, "group", "topic", "partition")
    joined = f"clamp_min({ends} - on (job, topic, partition) group_right () {committed}, 0)"
    # A view has no log under its own name: of those the coordinator's own figure is taken.
    yield GROUP_LAG, f"{joined} or {_max(catalogue.GROUP_LAG, 'group', 'topic', 'partition')}"
    yield GROUP_LAG_SUM, f"sum by (job, group) ({GROUP_LAG})"


def alerts() -> Iterator[Alert]:
    yield Alert(
        "PenstockBrokerDown",
        f"up{{{JOBS}}} == 0",
        "1m",
        "critical",
        "Broker {{ $labels.instance }} does not answer its scrapes",
        "See whether the process runs (systemctl status penstock) and what its log says last.",
    )
    yield Alert(
        "PenstockRestarts",
        f"changes({catalogue.PROCESS_START_TIME_SECONDS.exposed}{{{JOBS}}}[15m]) > 2",
        "0m",
        "warning",
        "Broker {{ $labels.instance }} has started {{ $value }} times within 15 minutes",
        "Its log says why it ended: journalctl -u penstock.",
    )
    yield from _replication_alerts()
    yield from _database_alerts()
    yield from _machine_alerts()
    yield from _work_alerts()


def _replication_alerts() -> Iterator[Alert]:
    yield Alert(
        "PenstockOfflinePartitions",
        f"{_max(catalogue.OFFLINE_PARTITIONS)} > 0",
        "1m",
        "critical",
        "{{ $value }} partitions of {{ $labels.job }} have no leader: they can be neither written nor read",
        "penstock topic describe --unavailable-partitions names them; bring back the brokers that were in sync.",
    )
    yield Alert(
        "PenstockUnderMinIsrPartitions",
        f"{_sum(catalogue.UNDER_MIN_ISR_PARTITIONS)} > 0",
        "1m",
        "critical",
        "{{ $value }} partitions of {{ $labels.job }} refuse acks=all: too few replicas are in sync",
        "penstock topic describe --under-replicated-partitions shows which replicas are missing.",
    )
    yield Alert(
        "PenstockUnderReplicatedPartitions",
        f"{_sum(catalogue.UNDER_REPLICATED_PARTITIONS)} > 0",
        "5m",
        "warning",
        "{{ $value }} partitions of {{ $labels.job }} have a replica that is not in sync",
        "penstock broker list shows who is away or silent; a slow disk or network shows as follower lag.",
    )
    yield Alert(
        "PenstockNoActiveController",
        f"{_sum(catalogue.ACTIVE_CONTROLLER)} == 0",
        "1m",
        "critical",
        "No broker of {{ $labels.job }} is the controller: dead leaders are not replaced",
        "See whether the brokers reach ZooKeeper, and whether ZooKeeper has a quorum.",
    )
    yield Alert(
        "PenstockSeveralControllers",
        f"{_sum(catalogue.ACTIVE_CONTROLLER)} > 1",
        "2m",
        "warning",
        "{{ $value }} brokers of {{ $labels.job }} say that they are the controller",
        "Two clusters may be scraped under one job name; otherwise a broker does not hear from ZooKeeper.",
    )
    yield Alert(
        "PenstockUncleanLeaderElection",
        f"{_increase(catalogue.UNCLEAN_LEADER_ELECTIONS, '10m')} > 0",
        "0m",
        "critical",
        "A replica of {{ $labels.job }} that was not in sync was made leader: acknowledged records may be lost",
        "It was asked for (unclean.leader.election.enable, or an election by hand). Compare with what producers sent.",
    )
    yield Alert(
        "PenstockIsrFlapping",
        f"{_increase(catalogue.ISR_SHRINKS, '15m')} > 10 and {_increase(catalogue.ISR_EXPANDS, '15m')} > 10",
        "15m",
        "warning",
        "Replicas of {{ $labels.job }} leave and join their in-sync sets again and again",
        "A broker is overloaded or its network is: see event loop lag, disk and follower lag.",
    )


def _database_alerts() -> Iterator[Alert]:
    yield Alert(
        "PenstockDatabaseServerDown",
        f"{_max(catalogue.DATABASE_SERVERS_UP, 'group', 'server', 'role')} == 0",
        "1m",
        "critical",
        "The server {{ $labels.server }}, {{ $labels.role }} of the database group {{ $labels.group }}, is down",
        "penstock dbnode test says why. Without its primary a group can be read only, from its replicas.",
    )
    yield Alert(
        "PenstockDatabaseReplicaBehind",
        f"{_max(catalogue.DATABASE_REPLICATION_LAG_SECONDS, 'group', 'server')} > 30",
        "0m",
        "warning",
        "The replica {{ $labels.server }} of the database group {{ $labels.group }} is {{ $value }} seconds behind",
        "What it lacks is lost if its primary is lost now: look at the replication in the database.",
    )
    yield Alert(
        "PenstockDatabaseLostRecords",
        f"{_increase(catalogue.DATABASE_LOST_RECORDS, '10m')} > 0",
        "0m",
        "critical",
        "A database of {{ $labels.job }} has lost records that were acknowledged",
        "The broker's log names partitions and offsets. Semi-synchronous replication avoids it (docs/sql.md).",
    )


def _machine_alerts() -> Iterator[Alert]:
    free, size = catalogue.DISK_FREE_BYTES.exposed, catalogue.DISK_SIZE_BYTES.exposed
    lag = catalogue.EVENT_LOOP_LAG_SECONDS.exposed
    yield Alert(
        "PenstockOfflineLogs",
        f"{catalogue.OFFLINE_LOGS.exposed} > 0",
        "0m",
        "critical",
        "{{ $value }} logs of broker {{ $labels.instance }} are offline because of the disk",
        "The broker's log says which and why at level critical. Repair the disk, then restart the broker.",
    )
    yield Alert(
        "PenstockEventLoopStalled",
        f"sum by (job, instance) (increase({lag}_count[5m])) - "
        f'sum by (job, instance) (increase({lag}_bucket{{le="{STALL_S}"}}[5m])) > 0.5',
        "0m",
        "warning",
        f"Broker {{{{ $labels.instance }}}} answered no request for more than {STALL_S} s, within the last 5 minutes",
        "Requests by API and their sizes show what was asked; CPU and swapping of the machine show the rest.",
    )
    yield Alert(
        "PenstockDiskLow",
        f"{free} / {size} < {DISK_LOW}",
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the disk of broker {{ $labels.instance }} are left",
        "Shorten retention of the largest topics, move partitions away (penstock broker drain), or add room.",
    )
    yield Alert(
        "PenstockDiskVeryLow",
        f"{free} / {size} < {DISK_VERY_LOW}",
        "1m",
        "critical",
        "{{ $value | humanizePercentage }} of the disk of broker {{ $labels.instance }} are left: producers fail soon",
        "Shorten retention now. Nothing acknowledged is lost on a full disk, but nothing more is taken.",
    )
    yield Alert(
        "PenstockDiskFullSoon",
        f"predict_linear({free}[6h], 86400) < 0",
        "1h",
        "warning",
        "The disk of broker {{ $labels.instance }} is full within a day at this rate",
        "See penstock_log_size_bytes for the topics that grow.",
    )
    yield Alert(
        "PenstockFileDescriptors",
        f"{catalogue.PROCESS_OPEN_FDS.exposed}{{{JOBS}}} / {catalogue.PROCESS_MAX_FDS.exposed}{{{JOBS}}} > {FDS_SHARE}",
        "5m",
        "warning",
        "Broker {{ $labels.instance }} uses {{ $value | humanizePercentage }} of its file descriptors",
        "Raise LimitNOFILE in the unit, or lower limits.connections and limits.open_files.",
    )


def _work_alerts() -> Iterator[Alert]:
    errors, requests = (_rate(family, "5m", "api") for family in (catalogue.REQUEST_ERRORS, catalogue.REQUESTS))
    yield Alert(
        "PenstockRequestsFailing",
        f"{errors} / {requests} > {ERROR_SHARE} and {errors} > 0.1",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the {{ $labels.api }} requests to {{ $labels.job }} fail",
        "Clients log the error code; see the other alerts first, most of them make requests fail.",
    )
    yield Alert(
        "PenstockConsumerLagGrowing",
        f"{GROUP_LAG_SUM} > {LAG_RECORDS} and delta({GROUP_LAG_SUM}[15m]) > 0",
        "15m",
        "warning",
        "Group {{ $labels.group }} is {{ $value }} records behind, and the distance grows",
        "penstock group describe GROUP: has it members, is it paused, does one partition lag more than the others?",
    )
    lateness = f"{catalogue.DELAYED_LATENESS_SECONDS.exposed}_bucket"
    overdue = catalogue.DELAYED_OVERDUE_SECONDS.exposed
    yield Alert(
        "PenstockDelayedMessagesLate",
        f"{overdue} > {OVERDUE_S} or "
        f"histogram_quantile(0.99, sum by (job, instance, le) (rate({lateness}[5m]))) > {LATENESS_S}",
        "1m",
        "warning",
        "Delayed messages of broker {{ $labels.instance }} are {{ $value }} s late",
        "`cannot deliver delayed messages` in the broker's log says why; else the disk or the event loop is too slow.",
    )
    yield Alert(
        "PenstockDelayedMessagesDamaged",
        f"{_increase(catalogue.DELAYED_DAMAGED, '1h', 'instance')} > 0",
        "0m",
        "critical",
        "Delayed messages of broker {{ $labels.instance }} were damaged on disk and not delivered",
        "The broker's log names the partition and the due time.",
    )
    behind = _max(catalogue.ARCHIVE_LAG_RECORDS, "topic", "partition")
    yield Alert(
        "PenstockArchiveBehind",
        f"{behind} > {ARCHIVE_LAG_RECORDS} and "
        f"max by (job, topic, partition) (delta({catalogue.ARCHIVE_LAG_RECORDS.exposed}[1h])) > 0",
        "30m",
        "warning",
        "The archive of {{ $labels.topic }}-{{ $labels.partition }} is {{ $value }} records behind and falls back",
        "See whether the archiver runs (penstock pipeline). Its topic keeps what is not archived, so its disk fills.",
    )
    yield Alert(
        "PenstockArchiveLost",
        f"{_increase(catalogue.ARCHIVE_LOST_BYTES, '10m', 'instance')} > 0",
        "0m",
        "critical",
        "Retention of broker {{ $labels.instance }} deleted records that no archive has",
        "penstock.archive.max.bytes or .max.ms of the topic was reached: "
        "`retention deleted records that were not archived`.",
    )
    yield Alert(
        "PenstockTransactionsHanging",
        f"{catalogue.TRANSACTIONS_OLDEST_OPEN_SECONDS.exposed} > {OPEN_TRANSACTION_S}",
        "1m",
        "warning",
        "A transaction at broker {{ $labels.instance }} has been open for {{ $value | humanizeDuration }}",
        "It holds back read_committed consumers. docs/operations.md, Transactions that do not end.",
    )
    yield Alert(
        "PenstockTransactionMarkersPending",
        f"min_over_time({catalogue.TRANSACTION_MARKERS_PENDING.exposed}[5m]) > 0",
        "1m",
        "warning",
        "{{ $value }} markers of decided transactions at broker {{ $labels.instance }} cannot be written",
        "`marker not written yet` in the broker's log names the partitions: they are offline or out of sync.",
    )


def render() -> str:
    """YAML; every text is quoted as JSON quotes it, which YAML reads."""
    lines = ["# Written by make generated-files from deploy/alert_rules.py: change it there.", "groups:"]
    lines += ["  - name: penstock-recordings", "    rules:"]
    for name, expression in recordings():
        lines += [f"      - record: {name}", f"        expr: {_quoted(expression)}"]
    lines += ["  - name: penstock-alerts", "    rules:"]
    for alert in alerts():
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expression)}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          description: {_quoted(alert.action)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
