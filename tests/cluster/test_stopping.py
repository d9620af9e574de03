"""A broker that is told to stop stops, whoever else is away."""

from __future__ import annotations

from pathlib import Path

from penstock.protocol import apis
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from support.cluster import Cluster
from support.wire import Wire
from support.zookeeper import ZooKeeperProcess

GROUP = "workers"
COMMIT_VERSION = 7


def test_a_coordinator_stops_while_its_followers_and_zookeeper_are_away(
    own_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """The commit waits for followers that do not fetch, the broker cannot hand over, and nothing will change that."""
    settings = {"groups.offsets_partitions": 1}
    with Cluster(tmp_path / "brokers", f"{own_zookeeper.address}/stopping", settings=settings) as cluster:
        number = cluster.coordinator_of_group(GROUP)
        with Wire(cluster.brokers[number].address) as wire:
            wire.create_topic("orders")
            cluster.wait_until_whole()
            others = [other for other in cluster.numbers if other != number]
            for other in others:
                cluster.pause(other)
            own_zookeeper.kill()
            partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
            topic = OffsetCommitRequestTopic(name="orders", partitions=(partition,))
            wire.send(apis.OFFSET_COMMIT, COMMIT_VERSION, OffsetCommitRequest(group_id=GROUP, topics=(topic,)))
            assert not wire.has_answer(within_s=0.5)
            cluster.stop(number)
        assert "stopping before these changes are replicated" in cluster.brokers[number].log
