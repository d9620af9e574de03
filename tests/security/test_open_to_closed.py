"""The walk of "From open to closed" in `docs/security.md`, on three brokers with clients that go on all the time."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from penstock.protocol import apis
from penstock.protocol.messages.metadata import MetadataRequest
from support.access import Access, librdkafka
from support.cluster import Cluster
from support.ports import free_ports
from support.programs import PENSTOCK, run
from support.secured import IMPATIENT, Secured, admin_client
from support.traffic import Traffic
from support.wire import Wire
from support.zookeeper import ZooKeeperProcess

PARTITIONS = 3


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=IMPATIENT) as running:
        yield running


class Walk:
    """Restarts the brokers one after the other, each with what a step changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.secured_ports = dict(zip(cluster.numbers, free_ports(len(cluster.numbers)), strict=True))

    @property
    def secured(self) -> str:
        """The second listeners of all brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.secured_ports.values())

    def change(self, settings: Mapping[str, object]) -> None:
        for number, broker in self._cluster.brokers.items():
            broker.settings |= settings
            self._restart(number)

    def add_listener(self, settings: Mapping[str, object]) -> None:
        for number, broker in self._cluster.brokers.items():
            broker.settings |= settings
            broker.listen = f"PLAINTEXT://{broker.kafka},SASL_SSL://127.0.0.1:{self.secured_ports[number]}"
            self._restart(number)

    def close_the_open_one(self, access: Access) -> None:
        # From here on there is nothing to ask without a login.
        self._cluster.access = access
        for number, broker in self._cluster.brokers.items():
            broker.kafka = f"127.0.0.1:{self.secured_ports[number]}"
        for number, broker in self._cluster.brokers.items():
            broker.listen = f"SASL_SSL://{broker.kafka}"
            self._restart(number)

    def _restart(self, number: int) -> None:
        self._cluster.stop(number)
        self._cluster.start_again(number)
        self._cluster.wait_until_whole()


def test_a_cluster_is_closed_while_its_clients_go_on(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    secured = Secured(tmp_path)
    walk = Walk(cluster)
    open_servers = cluster.kafka
    open_addresses = [broker.address for broker in cluster.brokers.values()]
    creator = admin_client(open_servers)
    creator.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result()
    alice, bob = secured.user("alice", "of alice"), secured.user("bob", "of bob")
    group = f"group-of-{topic}"
    with Traffic(open_servers, open_servers, topic, PARTITIONS, f"open-{group}") as before:
        before.wait_for_more()

        # 1. A second listener, and what brokers need to log in to each other.
        walk.add_listener(secured.logins)
        before.wait_for_more()

        # 2. Users; clients move to the second listener.
        command = Penstock(secured, walk.secured, tmp_path)
        for access in (alice, bob):
            file = tmp_path / f"password-of-{access.user}"
            file.write_text(access.password)
            command("user", "add", access.user, "--password-file", str(file))
        with Traffic(alice.at(walk.secured), bob.at(walk.secured), topic, PARTITIONS, group) as after:
            after.wait_for_more()
            assert before.finish() > 100

            # 3. Brokers log in to each other.
            walk.change({"security.protocols": "INTER_BROKER:SASL_SSL"})
            after.wait_for_more()

            # 4. The open listener is closed.
            walk.close_the_open_one(secured.admin)
            after.wait_for_more()
            for address in open_addresses:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(address, 5)

            # 5. Permissions. What all may do is said first: the first ACL of a topic closes it to all others.
            walk.change({"security.authorizer": "acls", "security.allow_everyone_if_no_acl_found": "true"})
            command("acl", "add", "admin", "ALL", "--cluster")
            everything = (("--topic", "*"), ("--group", "*"))
            for resource in everything:
                command("acl", "add", "*", "ALL", *resource)
            command("acl", "add", "alice", "WRITE", "--topic", topic)
            command("acl", "add", "bob", "READ", "--topic", topic)
            command("acl", "add", "bob", "READ", "--group", group)
            after.wait_for_more()
            for resource in everything:
                command("acl", "remove", "*", *resource, "--yes")
            after.wait_for_more()
            walk.change({"security.allow_everyone_if_no_acl_found": "false"})
            after.wait_for_more()
            assert after.finish() > 300
    _check_closed(cluster, alice.at(walk.secured), topic)


class Penstock:
    """The command, as the admin and through the second listeners."""

    def __init__(self, secured: Secured, servers: str, folder: Path) -> None:
        self._servers = servers
        self._config = folder / "admin.properties"
        settings = librdkafka(secured.admin.at(servers))
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def __call__(self, *words: str) -> None:
        done = run([PENSTOCK, "-b", self._servers, "--command-config", str(self._config), *words])
        assert done.returncode == 0, done.stderr.decode()


def _check_closed(cluster: Cluster, alice: str, topic: str) -> None:
    """Strangers get nothing anywhere, and users what they were given."""
    for broker in cluster.brokers.values():
        between = re.findall(r"INTER_BROKER://127\.0\.0\.1:(\d+)", broker.log)[-1]
        for address in (broker.address, ("127.0.0.1", int(between))):
            with Wire(address) as stranger, pytest.raises((EOFError, OSError)):
                stranger.ask(apis.METADATA, 12, MetadataRequest(topics=None))
    client = admin_client(alice)
    assert topic in client.list_topics(timeout=30).topics
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        client.delete_topics([topic])[topic].result()
