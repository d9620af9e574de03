"""Every metric that a broker shows: its name, type, labels, unit and meaning, in one place.

The exposition is made from these definitions. `make generated-files` writes `docs/reference/metrics.md`, the Grafana
dashboard and the alert rules in `deploy/` from them. Rules for names are Prometheus': a unit at the end (`_seconds`,
`_bytes`), `_total` for counters (added by the exposition), no unit for plain counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Prometheus' names of the types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(StrEnum):
    """What a value counts."""

    NONE = "none"
    BYTES = "bytes"
    SECONDS = "seconds"
    RECORDS = "records"
    TIMESTAMP = "timestamp"


class Area(StrEnum):
    """What a metric is about: a section of the table and a row of the dashboard."""

    REQUESTS = "Requests and connections"
    REPLICATION = "Replication and cluster"
    LOGS = "Logs and disk"
    GROUPS = "Consumer groups"
    TRANSACTIONS = "Transactions"
    DELAY = "Delayed messages"
    VIEWS = "Views and archive"
    PROCESS = "Process"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; `name` is without the `_total` of counters."""

    name: str
    kind: MetricKind
    area: Area
    documentation: str
    labels: tuple[str, ...] = ()
    unit: Unit = Unit.NONE

    @property
    def exposed(self) -> str:
        """The name that a scrape shows."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


_PARTITION = ("topic", "partition")

REQUESTS = Family(
    "penstock_requests",
    MetricKind.COUNTER,
    Area.REQUESTS,
    "Requests answered; a long-polling fetch counts once.",
    ("api",),
)
REQUEST_ERRORS = Family(
    "penstock_request_errors", MetricKind.COUNTER, Area.REQUESTS, "Requests answered with an error code.", ("api",)
)
REQUEST_SECONDS = Family(
    "penstock_request_seconds",
    MetricKind.HISTOGRAM,
    Area.REQUESTS,
    "Time from a whole request to its answer, the wait of a long-polling fetch included.",
    ("api",),
    Unit.SECONDS,
)
REQUEST_BYTES = Family(
    "penstock_request_bytes", MetricKind.COUNTER, Area.REQUESTS, "Bytes of requests.", ("api",), Unit.BYTES
)
RESPONSE_BYTES = Family(
    "penstock_response_bytes", MetricKind.COUNTER, Area.REQUESTS, "Bytes of answers.", ("api",), Unit.BYTES
)
CONNECTIONS = Family("penstock_connections", MetricKind.GAUGE, Area.REQUESTS, "Client connections open.")
CONNECTIONS_ACCEPTED = Family(
    "penstock_connections_accepted", MetricKind.COUNTER, Area.REQUESTS, "Client connections accepted."
)
CONNECTIONS_REFUSED = Family(
    "penstock_connections_refused", MetricKind.COUNTER, Area.REQUESTS, "Client connections closed because of a limit."
)
CONNECTIONS_MUTED = Family(
    "penstock_connections_muted",
    MetricKind.GAUGE,
    Area.REQUESTS,
    "Client connections that the broker does not read from because a quota is used up.",
)
CONNECTIONS_HELD = Family(
    "penstock_connections_held",
    MetricKind.GAUGE,
    Area.REQUESTS,
    "Client connections accepted and not served yet, because too many came from their address.",
)
THROTTLED_REQUESTS = Family(
    "penstock_throttled_requests",
    MetricKind.COUNTER,
    Area.REQUESTS,
    "Requests after which a client was throttled, by the quota that it had used up.",
    ("quota",),
)
THROTTLE_SECONDS = Family(
    "penstock_throttle_seconds",
    MetricKind.COUNTER,
    Area.REQUESTS,
    "Time for which clients were throttled, by the quota that they had used up.",
    ("quota",),
    Unit.SECONDS,
)
AUTHORIZATION_DENIED = Family(
    "penstock_authorization_denied",
    MetricKind.COUNTER,
    Area.REQUESTS,
    "Operations that the broker denied to callers.",
    ("operation", "resource"),
)
LOGINS = Family(
    "penstock_logins",
    MetricKind.COUNTER,
    Area.REQUESTS,
    "Logins on SASL listeners, renewed ones included.",
    ("mechanism", "result"),
)
SESSIONS_EXPIRED = Family(
    "penstock_sessions_expired",
    MetricKind.COUNTER,
    Area.REQUESTS,
    "Connections closed because their client went on without logging in again.",
)
REQUEST_BYTES_HELD = Family(
    "penstock_request_bytes_held",
    MetricKind.GAUGE,
    Area.REQUESTS,
    "Memory held by large requests that are not answered yet.",
    (),
    Unit.BYTES,
)
FOLLOWER_SESSIONS = Family(
    "penstock_follower_sessions", MetricKind.GAUGE, Area.REPLICATION, "Brokers that fetch from this one as followers."
)
PARKED_FETCHES = Family("penstock_parked_fetches", MetricKind.GAUGE, Area.REQUESTS, "Fetches that wait for data.")

ACTIVE_CONTROLLER = Family(
    "penstock_active_controller",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "1 on the broker that is the controller, 0 on the others: the sum over a cluster is 1.",
)
BROKERS = Family(
    "penstock_brokers",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Brokers of the cluster, by state (alive, away), as this broker knows them.",
    ("state",),
)
TOPICS = Family("penstock_topics", MetricKind.GAUGE, Area.REPLICATION, "Topics of the cluster, internal ones included.")
PARTITIONS = Family(
    "penstock_partitions", MetricKind.GAUGE, Area.REPLICATION, "Partitions with a replica on this broker."
)
LEADER_PARTITIONS = Family(
    "penstock_leader_partitions", MetricKind.GAUGE, Area.REPLICATION, "Partitions that this broker leads."
)
OFFLINE_PARTITIONS = Family(
    "penstock_offline_partitions",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Partitions of the cluster without a leader. Every broker tells what it knows of the whole cluster: take the max.",
)
UNDER_REPLICATED_PARTITIONS = Family(
    "penstock_under_replicated_partitions",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Partitions led by this broker with a replica that is not in sync.",
)
UNDER_MIN_ISR_PARTITIONS = Family(
    "penstock_under_min_isr_partitions",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Partitions led by this broker with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
)
PREFERRED_REPLICA_IMBALANCE = Family(
    "penstock_preferred_replica_imbalance",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Partitions of the cluster that are not led by their preferred replica. Take the max over brokers.",
)
REASSIGNING_PARTITIONS = Family(
    "penstock_reassigning_partitions",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Partitions of the cluster whose replicas are being moved. Take the max over brokers.",
)
FOLLOWER_LAG_RECORDS = Family(
    "penstock_follower_lag_records",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Records that a follower does not have yet, over all partitions that this broker leads. A follower that is not in "
    "sync and has not fetched from this leader counts as having nothing.",
    ("follower",),
    Unit.RECORDS,
)
FOLLOWER_LAG_MAX_RECORDS = Family(
    "penstock_follower_lag_max_records",
    MetricKind.GAUGE,
    Area.REPLICATION,
    "Records that a follower does not have yet of the one partition that lags most.",
    ("follower",),
    Unit.RECORDS,
)
ISR_SHRINKS = Family(
    "penstock_isr_shrinks",
    MetricKind.COUNTER,
    Area.REPLICATION,
    "Times that a replica left a partition's in-sync set. Counted by the broker that committed it: take the sum.",
)
ISR_EXPANDS = Family(
    "penstock_isr_expands",
    MetricKind.COUNTER,
    Area.REPLICATION,
    "Times that a replica joined a partition's in-sync set. Counted by the broker that committed it: take the sum.",
)
LEADER_ELECTIONS = Family(
    "penstock_leader_elections",
    MetricKind.COUNTER,
    Area.REPLICATION,
    "Times that a partition got another leader. Counted by the broker that committed it: take the sum.",
)
UNCLEAN_LEADER_ELECTIONS = Family(
    "penstock_unclean_leader_elections",
    MetricKind.COUNTER,
    Area.REPLICATION,
    "Elections of a leader that was not in sync: acknowledged records may be lost.",
)

LOG_SIZE_BYTES = Family(
    "penstock_log_size_bytes", MetricKind.GAUGE, Area.LOGS, "Bytes of a partition on disk.", _PARTITION, Unit.BYTES
)
LOG_START_OFFSET = Family(
    "penstock_log_start_offset", MetricKind.GAUGE, Area.LOGS, "Lowest offset of a partition.", _PARTITION
)
LOG_END_OFFSET = Family(
    "penstock_log_end_offset", MetricKind.GAUGE, Area.LOGS, "Next offset of a partition.", _PARTITION
)
PARTITIONS_LEFT_OUT = Family(
    "penstock_partitions_left_out",
    MetricKind.GAUGE,
    Area.LOGS,
    "Partitions here that have no series of their own because of limits.partition_series.",
)
DAMAGED_RANGES = Family(
    "penstock_damaged_ranges", MetricKind.GAUGE, Area.LOGS, "Parts of logs that are known to be damaged."
)
DAMAGE_REPAIRED = Family(
    "penstock_damage_repaired",
    MetricKind.COUNTER,
    Area.LOGS,
    "Damaged parts of logs that were replaced by those of another replica.",
)
STATE_LOST_RANGES = Family(
    "penstock_state_lost_ranges",
    MetricKind.GAUGE,
    Area.LOGS,
    "Damaged parts of an internal topic that its coordinator does without, since the broker started: look at the log.",
    ("topic",),
)
OFFLINE_LOGS = Family(
    "penstock_offline_logs",
    MetricKind.GAUGE,
    Area.LOGS,
    "Partitions of this broker whose log cannot be opened or written because of the disk.",
)
DATABASE_LOST_RECORDS = Family(
    "penstock_database_lost_records",
    MetricKind.COUNTER,
    Area.LOGS,
    "Records that a database had lost when this broker took partitions over: their offsets are gaps.",
    (),
    Unit.RECORDS,
)
DATABASE_SERVERS_UP = Family(
    "penstock_database_server_up",
    MetricKind.GAUGE,
    Area.LOGS,
    "Whether a server of a database group answers this broker: 1 or 0.",
    ("group", "server", "role"),
)
DATABASE_REPLICATION_LAG_SECONDS = Family(
    "penstock_database_replication_lag_seconds",
    MetricKind.GAUGE,
    Area.LOGS,
    "How far a replica of a database group is behind its primary; it grows while the primary is down.",
    ("group", "server"),
    Unit.SECONDS,
)
OPEN_FILES = Family("penstock_open_files", MetricKind.GAUGE, Area.LOGS, "Segment files open.")
UNWRITTEN_BYTES = Family(
    "penstock_unwritten_bytes",
    MetricKind.GAUGE,
    Area.LOGS,
    "Bytes appended and not handed to the disk, or stored in the database, yet.",
    (),
    Unit.BYTES,
)
DISK_FREE_BYTES = Family(
    "penstock_disk_free_bytes",
    MetricKind.GAUGE,
    Area.LOGS,
    "Bytes that the broker can still write on the file system of its data folder.",
    (),
    Unit.BYTES,
)
DISK_SIZE_BYTES = Family(
    "penstock_disk_size_bytes", MetricKind.GAUGE, Area.LOGS, "Size of the data folder's file system.", (), Unit.BYTES
)

GROUPS = Family(
    "penstock_groups", MetricKind.GAUGE, Area.GROUPS, "Groups that this broker coordinates.", ("type", "state")
)
GROUP_MEMBERS = Family("penstock_group_members", MetricKind.GAUGE, Area.GROUPS, "Members of those groups.")
GROUPS_PAUSED = Family(
    "penstock_groups_paused", MetricKind.GAUGE, Area.GROUPS, "Groups of the cluster that are paused, wholly or in part."
)
GROUP_LAG = Family(
    "penstock_group_lag",
    MetricKind.GAUGE,
    Area.GROUPS,
    "Offsets between what a group has committed and the end of the partition, for partitions with a replica on the "
    "group's coordinator, at most groups.lag_series. The recording rule penstock:group_lag:records has all of them.",
    ("group", *_PARTITION),
    Unit.RECORDS,
)
GROUP_COMMITTED_OFFSET = Family(
    "penstock_group_committed_offset",
    MetricKind.GAUGE,
    Area.GROUPS,
    "Offset that a group has committed, at most groups.lag_series.",
    ("group", *_PARTITION),
)
GROUP_LAG_LEFT_OUT = Family(
    "penstock_group_lag_left_out",
    MetricKind.GAUGE,
    Area.GROUPS,
    "Committed offsets that are not shown because of groups.lag_series.",
)
GROUP_SHARDS_LOADING = Family(
    "penstock_group_shards_loading",
    MetricKind.GAUGE,
    Area.GROUPS,
    "Partitions of __consumer_offsets that are being read.",
)
GROUP_REBALANCES = Family(
    "penstock_group_rebalances", MetricKind.COUNTER, Area.GROUPS, "Assignments that were completed."
)
GROUP_MEMBERS_EXPIRED = Family(
    "penstock_group_members_expired",
    MetricKind.COUNTER,
    Area.GROUPS,
    "Members not heard from within their session timeout.",
)
GROUP_MEMBERS_FENCED = Family(
    "penstock_group_members_fenced", MetricKind.COUNTER, Area.GROUPS, "Members put out by a reset of offsets."
)
OFFSET_COMMITS = Family("penstock_offset_commits", MetricKind.COUNTER, Area.GROUPS, "Offsets committed.")

TRANSACTIONAL_IDS = Family(
    "penstock_transactional_ids", MetricKind.GAUGE, Area.TRANSACTIONS, "Transactional ids that this broker coordinates."
)
TRANSACTIONS_OPEN = Family(
    "penstock_transactions_open",
    MetricKind.GAUGE,
    Area.TRANSACTIONS,
    "Transactions that have begun and are not decided.",
)
TRANSACTIONS_OLDEST_OPEN_SECONDS = Family(
    "penstock_transactions_oldest_open_seconds",
    MetricKind.GAUGE,
    Area.TRANSACTIONS,
    "Age of the oldest open transaction; 0 if there is none.",
    (),
    Unit.SECONDS,
)
TRANSACTION_MARKERS_PENDING = Family(
    "penstock_transaction_markers_pending",
    MetricKind.GAUGE,
    Area.TRANSACTIONS,
    "Markers of decided transactions that are not written yet: read_committed consumers wait for them.",
)
TRANSACTIONS_COMMITTED = Family(
    "penstock_transactions_committed", MetricKind.COUNTER, Area.TRANSACTIONS, "Transactions committed."
)
TRANSACTIONS_ABORTED = Family(
    "penstock_transactions_aborted", MetricKind.COUNTER, Area.TRANSACTIONS, "Transactions aborted, for whatever reason."
)
TRANSACTIONS_TIMED_OUT = Family(
    "penstock_transactions_timed_out",
    MetricKind.COUNTER,
    Area.TRANSACTIONS,
    "Transactions that the broker aborted because transaction.timeout.ms had passed.",
)

DELAYED_PENDING = Family(
    "penstock_delayed_pending",
    MetricKind.GAUGE,
    Area.DELAY,
    "Delayed messages that wait in a partition led here.",
    _PARTITION,
)
DELAYED_DELIVERED = Family("penstock_delayed_delivered", MetricKind.COUNTER, Area.DELAY, "Delayed messages delivered.")
DELAYED_DAMAGED = Family(
    "penstock_delayed_damaged",
    MetricKind.COUNTER,
    Area.DELAY,
    "Delayed messages not delivered because they were damaged.",
)
DELAYED_MARK_RESETS = Family(
    "penstock_delayed_mark_resets",
    MetricKind.COUNTER,
    Area.DELAY,
    "Times that delayed messages of a partition had been delivered ahead of this broker's clock.",
)
CLOCK_SET_AHEAD = Family(
    "penstock_clock_set_ahead",
    MetricKind.COUNTER,
    Area.DELAY,
    "Times that the wall clock was set ahead by a second or more.",
)
CLOCK_SET_BACK = Family(
    "penstock_clock_set_back",
    MetricKind.COUNTER,
    Area.DELAY,
    "Times that the wall clock was set back by a second or more.",
)
DELAYED_LATENESS_SECONDS = Family(
    "penstock_delayed_lateness_seconds",
    MetricKind.HISTOGRAM,
    Area.DELAY,
    "Time from the due time of a message to its delivery.",
    (),
    Unit.SECONDS,
)
DELAYED_OVERDUE_SECONDS = Family(
    "penstock_delayed_overdue_seconds",
    MetricKind.GAUGE,
    Area.DELAY,
    "How long ago the oldest message was due that is not delivered yet; 0 if none is overdue.",
    (),
    Unit.SECONDS,
)
COMPANION_SIZE_BYTES = Family(
    "penstock_companion_size_bytes",
    MetricKind.GAUGE,
    Area.DELAY,
    "Bytes of the log beside a partition in which its delayed messages wait.",
    _PARTITION,
    Unit.BYTES,
)

VIEW_LOOKED_AT_BYTES = Family(
    "penstock_view_looked_at_bytes", MetricKind.COUNTER, Area.VIEWS, "Bytes read and decoded for views.", (), Unit.BYTES
)
VIEW_SHOWN_BYTES = Family(
    "penstock_view_shown_bytes", MetricKind.COUNTER, Area.VIEWS, "Bytes that views showed.", (), Unit.BYTES
)
ARCHIVE_LAG_RECORDS = Family(
    "penstock_archive_lag_records",
    MetricKind.GAUGE,
    Area.VIEWS,
    "Records of a partition led here that its archive did not have at the last retention check.",
    _PARTITION,
    Unit.RECORDS,
)
ARCHIVE_LOST_BYTES = Family(
    "penstock_archive_lost_bytes",
    MetricKind.COUNTER,
    Area.VIEWS,
    "Bytes deleted by retention that no archive has.",
    (),
    Unit.BYTES,
)

BUILD_INFO = Family(
    "penstock_build_info", MetricKind.GAUGE, Area.PROCESS, "Always 1; the labels say what runs.", ("version", "python")
)
EVENT_LOOP_LAG_SECONDS = Family(
    "penstock_event_loop_lag_seconds",
    MetricKind.HISTOGRAM,
    Area.PROCESS,
    "How late the event loop ran a timer that is set every 50 ms: as long as that, no client was served.",
    (),
    Unit.SECONDS,
)
EVENT_LOOP_BUSY_SECONDS = Family(
    "penstock_event_loop_busy_seconds",
    MetricKind.HISTOGRAM,
    Area.PROCESS,
    "CPU time that the event loop used between two turns of that timer: above 0.3, a request made the others wait.",
    (),
    Unit.SECONDS,
)
PROCESS_START_TIME_SECONDS = Family(
    "process_start_time_seconds",
    MetricKind.GAUGE,
    Area.PROCESS,
    "Start of the process, in seconds since 1970.",
    (),
    Unit.TIMESTAMP,
)
PROCESS_CPU_SECONDS = Family(
    "process_cpu_seconds", MetricKind.COUNTER, Area.PROCESS, "CPU time, user and system.", (), Unit.SECONDS
)
PROCESS_RESIDENT_MEMORY_BYTES = Family(
    "process_resident_memory_bytes", MetricKind.GAUGE, Area.PROCESS, "Memory in RAM.", (), Unit.BYTES
)
PROCESS_VIRTUAL_MEMORY_BYTES = Family(
    "process_virtual_memory_bytes", MetricKind.GAUGE, Area.PROCESS, "Address space.", (), Unit.BYTES
)
PROCESS_OPEN_FDS = Family("process_open_fds", MetricKind.GAUGE, Area.PROCESS, "File descriptors open.")
PROCESS_MAX_FDS = Family("process_max_fds", MetricKind.GAUGE, Area.PROCESS, "File descriptors that may be open.")

FAMILIES: tuple[Family, ...] = tuple(found for found in tuple(globals().values()) if isinstance(found, Family))
