"""Which groups have committed an offset in a partition, whichever brokers coordinate them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.broker.coordinators import Coordinators
from penstock.broker.peers import Peers
from penstock.cluster.metadata import OFFSETS_TOPIC
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import PeerError
from penstock.ids import BrokerId, TopicPartition
from penstock.protocol.apis import LIST_GROUPS, OFFSET_FETCH
from penstock.replication.placement import partition_for

_LIST_VERSION = 5
_FETCH_VERSION = 8
_GROUPS_A_REQUEST = 100


class ReaderGroups:
    """The readers of partitions, as one broker of the cluster sees them."""

    def __init__(self, me: BrokerId, metadata: MetadataChanges, coordinators: Coordinators, peers: Peers) -> None:
        self._me = me
        self._metadata = metadata
        self._coordinators = coordinators
        self._peers = peers

    async def committed(self, at: TopicPartition) -> Mapping[str, int] | None:
        """The committed offset of each group; None while that cannot be said for all of them."""
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return {}
        found: dict[str, int] = {}
        for leader in {partition.leader for partition in topic.partitions}:
            part = self._local(at) if leader == self._me else await self._remote(leader, at)
            if part is None:
                return None
            found |= part
        return found

    async def committed_by(self, group: str, at: TopicPartition) -> int | None:
        """The committed offset of one group; None if it has none, or that cannot be said now."""
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        leader = topic.partitions[partition_for(group, len(topic.partitions))].leader
        part = self._local(at) if leader == self._me else await self._remote(leader, at, [group])
        return None if part is None else part.get(group)

    def _local(self, at: TopicPartition) -> Mapping[str, int] | None:
        coordinator = self._coordinators.groups.coordinator()
        if coordinator.loading:
            return None
        return {group: offsets[at].offset for group, offsets in coordinator.committed() if at in offsets}

    async def _remote(
        self, broker: BrokerId, at: TopicPartition, names: Sequence[str] | None = None
    ) -> Mapping[str, int] | None:
        """What another broker says of these groups, or of all that it coordinates."""
        from penstock.protocol.messages.list_groups import ListGroupsRequest
        from penstock.protocol.messages.offset_fetch import (
            OffsetFetchRequest,
            OffsetFetchRequestGroup,
            OffsetFetchRequestTopics,
        )

        wanted = (OffsetFetchRequestTopics(name=at.topic, partition_indexes=(at.partition,)),)
        found: dict[str, int] = {}
        try:
            if names is None:
                listed = await self._peers.call(broker, LIST_GROUPS, _LIST_VERSION, ListGroupsRequest())
                if listed.error_code:
                    return None
                names = [group.group_id for group in listed.groups]
            for first in range(0, len(names), _GROUPS_A_REQUEST):
                asked = tuple(
                    OffsetFetchRequestGroup(group_id=name, topics=wanted)
                    for name in names[first : first + _GROUPS_A_REQUEST]
                )
                answer = await self._peers.call(broker, OFFSET_FETCH, _FETCH_VERSION, OffsetFetchRequest(groups=asked))
                for group in answer.groups:
                    if group.error_code:
                        return None
                    (told,) = group.topics[0].partitions
                    if told.error_code:
                        return None
                    if told.committed_offset >= 0:
                        found[group.group_id] = told.committed_offset
        except PeerError:
            return None
        return found
