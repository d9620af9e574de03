"""The assembly of a broker: makes everything, hands it to its users, starts it in order and stops it in reverse.

`Broker._start` is the table of contents.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.background.archive_hold import ArchiveHold
from penstock.broker.background.certificate_watch import CertificateWatch, reload_certificates
from penstock.broker.background.log_maintenance import LogMaintenance
from penstock.broker.background.reader_groups import ReaderGroups
from penstock.broker.background.retirement import PartitionRetirement
from penstock.broker.coordination_tree import open_coordination
from penstock.broker.coordinators import Coordinators
from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.handlers.fetch.nearest_replica import nearest_replica
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.identities import Identities, add_first_admin, peer_login
from penstock.broker.known_brokers import KnownBrokers
from penstock.broker.leader_endpoints import LeaderEndpoints
from penstock.broker.metrics.loop_monitor import LoopMonitor
from penstock.broker.metrics.registration import registered_metrics
from penstock.broker.metrics.registry import Metrics, RequestMetrics
from penstock.broker.peers import Peers
from penstock.broker.permissions.access import Permissions
from penstock.broker.permissions.denials import Denials
from penstock.broker.registration import registration_of, with_shared_storage
from penstock.broker.requests.api_routes import ApiRoutes, HandlerDependencies
from penstock.broker.requests.client_limits import ClientLimits
from penstock.broker.requests.dispatch import Dispatcher
from penstock.broker.requests.quota_enforcement import QuotaEnforcement
from penstock.broker.requests.sliced_work import Slices
from penstock.broker.retired_redirection import RetiredRedirection
from penstock.broker.stages import BackgroundStage, Bound, ClusterStage, DataStage, ServingStage, Stages
from penstock.broker.transaction_verification import TransactionVerification
from penstock.clock import Clock, SystemClock
from penstock.cluster.controller.controller import Controller
from penstock.cluster.decisions.settings import effective_config, topic_defaults
from penstock.cluster.folder import DataFolder, FolderIdentity
from penstock.cluster.image_reader import refuse_empty_tree
from penstock.cluster.membership import Membership
from penstock.cluster.metadata import MetadataImage, TopicImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import Config
from penstock.config.loader import Loaded
from penstock.config.topic import SHARED_STORAGE, TopicConfig
from penstock.delay.delays import Delays
from penstock.errors import ConfigError, PeerError
from penstock.ids import BrokerId
from penstock.logs import fields
from penstock.net.http_server import HttpServer
from penstock.net.listener import Listeners
from penstock.net.peer import PeerSecurity
from penstock.net.tls import TlsContexts
from penstock.protocol import apis
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.database_moves import DatabaseMoves
from penstock.replication.in_sync_sets import InSyncKeeper
from penstock.replication.inspection import Inspection
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.replica_fetcher import FetchRules
from penstock.replication.replica_fetchers import ReplicaFetchers
from penstock.replication.replicas import Replicas
from penstock.replication.stray_logs import SharedStrayRemoval, StrayRemoval
from penstock.security.authorizer import Authorizer, AuthorizerRules
from penstock.security.connection_rates import ConnectionRates
from penstock.security.http_credentials import HttpCredentials
from penstock.security.principal import Principal
from penstock.storage.contract import Engine
from penstock.storage.memory import MemoryEngine
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.views.catalogue import Catalogue

if TYPE_CHECKING:
    from penstock.sql.groups import DatabaseGroups
    from penstock.sql.passwords import PasswordKey

logger = logging.getLogger(__name__)

_FIRST_FETCH_BACK_OFF_S = 0.01
_FETCH_BACK_OFF_S = 0.2
_FAREWELL_S = 0.5
"""How long a broker that has handed its partitions over still answers, to tell active clients who leads now."""
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
        self._to_close = AsyncExitStack()
        """What is open, in the order of its start."""
        self._is_ready = False
        self.kafka_address = config.listeners()[0].address
        """Where Kafka clients are served: the first listener for them."""
        self.http_address = config.broker.http
        self._tls: TlsContexts | None = None
        self._http_credentials = HttpCredentials.read(config.security.http_credentials_file)
        self._peer_security = PeerSecurity(self._peer_tls, partial(peer_login, config.security))
        self._identities: Identities | None = None

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
        await self._to_close.aclose()

    async def _start(self) -> None:
        """Each stage opens what it needs, says what has to be closed again, and hands on what the next ones use."""
        monitor = self._monitor_event_loop()
        self._read_certificates()
        cluster = await self._open_cluster()
        data = await self._open_data(cluster)
        serving = self._assemble_request_handling(cluster, data)
        self._identities = await self._open_identities(cluster)
        listeners, bound = self._bind_listeners(cluster, serving)
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
        self._to_close.callback(monitor.close)
        monitor.start()
        return monitor

    def _read_certificates(self) -> None:
        if self._config.security.certificate_file is not None:
            self._tls = TlsContexts(self._config.security)
            watch = CertificateWatch(self._tls)
            self._to_close.push_async_callback(watch.close)
            watch.start()

    def reload(self) -> None:
        """Reads certificates and users again; connections that exist go on with those that they began with."""
        if self._tls is not None:
            reload_certificates(self._tls, is_forced=True)
        if self._identities is not None:
            self._identities.reload()
        try:
            self._http_credentials = HttpCredentials.read(self._config.security.http_credentials_file)
        except ConfigError as error:
            logger.error("http credentials cannot be read again; the old ones stay", extra=fields(reason=str(error)))

    def _peer_tls(self) -> ssl.SSLContext:
        """What connections to other brokers are made with, if those want them encrypted."""
        if self._tls is None:
            raise PeerError("the other broker speaks TLS: set security.certificate_file and security.key_file")
        return self._tls.client

    async def _open_cluster(self) -> ClusterStage:
        """The data folder and the coordination tree, which belong together; this broker is not a member yet."""
        config, broker_id = self._config, self._broker_id
        folder = DataFolder(config.broker.data)
        self._to_close.callback(folder.close)
        identity = folder.identity(broker_id)
        key = self._read_database_key()
        databases = await self._open_databases()
        coordination = await open_coordination(config, folder.path, databases, self._clock)
        self._to_close.push_async_callback(coordination.close)
        if identity is not None and config.in_cluster:
            await refuse_empty_tree(coordination, identity.cluster_id)
        cluster_id = None if identity is None else identity.cluster_id
        metadata = MetadataChanges(coordination, MetadataSettings.of(config, cluster_id))
        self._to_close.push_async_callback(metadata.close)
        await metadata.start()
        if identity is None:
            folder.belong_to(FolderIdentity(metadata.image.cluster_id, broker_id))
        membership = Membership(coordination, metadata, folder, config.cluster.lease_ms)
        self._to_close.push_async_callback(membership.close)
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
        self._to_close.callback(lambda: cluster.folder.end_life() if segmented.was_closed_cleanly else None)
        memory = MemoryEngine(config.log, config.limits, self._clock)
        lease = LeaderLease(self._clock, cluster.membership.lease_until_ms, 2 * config.cluster.fetch_wait_max_ms)
        lag_rules = LagRules(
            max_ms=config.cluster.lag_time_max_ms,
            max_messages=config.cluster.lag_max_messages,
            lease_ms=config.cluster.lease_ms,
        )
        engines: dict[str, Engine] = {"segmented": segmented, "memory": memory}
        if cluster.databases is not None:
            from penstock.broker.database_parts import follow_database_groups, new_engine

            # Before the logs: taking a log over needs the primary of the same image.
            follow_database_groups(cluster.databases, cluster, self._to_close)
            engines[SHARED_STORAGE] = new_engine(cluster.databases, config, self._clock, metadata.image.cluster_id)
        delays = Delays(self._clock)
        replicas = Replicas(self._broker_id, engines, self._effective, lease, lag_rules, delays)
        replicas.on_role(delays.role_changed)
        self._to_close.push_async_callback(replicas.close)
        self._to_close.push_async_callback(delays.close)
        await replicas.open(metadata.image)
        self._to_close.callback(metadata.subscribe(replicas.change))
        catalogue = Catalogue(metadata.image)
        self._to_close.push_async_callback(catalogue.close)
        self._to_close.callback(metadata.subscribe(catalogue.change))
        if cluster.has_run_before and config.in_cluster:
            # The tree was not made just now: it is known to be the one of the cluster that the logs are from.
            strays = StrayRemoval(segmented, self._broker_id, lambda: metadata.image, config.log.stray_keep_ms)
            self._to_close.push_async_callback(strays.close)
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
        self._to_close.push_async_callback(in_sync.close)
        slices = Slices()
        permissions = self._new_permissions(metadata)
        brokers = KnownBrokers(
            self._broker_id, lambda: metadata.image, believes_client_ids=not config.security.has_authorizer
        )
        fetch_handler = FetchHandler(
            replicas,
            data.catalogue,
            data.delays,
            config.limits,
            self._clock,
            lambda *client: nearest_replica(metadata.image, *client),
            in_sync.look_soon,
            brokers,
            slices,
            permissions,
        )
        self._to_close.callback(metadata.subscribe(fetch_handler.image_changed))
        peers = Peers(self._broker_id, lambda: metadata.image, self._peer_security)
        self._to_close.push_async_callback(peers.close)
        repair = DamageRepair(lambda: replicas, peers.fetch)
        self._to_close.push_async_callback(repair.close)
        coordinators = Coordinators(metadata, replicas, peers, repair, config, self._clock, cluster.databases)
        self._to_close.push_async_callback(coordinators.close)
        quotas = ClientLimits(config.quotas, self._clock.monotonic_ms)
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
                quotas=quotas,
                database_key=cluster.database_key,
                databases=cluster.databases,
                database_address=None if cluster.databases is None else cluster.databases.default.primary.address,
            ),
            permissions,
        )
        verification = TransactionVerification(replicas, coordinators.remote_transactions)
        inspection = Inspection(config.limits)
        self._to_close.callback(inspection.close)
        redirection = RetiredRedirection(replicas, verification, inspection, lambda: metadata.image)
        leaders = LeaderEndpoints(lambda: metadata.image)
        dispatcher = Dispatcher(
            ProduceHandler(
                replicas, verification, redirection, inspection, leaders, in_sync.look_soon, slices, permissions
            ),
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
            quotas=quotas,
            quota_enforcement=QuotaEnforcement(dispatcher.handle, quotas, brokers.is_broker),
            permissions=permissions,
        )

    def _new_permissions(self, metadata: MetadataChanges) -> Permissions | None:
        """None without an authorizer: then nothing asks for permission."""
        security, limits = self._config.security, self._config.limits
        if not security.has_authorizer:
            return None
        super_users = set(security.super_users)
        if security.admin_user is not None:
            super_users.add(Principal.user(security.admin_user))
        rules = AuthorizerRules(
            frozenset(super_users),
            security.allow_everyone_if_no_acl_found,
            limits.kept_decisions,
        )
        authorizer = Authorizer(rules, metadata.image.acls)
        permissions = Permissions(authorizer, Denials(self._clock), lambda: metadata.image)
        self._to_close.callback(metadata.subscribe(permissions.image_changed))
        return permissions

    async def _open_identities(self, cluster: ClusterStage) -> Identities | None:
        """The users that can log in, if a listener has SASL. Adds the first user of a cluster in any case."""
        await add_first_admin(cluster.metadata, self._config.security)
        if not any(listener.protocol.has_sasl for listener in self._config.listeners()):
            return None
        identities = Identities(self._config, cluster.metadata, self._clock)
        self._to_close.push_async_callback(identities.close)
        await identities.start()
        return identities

    def _bind_listeners(self, cluster: ClusterStage, serving: ServingStage) -> tuple[Listeners, Bound]:
        """Takes the ports, so that one in use is known before the broker joins; nothing is accepted yet."""
        config = self._config
        rates = ConnectionRates(config.quotas.connections_per_second, config.quotas.tracked_entities)
        listeners = Listeners(
            config.listeners(),
            config.limits,
            serving.dispatcher.handle,
            self._tls,
            None if self._identities is None else self._identities.logins,
            config.security,
            rates,
        )
        self._follow_quotas(cluster.metadata, serving, listeners, rates)
        self._to_close.push_async_callback(listeners.close)
        bound = listeners.bind()
        self.kafka_address = bound[0][1]
        self._to_close.callback(serving.fetch_handler.close)
        self._to_close.callback(serving.coordinators.release)
        return listeners, bound

    def _follow_quotas(
        self, metadata: MetadataChanges, serving: ServingStage, listeners: Listeners, rates: ConnectionRates
    ) -> None:
        """Has clients kept to their quotas; without any, nothing stands between a connection and the dispatcher."""

        def image_changed(old: MetadataImage | None, new: MetadataImage) -> None:
            if old is not None and old.quotas is new.quotas:
                return
            rates.follow(new.quotas)
            serving.quotas.follow(new.quotas)
            enforced = serving.quota_enforcement.handle
            listeners.use(enforced if serving.quotas.is_active else serving.dispatcher.handle)

        image_changed(None, metadata.image)
        self._to_close.callback(metadata.subscribe(image_changed))

    def _assemble_replica_fetchers(self, cluster: ClusterStage, data: DataStage) -> ReplicaFetchers:
        config, metadata = self._config, cluster.metadata
        bytes_per_second = config.cluster.move_bytes_per_second or None
        fetchers = ReplicaFetchers(
            data.replicas, lambda: metadata.image, _fetch_rules(config), bytes_per_second, self._peer_security
        )
        self._to_close.push_async_callback(fetchers.close)
        self._to_close.callback(metadata.subscribe(fetchers.image_changed))
        return fetchers

    async def _join_cluster(self, cluster: ClusterStage, data: DataStage, serving: ServingStage, bound: Bound) -> None:
        """Registers the broker with its endpoints; then it leads and follows what the image says."""
        registration = registration_of(self._broker_id, bound, self._config.broker.rack)
        if data.replicas.shared_engines:
            registration = with_shared_storage(registration, cluster.database_key, cluster.metadata.image)
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
        """The broker's background work: controller duties if it is elected, retention, retirement."""
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
        self._to_close.push_async_callback(controller.close)
        await controller.start()
        for engine in replicas.shared_engines:
            strays = SharedStrayRemoval(
                engine, metadata.refresh, lambda: controller.epoch is not None, config.log.stray_keep_ms
            )
            self._to_close.push_async_callback(strays.close)
            strays.start()
            moves = DatabaseMoves(self._broker_id, engine, metadata.finish_database_move)
            self._to_close.push_async_callback(moves.close)
            self._to_close.callback(metadata.subscribe(moves.image_changed))
            moves.image_changed(metadata.image, metadata.image)
        if cluster.databases is not None:
            from penstock.broker.database_parts import start_database_work

            start_database_work(
                cluster.databases, cluster, replicas, controller, self._storage_of, self._clock, self._to_close
            )
        readers = ReaderGroups(self._broker_id, metadata, serving.coordinators, serving.peers)
        archive = ArchiveHold(readers)
        replicas.on_role(archive.role_changed)
        maintenance = LogMaintenance(replicas, archive, config.log)
        self._to_close.push_async_callback(maintenance.close)
        maintenance.start()
        retirement = PartitionRetirement(metadata, replicas, data.catalogue, readers, config.log.retention_check_ms)
        self._to_close.push_async_callback(retirement.close)
        retirement.start()
        return BackgroundStage(controller=controller, archive=archive)

    def _leave_on_close(self, cluster: ClusterStage, background: BackgroundStage, fetchers: ReplicaFetchers) -> None:
        """A stop begins with what is said last here."""
        self._to_close.push_async_callback(background.controller.resign)
        self._to_close.push_async_callback(partial(_leave, cluster.membership))
        # Before it resigns: the next leaders would wait for a follower that they have just heard from.
        self._to_close.push_async_callback(fetchers.close)

    async def _serve_http(self, metrics: Metrics) -> None:
        tls = self._tls.new_http_context() if self._tls is not None and self._config.security.http_tls else None
        http = HttpServer(
            *self._config.broker.http,
            metrics.exposition,
            self._health,
            self._ready,
            tls=tls,
            credentials=lambda: self._http_credentials,
        )
        self._to_close.push_async_callback(http.close)
        self.http_address = await http.start()

    def _announce(self, cluster: ClusterStage, bound: Bound) -> None:
        self._is_ready = True
        self._to_close.callback(self._not_ready)
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
        if not self._config.sql.is_set:
            return None
        from penstock.broker.database_parts import open_databases

        return await open_databases(self._config, self._clock, self._to_close)

    def _read_database_key(self) -> PasswordKey | None:
        path = self._config.sql.key_file
        if path is None:
            return None
        # Not loaded by a broker that has no key, nor is its library.
        from penstock.sql.passwords import PasswordKey

        return PasswordKey.read(path)

    def _effective(self, topic: TopicImage, image: MetadataImage) -> TopicConfig:
        return effective_config(topic, self._topic_defaults(image))

    def _storage_of(self, topic: TopicImage, image: MetadataImage) -> str:
        return self._effective(topic, image).storage

    def _topic_defaults(self, image: MetadataImage) -> Mapping[str, str]:
        return topic_defaults(self._config.topic, image.settings_of(self._broker_id))

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
