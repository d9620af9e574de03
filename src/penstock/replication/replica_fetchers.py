"""The replica fetchers of this broker: one for each broker that leads partitions which this one follows.

New replicas, and those that their topic names for it, are copied no faster than this broker may copy over all its
fetchers together, and no faster from a leader than that leader allows (`config/throttle.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.cluster.metadata import ListenerEndpoint, MetadataImage
from penstock.config.setting import Setting
from penstock.config.throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, names_replica
from penstock.ids import BrokerId, TopicPartition, broker_client_id
from penstock.net.peer import Peer, PeerSecurity
from penstock.replication.follower_replica import FollowerReplica
from penstock.replication.partition import Partition
from penstock.replication.replica_fetcher import FetchRules, Pace, ReplicaFetcher
from penstock.replication.replicas import Replicas
from penstock.replication.throttle import Throttle

_ARRANGE_EVERY_S = 0.02
"""Every arrangement looks at all partitions, so it waits a little while the roles of many change one by one."""
_SLACK_S = 5.0
"""How much longer than the leader may wait an answer may take."""


class ReplicaFetchers:
    """Keeps the fetchers in step with who leads what."""

    def __init__(
        self,
        replicas: Replicas,
        image: Callable[[], MetadataImage],
        rules: FetchRules,
        bytes_per_second: int | None,
        security: PeerSecurity,
    ) -> None:
        """`bytes_per_second`: for new replicas, where the cluster's settings say nothing; None for no limit."""
        self._security = security
        self._replicas = replicas
        self._image = image
        self._rules = rules
        self._throttle = Throttle(lambda: self._rate(replicas.broker, FOLLOWER_RATE, bytes_per_second))
        self._fetchers: dict[tuple[BrokerId, ListenerEndpoint], ReplicaFetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_due = False
        self._is_closed = False
        self._arranged_at = 0.0
        replicas.on_role(self._role_changed)

    def start(self) -> None:
        self._arrange()

    async def close(self) -> None:
        fetchers, self._fetchers = self._fetchers, {}
        self._is_closed = True
        for fetcher in fetchers.values():
            await fetcher.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """A broker that is back may have another address; throttles may have changed."""
        self._look_again()
        if old.brokers != new.brokers:
            self._arrange_soon()

    def _role_changed(self, partition: Partition) -> None:
        # At once: a replica that has stopped following must not be taken for one that still does.
        self._look_again()
        self._arrange_soon()

    def _look_again(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.look_again()

    def _arrange_soon(self) -> None:
        """Once for all partitions that change together."""
        if not self._is_due:
            self._is_due = True
            loop = asyncio.get_running_loop()
            loop.call_at(self._arranged_at + _ARRANGE_EVERY_S, self._arrange)

    def _arrange(self) -> None:
        if self._is_closed:
            return
        self._is_due = False
        self._arranged_at = asyncio.get_running_loop().time()
        image = self._image()
        wanted = {}
        for leader, partitions in self._replicas.followed().items():
            broker = image.brokers.get(leader)
            if broker is not None:
                wanted[leader, broker.inter_broker_endpoint] = partitions
        for gone in self._fetchers.keys() - wanted.keys():
            closing = asyncio.get_running_loop().create_task(self._fetchers.pop(gone).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for key, partitions in wanted.items():
            fetcher = self._fetchers.get(key)
            if fetcher is None:
                fetcher = self._fetchers[key] = self._new_fetcher(*key)
            fetcher.follow({at: FollowerReplica(partition) for at, partition in partitions.items()})

    def _new_fetcher(self, leader: BrokerId, endpoint: ListenerEndpoint) -> ReplicaFetcher:
        me = self._replicas.broker
        peer = Peer(
            endpoint.host,
            endpoint.port,
            broker_client_id(me),
            max_answer_bytes=self._rules.answer_bytes * 2 + (1 << 20),
            timeout_s=self._rules.wait_ms / 1000 + _SLACK_S,
            tls=self._security.tls if endpoint.protocol.has_tls else None,
            login=self._security.login if endpoint.protocol.has_sasl else None,
        )
        throttles = (self._throttle, Throttle(lambda: self._rate(leader, LEADER_RATE, None)))
        pace = Pace(is_slowed=self._is_slowed, throttles=throttles)
        return ReplicaFetcher(me, self._broker_epoch, peer, f"follow broker {leader}", self._rules, pace)

    def _rate(self, broker: BrokerId, setting: Setting, otherwise: int | None) -> int | None:
        text = self._image().settings_of(broker).get(setting.name)
        if text is None:
            return otherwise
        rate = setting.parse(text)
        assert isinstance(rate, int)
        return rate

    def _is_slowed(self, at: TopicPartition) -> bool:
        """Whether a replica of this broker is new, or named by its topic, and not in sync."""
        me, topic = self._replicas.broker, self._image().topics.get(at.topic)
        if topic is None or at.partition >= len(topic.partitions):
            return False
        partition = topic.partitions[at.partition]
        if me in partition.in_sync:
            return False
        return me in partition.adding or names_replica(topic.overrides.get(FOLLOWER_REPLICAS, ""), at.partition, me)

    def _broker_epoch(self) -> int:
        me = self._image().brokers.get(self._replicas.broker)
        return me.epoch if me is not None else -1
