"""A broker whose disk is full, under a real client: others lead what it led, and it comes back when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from chaos.disks import Disks
from support.cluster import Cluster
from support.pulse import Pulse
from support.waiting import until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    # No follower leaves for being slow: what goes on does so because the leader has left.
    "cluster.lag_time_max_ms": 600_000,
    "cluster.balance_after_ms": 3_600_000,
}


def test_a_leader_whose_disk_is_full_leaves_its_partition_to_others_until_there_is_room(tmp_path: Path) -> None:
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper")
    zookeeper.start()
    try:
        with Disks(tmp_path) as disks:
            cluster = Cluster(tmp_path, f"{zookeeper.address}/full", settings=SETTINGS, env=disks.prepare)
            with cluster:
                if "full disk" in disks.missing:
                    pytest.skip(disks.missing["full disk"])
                admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
                placed = NewTopic("t", 1, replica_assignment=[[1, 2, 3]], config={"min.insync.replicas": "2"})
                admin.create_topics([placed])["t"].result()
                with Pulse(cluster.kafka, "t", 1) as pulse:
                    pulse.wait_for_more()
                    disks.fill(1, 0)
                    until(lambda: cluster.leader("t") in (2, 3), "another broker leads")
                    pulse.wait_for_more(50)
                    disks.make_room(1)
                    until(lambda: cluster.leader("t") == 1, "the preferred broker leads again", 60.0)
                    pulse.wait_for_more()
                    tally = pulse.finish()
                assert tally.acknowledged and tally.is_good
    finally:
        zookeeper.stop()
