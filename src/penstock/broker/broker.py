"""The assembly of a broker: makes everything, hands it to its users, starts it in order and stops it in reverse.

`Broker._start` is the table of contents.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.background.archive_hold import ArchiveHold
from penstock.broker.background.certificate_watch import CertificateWatch, reload_certificates
from penstock.broker.background.log_maintenance import LogMaintenance
from penstock.broker.background.reader_groups import ReaderGroups
from penstock.broker.background.retirement import PartitionRetirement
from penstock.broker.coordinators import Coordinators
from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.handlers.fetch.partition_reads import NO_REPLICA
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.known_brokers import KnownBrokers
from penstock.broker.leader_endpoints import LeaderEndpoints
from penstock.broker.metrics.loop_monitor import LoopMonitor
from penstock.broker.metrics.registration import registered_metrics
from penstock.broker.metrics.registry import Metrics, RequestMetrics
from penstock.broker.peers import Peers
from penstock.broker.requests.api_routes import ApiRoutes, HandlerDependencies
from penstock.broker.requests.dispatch import Dispatcher
from penstock.broker.requests.sliced_work import Slices
from penstock.broker.retired_redirection import RetiredRedirection
from penstock.broker.stages import BackgroundStage, Bound, ClusterStage, DataStage, ServingStage, Stages
from penstock.broker.transaction_verification import TransactionVerification
from penstock.clock import Clock, SystemClock
from penstock.cluster.controller.controller import Controller
from penstock.cluster.coordination.contract import Coordination
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions.settings import effective_config, topic_defaults
from penstock.cluster.folder import DataFolder, FolderIdentity
from penstock.cluster.image_reader import refuse_empty_tree
from penstock.cluster.membership import Membership
from penstock.cluster.metadata import BrokerInfo, ListenerEndpoint, MetadataImage, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import Config
from penstock.config.loader import Loaded
from penstock.config.topic import SHARED_STORAGE, TopicConfig
from penstock.delay.delays import Delays
from penstock.errors import ConfigError, PeerError
from penstock.extras import missing_extra
from penstock.ids import BrokerId
from penstock.logs import fields
from penstock.net.http_server import HttpServer
from penstock.net.listener import Listeners
from penstock.net.tls import TlsContexts
from penstock.protocol import apis
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.database_moves import DatabaseMoves
from penstock.replication.in_sync_sets import InSyncKeeper
from penstock.replication.inspection import Inspection
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.replication.replica_fetcher import FetchRules
from penstock.replication.replica_fetchers import ReplicaFetchers
from penstock.replication.replicas import Replicas
from penstock.replication.stray_logs import SharedStrayRemoval, StrayRemoval
from penstock.storage.contract import Engine
from penstock.storage.memory import MemoryEngine
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.views.catalogue import Catalogue

if TYPE_CHECKING:
    from penstock.sql.groups import DatabaseGroups
    from penstock.sql.passwords import PasswordKey

logger = logging.getLogger(__name__)

_SQL_NAMESPACE = "penstock"
"""Of the coordination tree in a database that topics live in, too."""

_FIRST_FETCH_BACK_OFF_S = 0.01
_FETCH_BACK_OFF_S = 0.2
_FAREWELL_S = 0.5
"""How long a broker that has left its partitions to others goes on answering: active clients are told where to go."""
COORDINATION_FILE = "coordination.db"
LOGS_FOLDER = "logs"


class Broker:
    """One broker in this process."""

    def __init__(
        self, loaded: Loaded, clock: Clock | None = None, on_loop_turn: Callable[[], None] = lambda: None
    ) -> None:
        """`on_loop_turn` is called several times a second, as long as the event loop is not held up."""
        self._loaded = loaded
        self._on_loop_turn = on_loop_turn
        self._config = config = loaded.config
        self._broker_id = BrokerId(config.broker.id)
        self._clock = clock or SystemClock()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._is_ready = False
        self.kafka_address = config.listeners()[0].address
        """Where Kafka clients are served: the first listener for them."""
        self.http_address = config.broker.http
        self._tls: TlsContexts | None = None

    async def start(self) -> None:
        """Returns when the broker takes messages; if it cannot start, what was opened is closed again."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stops everything in the reverse order of its start. Closing twice is allowed."""
        self._is_ready = False
        while self._closers:
            await self._closers.pop()()

    async def _start(self) -> None:
        """Each stage opens what it needs, says what has to be closed again, and hands on what the next ones use."""
        monitor = self._monitor_event_loop()
        self._read_certificates()
        cluster = await self._open_cluster()
        data = await self._open_data(cluster)
        serving = self._assemble_request_handling(cluster, data)
        listeners, bound = self._bind_listeners(serving)
        fetchers = self._assemble_replica_fetchers(cluster, data)
        await self._join_cluster(cluster, data, serving, bound)
        # From here on: coordinators wait for followers, and those have to be served for that.
        listeners.start()
        await self._start_coordinators(serving)
        background = await self._start_background_work(cluster, data, serving)
        self._leave_on_close(cluster, background, fetchers)
        stages = Stages(
            monitor=monitor,
            cluster=cluster,
            data=data,
            serving=serving,
            listeners=listeners,
            background=background,
        )
        await self._serve_http(registered_metrics(stages, self._topic_defaults, self._config))
        self._announce(cluster, bound)

    def _monitor_event_loop(self) -> LoopMonitor:
        monitor = LoopMonitor(self._clock, self._on_loop_turn)
        self._on_close(monitor.close)
        monitor.start()
        return monitor

    def _read_certificates(self) -> None:
        if self._config.security.certificate_file is not None:
            self._tls = TlsContexts(self._config.security)
            watch = CertificateWatch(self._tls)
            self._closers.append(watch.close)
            watch.start()

    def reload(self) -> None:
        """Reads certificates again; connections that exist go on with those that they began with."""
        if self._tls is not None:
            reload_certificates(self._tls, is_forced=True)

    def _peer_tls(self) -> ssl.SSLContext:
        """What connections to other brokers are made with, if those want them encrypted."""
        if self._tls is None:
            raise PeerError("the other broker speaks TLS: set security.certificate_file and security.key_file")
        return self._tls.client

    async def _open_cluster(self) -> ClusterStage:
        """The data folder and the coordination tree, which belong together; this broker is not a member yet."""
        config, broker_id = self._config, self._broker_id
        folder = DataFolder(config.broker.data)
        self._on_close(folder.close)
        identity = folder.identity(broker_id)
        key = self._read_database_key()
        databases = await self._open_databases()
        coordination = await self._open_coordination(folder, databases)
        self._closers.append(coordination.close)
        if identity is not None and config.in_cluster:
            await refuse_empty_tree(coordination, identity.cluster_id)
        cluster_id = None if identity is None else identity.cluster_id
        metadata = MetadataChanges(coordination, MetadataSettings.of(config, cluster_id))
        self._closers.append(metadata.close)
        await metadata.start()
        if identity is None:
            folder.belong_to(FolderIdentity(metadata.image.cluster_id, broker_id))
        membership = Membership(coordination, metadata, folder, config.cluster.lease_ms)
        self._closers.append(membership.close)
        return ClusterStage(
            folder=folder,
            databases=databases,
            database_key=key,
            has_run_before=identity is not None,
            coordination=coordination,
            metadata=metadata,
            membership=membership,
        )

    async def _open_data(self, cluster: ClusterStage) -> DataStage:
        """The logs of this broker, recovered, and what follows from them; nothing leads or follows yet."""
        config, metadata = self._config, cluster.metadata
        segmented = SegmentedEngine(cluster.folder.path / LOGS_FOLDER, config.log, config.limits, self._clock)
        self._on_close(lambda: cluster.folder.end_life() if segmented.was_closed_cleanly else None)
        memory = MemoryEngine(config.log, config.limits, self._clock)
        lease = LeaderLease(self._clock, cluster.membership.lease_until_ms, 2 * config.cluster.fetch_wait_max_ms)
        lag_rules = LagRules(
            max_ms=config.cluster.lag_time_max_ms,
            max_messages=config.cluster.lag_max_messages,
            lease_ms=config.cluster.lease_ms,
        )
        engines: dict[str, Engine] = {"segmented": segmented, "memory": memory}
        if cluster.databases is not None:
            # Before the logs: whoever takes one over must know the primary of the same image.
            self._follow_database_groups(cluster, cluster.databases)
            engines[SHARED_STORAGE] = self._new_sql_engine(cluster.databases, metadata.image.cluster_id)
        delays = Delays(self._clock)
        replicas = Replicas(self._broker_id, engines, self._effective, lease, lag_rules, delays)
        replicas.on_role(delays.role_changed)
        self._closers.append(replicas.close)
        self._closers.append(delays.close)
        await replicas.open(metadata.image)
        self._on_close(metadata.subscribe(replicas.change))
        catalogue = Catalogue(metadata.image)
        self._closers.append(catalogue.close)
        self._on_close(metadata.subscribe(catalogue.change))
        if cluster.has_run_before and config.in_cluster:
            # The tree was not made just now: it is known to be the one of the cluster that the logs are from.
            strays = StrayRemoval(segmented, self._broker_id, lambda: metadata.image, config.log.stray_keep_ms)
            self._closers.append(strays.close)
            strays.start()
        return DataStage(segmented=segmented, replicas=replicas, delays=delays, catalogue=catalogue)

    def _assemble_request_handling(self, cluster: ClusterStage, data: DataStage) -> ServingStage:
        """From a frame to its response: handlers, coordinators, and the dispatcher in front of them."""
        config, metadata, replicas = self._config, cluster.metadata, data.replicas
        requests = RequestMetrics({api.key: api.name for api in apis.APIS.values()})
        in_sync = InSyncKeeper(
            lambda: replicas,
            metadata.put_in_sync,
            replicas.applied,
            self._clock,
            config.cluster.lag_time_max_ms / 2,
        )
        self._closers.append(in_sync.close)
        slices = Slices()
        brokers = KnownBrokers(self._broker_id, lambda: metadata.image)
        fetch_handler = FetchHandler(
            replicas,
            data.catalogue,
            data.delays,
            config.limits,
            self._clock,
            partial(_nearest, metadata),
            in_sync.look_soon,
            brokers,
            slices,
        )
        self._on_close(metadata.subscribe(fetch_handler.image_changed))
        peers = Peers(self._broker_id, lambda: metadata.image, self._peer_tls)
        self._closers.append(peers.close)
        repair = DamageRepair(lambda: replicas, peers.fetch)
        self._closers.append(repair.close)
        coordinators = Coordinators(metadata, replicas, peers, repair, config, self._clock, cluster.databases)
        self._closers.append(coordinators.close)
        api_routes = ApiRoutes(
            HandlerDependencies(
                loaded=self._loaded,
                broker_id=self._broker_id,
                metadata=metadata,
                replicas=replicas,
                catalogue=data.catalogue,
                delays=data.delays,
                coordinators=coordinators,
                brokers=brokers,
                clock=self._clock,
                database_key=cluster.database_key,
                databases=cluster.databases,
                database_address=None if cluster.databases is None else cluster.databases.default.primary.address,
            )
        )
        verification = TransactionVerification(replicas, coordinators.remote_transactions)
        inspection = Inspection(config.limits)
        self._on_close(inspection.close)
        redirection = RetiredRedirection(replicas, verification, inspection, lambda: metadata.image)
        leaders = LeaderEndpoints(lambda: metadata.image)
        dispatcher = Dispatcher(
            ProduceHandler(replicas, verification, redirection, inspection, leaders, in_sync.look_soon, slices),
            fetch_handler,
            api_routes,
            requests,
            config.limits,
            slices,
        )
        return ServingStage(
            requests=requests,
            in_sync=in_sync,
            peers=peers,
            repair=repair,
            coordinators=coordinators,
            fetch_handler=fetch_handler,
            dispatcher=dispatcher,
        )

    def _bind_listeners(self, serving: ServingStage) -> tuple[Listeners, Bound]:
        """Takes the ports, so that one in use is known before the broker joins; nothing is accepted yet."""
        listeners = Listeners(self._config.listeners(), self._config.limits, serving.dispatcher.handle, self._tls)
        self._closers.append(listeners.close)
        bound = listeners.bind()
        self.kafka_address = bound[0][1]
        self._on_close(serving.fetch_handler.close)
        self._on_close(serving.coordinators.release)
        return listeners, bound

    def _assemble_replica_fetchers(self, cluster: ClusterStage, data: DataStage) -> ReplicaFetchers:
        config, metadata = self._config, cluster.metadata
        bytes_per_second = config.cluster.move_bytes_per_second or None
        fetchers = ReplicaFetchers(
            data.replicas, lambda: metadata.image, _fetch_rules(config), bytes_per_second, self._peer_tls
        )
        self._closers.append(fetchers.close)
        self._on_close(metadata.subscribe(fetchers.image_changed))
        return fetchers

    async def _join_cluster(self, cluster: ClusterStage, data: DataStage, serving: ServingStage, bound: Bound) -> None:
        """Registers the broker with its endpoints; then it leads and follows what the image says."""
        registration = _registration(self._broker_id, bound, self._config.broker.rack)
        if data.replicas.shared_engines:
            key, image = cluster.database_key, cluster.metadata.image
            fingerprint = key.fingerprint if key is not None and _opens_passwords(key, image) else ""
            registration = replace(registration, has_shared_storage=True, database_key=fingerprint)
        await cluster.membership.join(registration)
        await data.replicas.begin()
        serving.in_sync.start()
        await data.replicas.applied()

    async def _start_coordinators(self, serving: ServingStage) -> None:
        await serving.coordinators.start()
        serving.repair.start()

    async def _start_background_work(
        self, cluster: ClusterStage, data: DataStage, serving: ServingStage
    ) -> BackgroundStage:
        """What the broker does without being asked: controller work if it is elected, retention, retirement."""
        config, metadata, replicas = self._config, cluster.metadata, data.replicas
        controller = Controller(
            self._broker_id,
            cluster.coordination,
            metadata,
            cluster.membership,
            cluster.folder,
            config.cluster,
            self._clock,
        )
        self._closers.append(controller.close)
        await controller.start()
        for engine in replicas.shared_engines:
            strays = SharedStrayRemoval(
                engine, metadata.refresh, lambda: controller.epoch is not None, config.log.stray_keep_ms
            )
            self._closers.append(strays.close)
            strays.start()
            moves = DatabaseMoves(self._broker_id, engine, metadata.finish_database_move)
            self._closers.append(moves.close)
            self._on_close(metadata.subscribe(moves.image_changed))
            moves.image_changed(metadata.image, metadata.image)
        if cluster.databases is not None:
            self._start_cluster_tables(cluster.databases, metadata, controller)
            self._start_database_watch(cluster.databases, cluster, controller)
            self._start_inbox_intake(cluster.databases, replicas)
        readers = ReaderGroups(self._broker_id, metadata, serving.coordinators, serving.peers)
        archive = ArchiveHold(readers)
        replicas.on_role(archive.role_changed)
        maintenance = LogMaintenance(replicas, archive, config.log)
        self._closers.append(maintenance.close)
        maintenance.start()
        retirement = PartitionRetirement(metadata, replicas, data.catalogue, readers, config.log.retention_check_ms)
        self._closers.append(retirement.close)
        retirement.start()
        return BackgroundStage(controller=controller, archive=archive)

    def _start_database_watch(self, databases: DatabaseGroups, cluster: ClusterStage, controller: Controller) -> None:
        from penstock.broker.background.database_watch import DatabaseWatch

        watch = DatabaseWatch(
            databases, cluster.metadata, cluster.coordination, lambda: controller.epoch is not None, self._clock
        )
        self._closers.append(watch.close)
        watch.start()

    def _start_inbox_intake(self, databases: DatabaseGroups, replicas: Replicas) -> None:
        from penstock.delay.inbox_intake import InboxIntake

        intake = InboxIntake(databases, lambda: list(replicas))
        self._closers.append(intake.close)
        intake.start()

    def _start_cluster_tables(
        self, databases: DatabaseGroups, metadata: MetadataChanges, controller: Controller
    ) -> None:
        from penstock.broker.background.cluster_tables import ClusterTables

        tables = ClusterTables(
            databases,
            lambda: metadata.image,
            lambda: controller.epoch,
            lambda topic, image: self._effective(topic, image).storage,
            self._clock,
        )
        self._closers.append(tables.close)
        tables.start()

    def _leave_on_close(self, cluster: ClusterStage, background: BackgroundStage, fetchers: ReplicaFetchers) -> None:
        """A stop begins with what is said last here."""
        self._closers.append(background.controller.resign)
        self._closers.append(partial(_leave, cluster.membership))
        # Before it resigns: the next leaders would wait for a follower that they have just heard from.
        self._closers.append(fetchers.close)

    async def _serve_http(self, metrics: Metrics) -> None:
        http = HttpServer(*self._config.broker.http, metrics.exposition, self._health, self._ready)
        self._closers.append(http.close)
        self.http_address = await http.start()

    def _announce(self, cluster: ClusterStage, bound: Bound) -> None:
        self._is_ready = True
        self._on_close(self._not_ready)
        logger.info(
            "broker is ready",
            extra=fields(
                id=self._broker_id,
                listen=",".join(f"{settings.name}://{address}" for settings, address in bound),
                http=str(self.http_address),
                data=str(self._config.broker.data),
                **({} if cluster.databases is None else {"database": str(cluster.databases.default.primary.address)}),
                topics=len(cluster.metadata.image.topics),
            ),
        )

    async def _open_databases(self) -> DatabaseGroups | None:
        settings = self._config.sql
        if not settings.is_set:
            return None
        # Not loaded by a broker that has no database, nor are its drivers.
        from penstock.sql.database import Database
        from penstock.sql.errors import DatabaseError
        from penstock.sql.groups import DatabaseGroups
        from penstock.sql.migrations import is_current
        from penstock.storage.sql.metadata_tables import METADATA

        try:
            database = await Database.open(
                settings.address(),
                connections=settings.connections,
                timeout_ms=settings.timeout_ms,
                patience_ms=self._config.cluster.connect_timeout_ms,
            )
            self._closers.append(database.close)
            # The others are asked for by those who open the tables; these are written in the background.
            await database.run(partial(is_current, component=METADATA), is_read_only=True)
        except DatabaseError as error:
            raise ConfigError(f"the database cannot be used: {error}") from error
        databases = DatabaseGroups(database, self._clock)
        self._closers.append(databases.close)
        databases.start()
        return databases

    def _read_database_key(self) -> PasswordKey | None:
        path = self._config.sql.key_file
        if path is None:
            return None
        # Not loaded by a broker that has no key, nor is its library.
        from penstock.sql.passwords import PasswordKey

        return PasswordKey.read(path)

    def _follow_database_groups(self, cluster: ClusterStage, databases: DatabaseGroups) -> None:
        from penstock.cluster.database_addresses import follow_groups

        follow_groups(databases, cluster.database_key, cluster.metadata.image.databases)

        def image_changed(old: MetadataImage, new: MetadataImage) -> None:
            if old.databases != new.databases:
                follow_groups(databases, cluster.database_key, new.databases)

        self._on_close(cluster.metadata.subscribe(image_changed))

    def _new_sql_engine(self, databases: DatabaseGroups, cluster_id: str) -> Engine:
        from penstock.storage.sql.engine import SqlEngine

        config, settings = self._config, self._config.sql
        return SqlEngine(
            databases,
            config.log,
            config.limits,
            self._clock,
            cluster_id=cluster_id,
            buffer_bytes=settings.buffer_bytes,
            cache_bytes=settings.cache_bytes,
            retry_ms=settings.retry_ms,
            range_bytes=settings.range_bytes,
        )

    async def _open_coordination(self, folder: DataFolder, databases: DatabaseGroups | None) -> Coordination:
        settings = self._config.cluster
        if settings.coordinator is None and databases is not None:
            from penstock.cluster.coordination.sql import SqlCoordination

            return await SqlCoordination.open(
                databases.default.primary.address,
                _SQL_NAMESPACE,
                settings.lease_ms,
                self._clock,
                settings.connect_timeout_ms,
            )
        if settings.coordinator is None:
            return await EmbeddedCoordination.open(folder.path / COORDINATION_FILE)
        # Not loaded by a broker that is alone: its library is a part of its own of the package.
        try:
            from penstock.cluster.coordination.zookeeper import ZooKeeperCoordination
        except ModuleNotFoundError as error:
            raise missing_extra(error, "cluster.coordinator (ZooKeeper)") or error from None

        servers, chroot = settings.coordinator
        return await ZooKeeperCoordination.open(
            servers, chroot, settings.lease_ms, self._clock, settings.connect_timeout_ms
        )

    def _effective(self, topic: TopicImage, image: MetadataImage) -> TopicConfig:
        return effective_config(topic, self._topic_defaults(image))

    def _topic_defaults(self, image: MetadataImage) -> Mapping[str, str]:
        return topic_defaults(self._config.topic, image.settings_of(self._broker_id))

    def _on_close(self, close: Callable[[], object]) -> None:
        async def closer() -> None:
            close()

        self._closers.append(closer)

    def _not_ready(self) -> None:
        self._is_ready = False

    def _health(self) -> tuple[bool, dict[str, object]]:
        return True, {"status": "up", "kafka": str(self.kafka_address)}

    def _ready(self) -> tuple[bool, dict[str, object]]:
        if self._is_ready:
            return True, {"status": "ready"}
        return False, {"status": "not ready", "reason": "starting or stopping"}


