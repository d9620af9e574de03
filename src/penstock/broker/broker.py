"""The assembly of a broker: everything is made here, handed to whom it belongs, started in order and stopped in
reverse.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from penstock.broker.coordinators import Coordinators
from penstock.broker.dispatch import Dispatcher
from penstock.broker.families import Collaborators, Families
from penstock.broker.group_metrics import GroupReadings
from penstock.broker.handlers.fetch import FetchHandler
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.http import HttpServer
from penstock.broker.metrics import LabelledValue, Metrics, RequestMetrics
from penstock.broker.upkeep import Upkeep
from penstock.broker.verification import Verification
from penstock.clock import Clock, SystemClock
from penstock.cluster.controller import Controller, ControllerSettings
from penstock.cluster.embedded import EmbeddedCoordination
from penstock.cluster.folder import DataFolder
from penstock.cluster.metadata import BrokerInfo, MetadataImage, TopicImage
from penstock.cluster.settings import topic_defaults
from penstock.config.loader import Loaded
from penstock.config.topic import TopicConfig, topic_config
from penstock.ids import BrokerId
from penstock.logs import fields
from penstock.net.listener import Listener
from penstock.protocol import apis
from penstock.replication.replicas import Replicas
from penstock.storage.contract import Log
from penstock.storage.memory import MemoryEngine
from penstock.storage.segmented.engine import SegmentedEngine

logger = logging.getLogger(__name__)

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
        identity = folder.identify(broker_id)
        coordination = await EmbeddedCoordination.open(folder.path / COORDINATION_FILE)
        self._closers.append(coordination.close)
        controller = Controller(coordination, ControllerSettings.of(config, identity.cluster_id))
        self._closers.append(controller.close)
        await controller.start()

        segmented = SegmentedEngine(folder.path / LOGS_FOLDER, config.log, config.limits, self._clock)
        memory = MemoryEngine(config.log, config.limits, self._clock)
        replicas = Replicas(broker_id, {"segmented": segmented, "memory": memory}, self._effective)
        self._closers.append(replicas.close)
        await replicas.open(controller.image)
        self._on_close(controller.subscribe(replicas.change))

        upkeep = Upkeep(replicas, config.log)
        self._closers.append(upkeep.close)
        upkeep.start()

        requests = RequestMetrics({api.key: api.name for api in apis.APIS.values()})
        fetch_handler = FetchHandler(
            replicas, config.limits.fetch_bytes, config.limits.parked_fetches, config.limits.idle_connection_ms
        )
        coordinators = Coordinators(controller, replicas, config, self._clock)
        self._closers.append(coordinators.close)
        await coordinators.start()
        families = Families(
            Collaborators(
                loaded=self._loaded,
                broker_id=broker_id,
                controller=controller,
                replicas=replicas,
                coordinators=coordinators,
                clock=self._clock,
            )
        )
        dispatcher = Dispatcher(
            ProduceHandler(replicas, Verification(replicas, coordinators.transactions)),
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
        await controller.register_broker(self._info(broker_id))
        await replicas.applied()

        metrics = Metrics(requests)
        _register_metrics(metrics, listener, fetch_handler, replicas, segmented)
        GroupReadings(coordinators.groups, controller, replicas, config.groups.lag_series).register(metrics)
        http = HttpServer(*config.broker.http, metrics.exposition, self._health, self._ready)
        self._closers.append(http.close)
        self.http_address = await http.start()

        listener.start()
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


def _of_every_log(replicas: Replicas, read: Callable[[Log], float]) -> list[LabelledValue]:
    return [
        ((found.topic_partition.topic, str(found.topic_partition.partition)), read(found.log)) for found in replicas
    ]


_LOG_GAUGES: tuple[tuple[str, str, Callable[[Log], float]], ...] = (
    ("penstock_log_size_bytes", "Bytes of a partition.", lambda log: log.size_bytes),
    ("penstock_log_start_offset", "Lowest offset of a partition.", lambda log: log.start_offset),
    ("penstock_log_end_offset", "Next offset of a partition.", lambda log: log.end_offset),
)
