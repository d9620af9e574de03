"""What a broker is in a cluster, without the broker: its metadata, its membership, its candidacy for controller."""

from __future__ import annotations

from pathlib import Path

from kazoo.client import KazooClient

from penstock.clock import Clock, SystemClock
from penstock.cluster.controller.controller import Controller
from penstock.cluster.coordination.zookeeper import ZooKeeperCoordination
from penstock.cluster.decisions.topics import ReplicaAssignment, TopicCreation
from penstock.cluster.folder import DataFolder, FolderIdentity
from penstock.cluster.membership import Membership
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.cluster import ClusterSettings
from penstock.ids import BrokerId, TopicPartition

LOOK_MS = 20
LEASE_MS = 300
"""How long half of the time is that a number in use is waited for."""


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


class Member:
    """One of several in this process; it dies without a word, as a process does, or leaves in an orderly way."""

    def __init__(self, number: int, tree: ZooKeeperCoordination, path: Path, lease_ms: int = LEASE_MS) -> None:
        self.id = BrokerId(number)
        self.tree = tree
        self.folder = DataFolder(path)
        identity = self.folder.identity(self.id)
        self.metadata = MetadataChanges(
            tree, MetadataSettings(None if identity is None else identity.cluster_id, self.id)
        )
        self.membership = Membership(tree, self.metadata, self.folder, lease_ms)
        self.controller: Controller | None = None

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    async def join(
        self,
        *,
        rack: str | None = None,
        settings: ClusterSettings | None = None,
        clock: Clock | None = None,
        has_shared_storage: bool = False,
    ) -> None:
        """With settings it stands for election too."""
        image = await self.metadata.start()
        if self.folder.identity(self.id) is None:
            self.folder.belong_to(FolderIdentity(image.cluster_id, self.id))
        await self.membership.join(
            BrokerInfo(self.id, "127.0.0.1", 9000 + self.id, rack, has_shared_storage=has_shared_storage)
        )
        if settings is not None:
            self.controller = Controller(
                self.id,
                self.tree,
                self.metadata,
                self.membership,
                self.folder,
                settings,
                clock or SystemClock(),
                LOOK_MS,
            )
            await self.controller.start()

    async def die(self) -> None:
        """Dying twice is allowed."""
        if self.controller is not None:
            await self.controller.close()
        await self.membership.close()
        await self.metadata.close()
        await self.tree.close()
        self.folder.close()

    async def leave(self) -> None:
        await self.membership.resign()
        if self.controller is not None:
            await self.controller.resign()
        self.folder.end_life()
        await self.die()

    def lose_session(self) -> None:
        """As if ZooKeeper had not heard from this member for too long."""
        twin = KazooClient(hosts=self.tree._session.servers, client_id=self.tree._session._client.client_id)
        twin.start()
        twin.stop()
        twin.close()

    async def create(self, name: str, *replicas: tuple[int, ...]) -> None:
        """A topic with a partition for each of these sets of replicas."""
        assignments = tuple(ReplicaAssignment(index, ids(*numbers)) for index, numbers in enumerate(replicas))
        results = await self.metadata.create_topics([TopicCreation(name, assignments=assignments)])
        result = results[name]
        if isinstance(result, Exception):
            raise result

    async def create_anywhere(self, name: str, partitions: int, factor: int) -> None:
        results = await self.metadata.create_topics([TopicCreation(name, partitions, factor)])
        result = results[name]
        if isinstance(result, Exception):
            raise result

    async def put_in_sync(self, name: str, index: int, *in_sync: int) -> None:
        """What this member would say as the leader."""
        await self.metadata.refresh()
        epoch = self.partition(name, index).leader_epoch
        await self.metadata.put_in_sync({TopicPartition(name, index): (epoch, ids(*in_sync))})

    def partition(self, name: str, index: int = 0) -> PartitionImage:
        return self.image.topics[name].partitions[index]
