"""The assembly of a broker: everything is made here, handed to whom it belongs, started in order and stopped in
reverse.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.broker.archive_hold import ArchiveHold
from penstock.broker.coordinators import Coordinators
from penstock.broker.delay_metrics import register_delays
from penstock.broker.dispatch import Dispatcher
from penstock.broker.families import Collaborators, Families
from penstock.broker.group_metrics import GroupReadings
from penstock.broker.handlers.fetch import FetchHandler
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.handlers.reading import NO_REPLICA
from penstock.broker.http import HttpServer
from penstock.broker.leaders import Leaders
from penstock.broker.metrics import LabelledValue, Metrics, RequestMetrics
from penstock.broker.peers import Peers
from penstock.broker.readers import Readers
from penstock.broker.redirection import Redirection
from penstock.broker.retirement import Retirement
from penstock.broker.upkeep import Upkeep
from penstock.broker.verification import Verification
from penstock.clock import Clock, SystemClock
from penstock.cluster.caretaker import Caretaker
from penstock.cluster.controller import Controller, ControllerSettings
from penstock.cluster.coordination import Coordination
from penstock.cluster.embedded import EmbeddedCoordination
from penstock.cluster.folder import DataFolder, FolderIdentity
from penstock.cluster.loading import refuse_empty_tree
from penstock.cluster.membership import Membership
from penstock.cluster.metadata import BrokerInfo, MetadataImage, TopicImage
from penstock.cluster.settings import topic_defaults
from penstock.config.broker import Config
from penstock.config.loader import Loaded
from penstock.config.topic import TopicConfig, topic_config
from penstock.delay.delays import Delays
from penstock.ids import BrokerId
from penstock.logs import fields
from penstock.net.listener import Listener
from penstock.protocol import apis
from penstock.replication.fetcher import FetchRules
from penstock.replication.followers import Followers
from penstock.replication.insync import InSyncKeeper
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.replication.strays import StrayRemoval
from penstock.replication.tenure import Tenure
from penstock.storage.contract import Log
from penstock.storage.memory import MemoryEngine
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.views.catalogue import Catalogue
from penstock.views.search import Effort

logger = logging.getLogger(__name__)

_FIRST_FETCH_BACK_OFF_S = 0.01
_FETCH_BACK_OFF_S = 0.2
_FAREWELL_S = 0.5
"""How long a broker that has left its partitions to others goes on answering: active clients are told where to go."""
COORDINATION_FILE = "coordination.db"
LOGS_FOLDER = "logs"


class Broker:
    """One broker in this process."""

    def __init__(self, loaded: Loaded, clock: Clock | None = None) -> None:
        self._loaded = loaded
        self._config = config = loaded.config
        self._clock = clock or SystemClock()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._is_ready = False
        self.kafka_address = config.broker.listen
        self.http_address = config.broker.http

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
        config = self._config
        broker_id = BrokerId(config.broker.id)
        folder = DataFolder(config.broker.data)
        self._on_close(folder.close)
        identity = folder.identity(broker_id)
        coordination = await self._open_coordination(folder)
        self._closers.append(coordination.close)
        if identity is not None and config.cluster.coordinator is not None:
            await refuse_empty_tree(coordination, identity.cluster_id)
        cluster_id = None if identity is None else identity.cluster_id
        controller = Controller(coordination, ControllerSettings.of(config, cluster_id))
        self._closers.append(controller.close)
        await controller.start()
        if identity is None:
            folder.belong_to(FolderIdentity(controller.image.cluster_id, broker_id))
        membership = Membership(coordination, controller, folder, config.cluster.lease_ms)
        self._closers.append(membership.close)

        segmented = SegmentedEngine(folder.path / LOGS_FOLDER, config.log, config.limits, self._clock)
        self._on_close(lambda: folder.end_life() if segmented.was_closed_cleanly else None)
        memory = MemoryEngine(config.log, config.limits, self._clock)
        tenure = Tenure(self._clock, membership.lease_until_ms, 2 * config.cluster.fetch_wait_max_ms)
        lag_rules = LagRules(max_ms=config.cluster.lag_time_max_ms, max_messages=config.cluster.lag_max_messages)
        engines = {"segmented": segmented, "memory": memory}
        delays = Delays(self._clock)
        replicas = Replicas(broker_id, engines, self._effective, tenure, lag_rules, delays)
        replicas.on_role(delays.role_changed)
        self._closers.append(replicas.close)
        self._closers.append(delays.close)
        await replicas.open(controller.image)
        self._on_close(controller.subscribe(replicas.change))
        catalogue = Catalogue(controller.image)
        self._closers.append(catalogue.close)
        self._on_close(controller.subscribe(catalogue.change))

        if identity is not None and config.cluster.coordinator is not None:
            # The tree was not made just now: it is known to be the one of the cluster that the logs are from.
            strays = StrayRemoval(segmented, broker_id, lambda: controller.image, config.log.stray_keep_ms)
            self._closers.append(strays.close)
            strays.start()

        requests = RequestMetrics({api.key: api.name for api in apis.APIS.values()})
        in_sync = InSyncKeeper(
            lambda: replicas,
            controller.put_in_sync,
            replicas.applied,
            self._clock,
            config.cluster.lag_time_max_ms / 2,
        )
        self._closers.append(in_sync.close)
        fetch_handler = FetchHandler(
            replicas, catalogue, delays, config.limits, self._clock, partial(_nearest, controller), in_sync.look_soon
        )
        peers = Peers(broker_id, lambda: controller.image)
        self._closers.append(peers.close)
        coordinators = Coordinators(controller, replicas, peers, config, self._clock)
        self._closers.append(coordinators.close)
        families = Families(
            Collaborators(
                loaded=self._loaded,
                broker_id=broker_id,
                controller=controller,
                replicas=replicas,
                catalogue=catalogue,
                delays=delays,
                coordinators=coordinators,
                clock=self._clock,
            )
        )
        verification = Verification(replicas, coordinators.elsewhere)
        redirection = Redirection(replicas, verification, lambda: controller.image)
        dispatcher = Dispatcher(
            ProduceHandler(replicas, verification, redirection, Leaders(lambda: controller.image), in_sync.look_soon),
            fetch_handler,
            families,
            requests,
            config.limits,
        )
        listener = Listener(config.broker.listen, config.limits, dispatcher.handle)
        self._closers.append(listener.close)
        self.kafka_address = listener.bind()
        self._on_close(fetch_handler.close)
        self._on_close(coordinators.release)
        followers = Followers(
            replicas, lambda: controller.image, _fetch_rules(config), config.cluster.move_bytes_per_second or None
        )
        self._closers.append(followers.close)
        self._on_close(controller.subscribe(followers.image_changed))
        await membership.join(self._info(broker_id))
        await replicas.begin()
        in_sync.start()
        await replicas.applied()
        # From here on: coordinators wait for followers, and those have to be served for that.
        listener.start()
        await coordinators.start()
        caretaker = Caretaker(broker_id, coordination, controller, membership, folder, config.cluster, self._clock)
        self._closers.append(caretaker.close)
        await caretaker.start()
        readers = Readers(broker_id, controller, coordinators, peers)
        archive = ArchiveHold(readers)
        upkeep = Upkeep(replicas, archive, config.log)
        self._closers.append(upkeep.close)
        upkeep.start()
        retirement = Retirement(controller, replicas, catalogue, readers, config.log.retention_check_ms)
        self._closers.append(retirement.close)
        retirement.start()
        self._closers.append(caretaker.resign)
        self._closers.append(partial(_leave, membership))
        # Before it resigns: the next leaders would wait for a follower that they have just heard from.
        self._closers.append(followers.close)

        metrics = Metrics(requests)
        _register_metrics(metrics, listener, fetch_handler, replicas, segmented)
        _register_views(metrics, catalogue.effort)
        register_delays(metrics, delays)
        metrics.register_counter(
            "penstock_archive_lost_bytes",
            "Bytes deleted by retention that no archive has.",
            lambda: archive.lost_bytes,
        )
        GroupReadings(coordinators.groups, controller, replicas, catalogue, config.groups.lag_series).register(metrics)
        http = HttpServer(*config.broker.http, metrics.exposition, self._health, self._ready)
        self._closers.append(http.close)
        self.http_address = await http.start()

        self._is_ready = True
        self._on_close(self._not_ready)
        logger.info(
            "broker is ready",
            extra=fields(
                id=broker_id,
                listen=str(self.kafka_address),
                http=str(self.http_address),
                data=str(config.broker.data),
                topics=len(controller.image.topics),
            ),
        )

    async def _open_coordination(self, folder: DataFolder) -> Coordination:
        settings = self._config.cluster
        if settings.coordinator is None:
            return await EmbeddedCoordination.open(folder.path / COORDINATION_FILE)
        # Not loaded by a broker that is alone: its library is a part of its own of the package.
        from penstock.cluster.zookeeper import ZooKeeperCoordination

        servers, chroot = settings.coordinator
        return await ZooKeeperCoordination.open(servers, chroot, settings.lease_ms, self._clock)

    def _effective(self, topic: TopicImage, image: MetadataImage) -> TopicConfig:
        dynamic = image.settings_of(BrokerId(self._config.broker.id))
        return topic_config(topic.overrides, topic_defaults(self._config.topic, dynamic))

    def _info(self, broker_id: BrokerId) -> BrokerInfo:
        told = self._config.broker.advertised or self.kafka_address
        return BrokerInfo(broker_id, told.host, told.port, self._config.broker.rack)

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


def _nearest(controller: Controller, partition: Partition, rack: str) -> int:
    """A replica in sync in the rack of the one who asks, unless that is the leader's own (KIP-392)."""
    brokers, leadership = controller.image.brokers, partition.leadership
    if leadership is None or brokers[leadership.me].rack == rack:
        return NO_REPLICA
    near = [found for found in leadership.in_sync if found in controller.image.alive and brokers[found].rack == rack]
    return min(near, default=NO_REPLICA)


