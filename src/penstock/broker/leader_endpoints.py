"""The leader and its endpoint in the response to a producer that came to the wrong broker (KIP-951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.cluster.metadata import MetadataImage
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol.produce import NodeEndpoint, ProduceResult

_LEADER_MAY_BE_ANOTHER = (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class LeaderEndpoints:
    """The leaders of partitions, as the latest metadata has them."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def named_in(self, result: ProduceResult) -> ProduceResult:
        """With the leader that has to be asked, if that may be what is wrong and it is known."""
        if result.error_code not in _LEADER_MAY_BE_ANOTHER:
            return result
        image = self._image()
        topic = image.topics.get(result.topic)
        if topic is None or result.index >= len(topic.partitions):
            return result
        partition = topic.partitions[result.index]
        if partition.leader not in image.alive:
            return result
        return result._replace(current_leader=(partition.leader, partition.leader_epoch))

    def endpoints(self, results: Iterable[ProduceResult], listener: str) -> list[NodeEndpoint]:
        """Where a client of this listener reaches the leaders that these results name."""
        brokers = self._image().brokers
        named = {BrokerId(result.current_leader[0]) for result in results if result.current_leader is not None}
        found = [brokers[broker] for broker in sorted(named) if broker in brokers]
        return [
            NodeEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in found
            if (endpoint := broker.endpoint(listener)) is not None
        ]
