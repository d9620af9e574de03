"""Committed offsets of groups that another broker coordinates.

A member asks for them once it has its partitions. If the coordinator has moved in that moment, the member asks the
former one, and NOT_COORDINATOR is the right answer. librdkafka does not ask again: it never reads these partitions,
until the next rebalance. So the former coordinator asks the new one, and gives its answer on.
"""

from __future__ import annotations

from penstock.broker.peers import Peers
from penstock.cluster.metadata import OFFSETS_TOPIC
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.errors import Code, PeerError
from penstock.ids import BrokerId
from penstock.protocol.apis import OFFSET_FETCH
from penstock.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from penstock.replication.placement import partition_for

_GROUPS_FROM = 8
"""The first version of OffsetFetch that asks for groups by name."""


class RemoteGroups:
    """Asks other brokers about their groups."""

    def __init__(self, me: BrokerId, metadata: MetadataChanges, peers: Peers) -> None:
        self._me = me
        self._metadata = metadata
        self._peers = peers

    async def offsets(
        self, group: OffsetFetchRequestGroup, version: int, *, require_stable: bool
    ) -> OffsetFetchResponseGroup | None:
        """What the coordinator answers; None if there is none, it does not answer, or says that it is none either."""
        image = self._metadata.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        leader = topic.partitions[partition_for(group.group_id, len(topic.partitions))].leader
        if leader == self._me or leader not in image.alive:
            return None
        request = OffsetFetchRequest(groups=(group,), require_stable=require_stable)
        try:
            response = await self._peers.call(leader, OFFSET_FETCH, max(version, _GROUPS_FROM), request)
        except PeerError:
            return None
        (answer,) = response.groups
        assert isinstance(answer, OffsetFetchResponseGroup)
        return None if answer.error_code == Code.NOT_COORDINATOR else answer
