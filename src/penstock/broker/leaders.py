"""Where producers that came to the wrong broker find the right one, in the answer that turns them away (KIP-951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.cluster.metadata import MetadataImage
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.protocol.produce import Endpoint, ProduceResult


class Leaders:
    """Who leads what, as the latest metadata has it."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def named_in(self, result: ProduceResult) -> ProduceResult:
        """With the leader that was to be asked, if that is what is wrong and it is known."""
        if result.error_code != Code.NOT_LEADER_OR_FOLLOWER:
            return result
        image = self._image()
        topic = image.topics.get(result.topic)
        if topic is None or result.index >= len(topic.partitions):
            return result
        partition = topic.partitions[result.index]
        if partition.leader not in image.alive:
            return result
        return result._replace(current_leader=(partition.leader, partition.leader_epoch))

    def endpoints(self, results: Iterable[ProduceResult]) -> list[Endpoint]:
        """Where the leaders are that these results name."""
        brokers = self._image().brokers
        named = {BrokerId(result.current_leader[0]) for result in results if result.current_leader is not None}
        found = [brokers[broker] for broker in sorted(named) if broker in brokers]
        return [Endpoint(broker.id, broker.host, broker.port, broker.rack) for broker in found]
