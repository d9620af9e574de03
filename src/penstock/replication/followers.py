"""The fetchers of this broker: one for each broker that leads something which is followed here.

New replicas, and those that their topic names for it, are copied no faster than this broker may, over all its fetchers,
and no faster from each leader than that one lets (`config/throttle.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.cluster.metadata import MetadataImage
from penstock.config.setting import Setting
from penstock.config.throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, names_replica
from penstock.ids import BrokerId, TopicPartition
from penstock.net.peer import Peer
from penstock.replication.copying import Copying
from penstock.replication.fetcher import Fetcher, FetchRules, Pace
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.replication.throttle import Throttle

_SLACK_S = 5.0
"""How much longer than the leader may wait an answer may take."""


class Followers:
    """Keeps the fetchers in step with who leads what."""

    def __init__(
        self,
        replicas: Replicas,
        image: Callable[[], MetadataImage],
        rules: FetchRules,
        bytes_per_second: int | None,
    ) -> None:
        """`bytes_per_second`: for new replicas, where the cluster's settings say nothing; None for no limit."""
        self._replicas = replicas
        self._image = image
        self._rules = rules
        self._throttle = Throttle(lambda: self._rate(replicas.broker, FOLLOWER_RATE, bytes_per_second))
        self._fetchers: dict[tuple[BrokerId, str, int], Fetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_due = False
        replicas.on_role(self._role_changed)

    def start(self) -> None:
        self._arrange()

    async def close(self) -> None:
        fetchers, self._fetchers = self._fetchers, {}
        self._is_due = True  # nothing is arranged any more
        for fetcher in fetchers.values():
            await fetcher.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """A broker that is back may be found elsewhere; somebody may be slowed, or no more."""
        self._look_again()
        if old.brokers != new.brokers:
            self._arrange_soon()

    def _role_changed(self, partition: Partition) -> None:
        # At once: who does not follow any more must not be taken for one that still does.
        self._look_again()
        self._arrange_soon()

    def _look_again(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.look_again()

    def _arrange_soon(self) -> None:
        """Once for all partitions that change together."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._arrange)

    def _arrange(self) -> None:
        self._is_due = False
        image = self._image()
        wanted = {}
        for leader, partitions in self._replicas.followed().items():
            broker = image.brokers.get(leader)
            if broker is not None:
                wanted[leader, broker.host, broker.port] = partitions
        for gone in self._fetchers.keys() - wanted.keys():
            closing = asyncio.get_running_loop().create_task(self._fetchers.pop(gone).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for key, partitions in wanted.items():
            fetcher = self._fetchers.get(key)
            if fetcher is None:
                fetcher = self._fetchers[key] = self._new_fetcher(*key)
            fetcher.follow({at: Copying(partition) for at, partition in partitions.items()})

    def _new_fetcher(self, leader: BrokerId, host: str, port: int) -> Fetcher:
        me = self._replicas.broker
        peer = Peer(
            host,
            port,
            f"penstock-{me}",
            max_answer_bytes=self._rules.answer_bytes * 2 + (1 << 20),
            timeout_s=self._rules.wait_ms / 1000 + _SLACK_S,
        )
        throttles = (self._throttle, Throttle(lambda: self._rate(leader, LEADER_RATE, None)))
        pace = Pace(is_slowed=self._is_slowed, throttles=throttles)
        return Fetcher(me, self._broker_epoch, peer, f"follow broker {leader}", self._rules, pace)

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