def _register_metrics(
    metrics: Metrics, listener: Listener, fetches: FetchHandler, replicas: Replicas, engine: SegmentedEngine
) -> None:
    metrics.register_gauge("penstock_connections", "Connections open.", lambda: listener.connections)
    metrics.register_counter("penstock_connections_accepted", "Connections accepted.", lambda: listener.accepted)
    metrics.register_counter("penstock_connections_refused", "Connections over a limit.", lambda: listener.refused)
    metrics.register_gauge(
        "penstock_request_bytes_held", "Bytes of large requests in memory.", lambda: listener.request_bytes_held
    )
    metrics.register_gauge("penstock_parked_fetches", "Fetches that wait for data.", lambda: fetches.parked)
    metrics.register_gauge("penstock_open_files", "Segment files open.", lambda: len(engine.open_segments))
    metrics.register_gauge(
        "penstock_unwritten_bytes", "Bytes not handed to the disk yet.", lambda: engine.outstanding.bytes
    )
    for name, text, read in _LOG_GAUGES:
        metrics.register_gauges(name, text, ("topic", "partition"), partial(_of_every_log, replicas, read))


def _register_views(metrics: Metrics, effort: Effort) -> None:
    metrics.register_counter(
        "penstock_view_looked_at_bytes", "Bytes read and taken apart for views.", lambda: effort.looked_at_bytes
    )
    metrics.register_counter("penstock_view_shown_bytes", "Bytes that views showed.", lambda: effort.shown_bytes)


def _of_every_log(replicas: Replicas, read: Callable[[Log], float]) -> list[LabelledValue]:
    return [
        ((found.topic_partition.topic, str(found.topic_partition.partition)), read(found.log)) for found in replicas
    ]


_LOG_GAUGES: tuple[tuple[str, str, Callable[[Log], float]], ...] = (
    ("penstock_log_size_bytes", "Bytes of a partition.", lambda log: log.size_bytes),
    ("penstock_log_start_offset", "Lowest offset of a partition.", lambda log: log.start_offset),
    ("penstock_log_end_offset", "Next offset of a partition.", lambda log: log.end_offset),
)
