"""Assembles the console: its database, its clusters with their pollers, and all operations."""

from __future__ import annotations

import secrets
from functools import partial

from penstock.clock import Clock, SystemClock
from penstock.console.alerts.alert_engine import AlertEngine
from penstock.console.cleaning.cleaning_jobs import cleaning_jobs
from penstock.console.cleaning.jobs import Jobs
from penstock.console.oidc.provider import Provider
from penstock.console.operations.account import AccountOperations
from penstock.console.operations.acls import AclOperations
from penstock.console.operations.alerts import AlertOperations
from penstock.console.operations.audit import AuditOperations
from penstock.console.operations.brokers import BrokerOperations, DatabaseOperations
from penstock.console.operations.cluster_users import ClusterUserOperations
from penstock.console.operations.clusters import ClusterOperations, Clusters, ManagedCluster
from penstock.console.operations.dead_letters import DeadLetterOperations
from penstock.console.operations.groups import GroupOperations
from penstock.console.operations.jobs import JobOperations
from penstock.console.operations.lake import LakeOperations
from penstock.console.operations.messages import MessageOperations
from penstock.console.operations.operation import Service
from penstock.console.operations.pipeline import PipelineOperations
from penstock.console.operations.quotas import QuotaOperations
from penstock.console.operations.schemas import SchemaOperations
from penstock.console.operations.timers import TimerOperations
from penstock.console.operations.topics import TopicOperations
from penstock.console.operations.transactions import TransactionOperations
from penstock.console.operations.users import UserOperations
from penstock.console.pipeline.jobs import PipelineJobs
from penstock.console.pipeline.lake_view import LakeView
from penstock.console.polling.cluster_link import ClusterLink
from penstock.console.polling.poller import Poller
from penstock.console.polling.samples import Samples
from penstock.console.schemas.topic_schemas import TopicSchemas
from penstock.console.security.login_limits import LoginLimits
from penstock.console.security.masking import MaskingRules
from penstock.console.settings import ClusterSettings, ConsoleSettings
from penstock.console.state.audit import AuditLog
from penstock.console.state.rules import EventStore, RuleStore
from penstock.console.state.sessions import Sessions, digest
from penstock.console.state.tables import COMPONENT, VALUES
from penstock.console.state.users import Passwords, Users
from penstock.sql.database import Connection, Database
from penstock.sql.migrations import migrate


