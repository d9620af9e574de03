"""What can be set for the console, with the bound of everything that grows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config.database_address import DatabaseAddress
from penstock.console.security.roles import Role
from penstock.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9095
_SENDER = "penstock@localhost"
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One cluster that the console manages."""

    name: str
    bootstrap: str
    client_settings: Mapping[str, str] = field(default_factory=dict)
    """librdkafka's settings: TLS, SASL."""
    lake: str = ""
    """Where `penstock pipeline archive` keeps its topics: a folder or a URL; empty: nowhere."""

    def __post_init__(self) -> None:
        if not _CLUSTER_NAME.fullmatch(self.name):
            raise ConfigError(
                f"the name of a cluster is up to 64 letters, digits, dots, dashes and underscores, not {self.name!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingSettings:
    """How often the console polls brokers, and how much at once, whatever the number of viewers."""

    interval_ms: int = 5_000
    """Between the ends of one round and the next one's start."""
    offsets_per_round: int = 20_000
    """Partitions whose end a round reads; the others follow in the next rounds."""
    groups_per_round: int = 100
    """Groups whose members and offsets a round reads; the others follow in the next rounds."""
    starts_every_rounds: int = 12
    """The first offsets, disks and database groups change slowly: the poller reads them every so many rounds."""
    databases_every_rounds: int = 3
    timer_topics_per_round: int = 10
    """Topics in which late messages are looked for in a round, if an alert rule watches them; the others follow."""
    timeout_s: float = 15.0
    threads: int = 8
    """Calls to one cluster at the same time, those of operators included."""
    detail_ttl_ms: int = 2_000
    """The console reads a detail at most this often, however many viewers open it."""
    max_details: int = 1_000
    """Details that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """How much history is kept, in memory for live charts and in the database for days."""

    recent_points: int = 180
    """Points of each series in memory."""
    fine_every_ms: int = 30_000
    fine_keep_ms: int = 6 * 3_600_000
    coarse_every_ms: int = 600_000
    coarse_keep_ms: int = 14 * 24 * 3_600_000
    max_series: int = 5_000
    """Series of a cluster; the busiest come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Sessions, logins, sizes."""

    session_idle_ms: int = 8 * 3_600_000
    session_max_ms: int = 24 * 3_600_000
    max_sessions_per_user: int = 20
    max_tokens_per_user: int = 50
    login_attempts: int = 5
    """Failed logins of one user or one address before they have to wait."""
    login_window_ms: int = 300_000
    max_tracked_logins: int = 10_000
    max_body_bytes: int = 4 << 20
    is_secure_cookie: bool = False
    """Only over HTTPS; told by --https, and by a public origin that begins with https."""
    hosts: tuple[str, ...] = ()
    """Names under which the console may be reached besides its own address; protects from DNS rebinding."""
    origins: tuple[str, ...] = ()
    """Origins of pages that may use the console besides its own, such as that of a proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSettings:
    """How much of topics a viewer may read at once."""

    page_size: int = 500
    page_bytes: int = 8 << 20
    """Bytes of keys, values and headers in one page."""
    shown_bytes: int = 256 << 10
    """A longer value is cut in lists; a single message is shown whole up to `page_bytes`."""
    read_timeout_ms: int = 10_000
    search_records: int = 5_000_000
    search_hits: int = 1_000
    search_ms: int = 300_000
    searches_per_user: int = 3
    searches: int = 20
    tail_rate: int = 50
    """Messages a second to one viewer; the rest is counted and left out."""
    tails: int = 50
    tail_ms: int = 3_600_000
    download_records: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The lake, and pipeline work in processes of their own."""

    lake_ttl_ms: int = 5_000
    """A lake is looked at at most this often, however many viewers there are."""
    search_batch_rows: int = 5_000
    """Records of a lake that a search has in memory at a time."""
    jobs: int = 1
    """Jobs at the same time: each has a Spark of its own."""
    jobs_waiting: int = 20
    jobs_kept: int = 50
    """Ended jobs whose results are kept."""
    job_ms: int = 15 * 60_000
    """A job that takes longer is killed."""
    watch_ms: int = 12 * 3_600_000
    """The same for a report that repeats."""
    stop_ms: int = 5_000
    """From being told to stop until being killed."""
    result_bytes: int = 8 << 20
    result_rows: int = 1_000
    scratch_bytes: int = 4 << 30
    """Spark's temporary files; a job that needs more is killed."""
    log_bytes: int = 64 << 10
    """Of a job's log, its end."""
    memory: str = "1g"
    """Of the Java process of a job."""
    master: str = "local[2]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long the console keeps its own history; cleaning jobs remove what is older."""

    audit_ms: int = 365 * 24 * 3_600_000
    audit_rows: int = 5_000_000
    alert_events_ms: int = 90 * 24 * 3_600_000
    job_runs: int = 100
    """Of each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSettings:
    """The server that alerts are mailed through."""

    host: str = ""
    port: int = 25
    sender: str = _SENDER
    user: str = ""
    password: str = field(default="", repr=False)
    is_tls: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> MailSettings:
        """From names and values as people write them; none: nothing is mailed."""
        if unknown := set(given) - {"host", "port", "sender", "user", "password", "tls"}:
            raise ConfigError(f"the mail server has no setting {min(unknown)!r}")
        if given and not given.get("host"):
            raise ConfigError("the mail server needs its host, such as host=smtp.example")
        port, tls = given.get("port", "25"), given.get("tls", "false")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"{port!r} is not the port of a mail server")
        if tls not in ("true", "false"):
            raise ConfigError(f"tls of the mail server is true or false, not {tls!r}")
        return cls(
            host=given.get("host", ""),
            port=int(port),
            sender=given.get("sender", _SENDER),
            user=given.get("user", ""),
            password=given.get("password", ""),
            is_tls=tls == "true",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """A provider of identities (OpenID Connect) through which users of the console may sign in."""

    issuer: str
    client_id: str
    roles: Mapping[str, Role]
    """What a value of `role_claim` gives; `*` is for everyone whom the provider lets in."""
    client_secret: str = field(default="", repr=False)
    """Empty for a public client, which PKCE alone protects."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    name_claim: str = "preferred_username"
    role_claim: str = "groups"
    """The name of a claim, or a path into one: `realm_access.roles`."""
    label: str = "single sign-on"
    takes_passwords: bool = True
    """Whether users of the console may sign in with a password too."""
    ends_provider_session: bool = False
    """Whether who signs out is signed out at the provider too."""
    timeout_s: float = 10.0
    attempt_ms: int = 600_000
    """How long a login may stay at the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Everything that can be set."""

    clusters: tuple[ClusterSettings, ...]
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    data: Path = Path("data/console")
    """The folder of the SQLite database, if no other database is named."""
    database: str = ""
    """The address of another database, with its password."""
    polling: PollingSettings = PollingSettings()
    samples: SampleSettings = SampleSettings()
    security: SecuritySettings = SecuritySettings()
    messages: MessageSettings = MessageSettings()
    pipeline: PipelineSettings = PipelineSettings()
    retention: RetentionSettings = RetentionSettings()
    mail: MailSettings = MailSettings()
    oidc: OidcSettings | None = None

    def __post_init__(self) -> None:
        names = [cluster.name for cluster in self.clusters]
        if len(set(names)) != len(names):
            raise ConfigError(f"two clusters have the same name: {', '.join(names)}")
        if not names:
            raise ConfigError("the console needs a cluster: --cluster NAME=HOST:PORT")

    @property
    def database_address(self) -> DatabaseAddress:
        if self.database:
            return DatabaseAddress.parse(self.database)
        return DatabaseAddress.parse(f"sqlite:///{(self.data / 'console.db').absolute()}")