async def _leave(membership: Membership) -> None:
    if await membership.step_down():
        await asyncio.sleep(_FAREWELL_S)
    await membership.resign()


def _fetch_rules(config: Config) -> FetchRules:
    return FetchRules(
        wait_ms=config.cluster.fetch_wait_max_ms,
        partition_bytes=config.limits.fetch_bytes // 8,
        answer_bytes=config.limits.fetch_bytes,
        first_back_off_s=_FIRST_FETCH_BACK_OFF_S,
        back_off_s=_FETCH_BACK_OFF_S,
        lag_time_s=config.cluster.lag_time_max_ms / 1000,
    )


def _registration(broker_id: BrokerId, bound: Bound, rack: str | None) -> BrokerInfo:
    """What a broker with these listeners registers."""
    endpoints = tuple(
        ListenerEndpoint(settings.name, *settings.endpoint(address), settings.protocol) for settings, address in bound
    )
    inter_broker = next((settings.name for settings, _ in bound if settings.is_inter_broker), None)
    return BrokerInfo(
        broker_id,
        endpoints[0].host,
        endpoints[0].port,
        rack,
        endpoints=endpoints,
        inter_broker_listener=inter_broker,
    )


def _opens_passwords(key: PasswordKey, image: MetadataImage) -> bool:
    """Whether it is the key of the database groups that there are. A broker with another one leads what is in the
    default group alone.
    """
    for group in image.databases.values():
        try:
            for server in group.servers:
                key.decrypt(server.secret)
        except ConfigError as error:
            logger.error("cannot use database groups", extra=fields(group=group.name, reason=str(error)))
            return False
    return True


def _nearest(metadata: MetadataChanges, partition: Partition, rack: str, listener: str) -> int:
    """A replica in sync in the client's rack that has its listener, unless the leader is in that rack (KIP-392)."""
    brokers, leadership = metadata.image.brokers, partition.leadership
    if leadership is None or brokers[leadership.me].rack == rack:
        return NO_REPLICA
    near = [
        found
        for found in leadership.in_sync
        if found in metadata.image.alive
        and brokers[found].rack == rack
        and brokers[found].endpoint(listener) is not None
    ]
    return min(near, default=NO_REPLICA)