class Console:
    """Everything that the API and the pages use. `start` before the first request, `close` after the last."""

    def __init__(self, settings: ConsoleSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.database = Database.unconnected(settings.database_address, clock=self.clock)
        self.audit = AuditLog(self.database, self.clock)
        self.passwords = Passwords()
        self.users = Users(self.database, self.clock, self.passwords)
        self.sessions = Sessions(self.database, self.clock, self.users, settings.security)
        self.login_limits = LoginLimits(settings.security, self.clock)
        self.rules = RuleStore(self.database, self.clock)
        self.events = EventStore(self.database, self.clock)
        self.masking = MaskingRules(self.rules, self.clock)
        self.clusters = Clusters({each.name: self._managed(each) for each in settings.clusters})
        self.account = AccountOperations(self.audit, self.users, self.sessions, self.login_limits)
        self.alert_engine = AlertEngine(self.rules, self.events, settings.mail, self.clock)
        self.cluster = ClusterOperations(self.audit, self.clusters, self.alert_engine.findings)
        self.audit_log = AuditOperations(self.audit)
        self.users_and_rules = UserOperations(self.audit, self.users, self.sessions, self.masking)
        self.topics = TopicOperations(self.audit, self.clusters)
        self.groups = GroupOperations(self.audit, self.clusters)
        self.topic_schemas = TopicSchemas(self.rules, self.clock)
        self.schemas = SchemaOperations(self.audit, self.clusters, self.topic_schemas)
        self.messages = MessageOperations(
            self.audit,
            self.clusters,
            self.masking,
            self.topic_schemas,
            settings.messages,
            self.clock,
            settings.pipeline.search_batch_rows,
            self.sessions.current,
        )
        self.timers = TimerOperations(self.audit, self.clusters, self.masking, settings.messages, self.clock)
        self.dead_letters = DeadLetterOperations(
            self.audit, self.clusters, self.masking, self.topic_schemas, settings.messages
        )
        self.transactions = TransactionOperations(self.audit, self.clusters)
        self.brokers = BrokerOperations(self.audit, self.clusters)
        self.databases = DatabaseOperations(self.audit, self.clusters)
        self.cluster_users = ClusterUserOperations(self.audit, self.clusters)
        self.acls = AclOperations(self.audit, self.clusters)
        self.quotas = QuotaOperations(self.audit, self.clusters)
        self.lake = LakeOperations(self.audit, self.clusters)
        self.pipeline_jobs = PipelineJobs(settings.data / "pipeline", settings.pipeline, self.clock)
        self.pipeline = PipelineOperations(
            self.audit, self.clusters, self.masking, self.pipeline_jobs, settings.pipeline
        )
        self.alerts = AlertOperations(self.audit, self.clusters, self.rules, self.events, self.alert_engine, self.clock)
        for managed in self.clusters.all():
            managed.poller.watch_timers(partial(self.alert_engine.timer_prefixes, managed.link.name))
            managed.poller.on_snapshot(managed.samples.take)
            managed.poller.on_snapshot(self.alert_engine.take)
        definitions = cleaning_jobs(
            self.database,
            self.audit,
            self.sessions,
            self.events,
            self.clusters,
            self.topic_schemas,
            self.rules,
            settings.retention,
            settings.samples,
            self.clock,
        )
        self.jobs = Jobs(definitions, self.rules, self.events, settings.retention.job_runs, self.clock)
        self.job_operations = JobOperations(self.audit, self.jobs)
        self.provider = None if settings.oidc is None else Provider(settings.oidc, self.clock)
        """Through which users may sign in."""
        self._one_time_hash: str | None = None

    @property
    def services(self) -> tuple[Service, ...]:
        """All sets of operations."""
        return (
            self.account,
            self.cluster,
            self.topics,
            self.messages,
            self.schemas,
            self.groups,
            self.timers,
            self.dead_letters,
            self.transactions,
            self.brokers,
            self.databases,
            self.cluster_users,
            self.acls,
            self.quotas,
            self.lake,
            self.pipeline,
            self.users_and_rules,
            self.audit_log,
            self.alerts,
            self.job_operations,
        )

    async def start(self) -> None:
        if not self.settings.database:
            self.settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        await migrate(self.database, COMPONENT)
        await self.users.ensure_first()
        for managed in self.clusters.all():
            managed.poller.start()
        self.jobs.start()

    @property
    def takes_passwords(self) -> bool:
        return self.settings.oidc is None or self.settings.oidc.takes_passwords

    async def close(self) -> None:
        if self.provider is not None:
            await self.provider.close()
        self.messages.close()
        await self.pipeline_jobs.close()
        for managed in self.clusters.all():
            await managed.poller.close()
            managed.link.close()
            if managed.lake is not None:
                managed.lake.close()
        await self.jobs.close()
        await self.alert_engine.close()
        await self.database.close()

    def new_one_time_token(self) -> str:
        """A text that signs the first admin in, once; the one before does so no longer."""
        text = secrets.token_urlsafe(24)
        self._one_time_hash = digest(text)
        return text

    def use_one_time_token(self, text: str) -> bool:
        """Whether it is the token; it is used up then."""
        is_right = self._one_time_hash is not None and secrets.compare_digest(self._one_time_hash, digest(text))
        if is_right:
            self._one_time_hash = None
        return is_right

    async def remembered_secret(self, name: str) -> str:
        """A random text that stays the same from start to start, such as the key that signs a cookie."""
        made = secrets.token_urlsafe(32)

        def read(connection: Connection) -> str:
            rows = connection.execute(f"SELECT value FROM {VALUES} WHERE name = ?", name)
            if rows:
                return str(rows[0][0])
            connection.insert(VALUES, ("name", "value"), [(name, made)])
            return made

        return await self.database.run(read)

    def _managed(self, settings: ClusterSettings) -> ManagedCluster:
        link = ClusterLink(settings, self.settings.polling, self.clock)
        samples = Samples(settings.name, self.database, self.settings.samples, self.clock)
        lake = LakeView(settings.lake, link, self.settings.pipeline, self.clock) if settings.lake else None
        return ManagedCluster(link, Poller(link, self.settings.polling, self.clock), samples, lake)
