"""Everything that protects a cluster is exchanged while clients write and read: not one request fails."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from support.certificates import Authority
from support.cluster import Cluster
from support.sasl import connect
from support.secured import (
    IMPATIENT,
    Secured,
    add_acls,
    admin_client,
    bindings,
    let_in,
    set_password,
    wait_until_let_in,
)
from support.traffic import Traffic
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

PARTITIONS = 3
SETTINGS = {
    # Connections outlive several sessions: what was exchanged is asked for again and again.
    "security.max_session_ms": 3_000,
    "security.failed_login_delay_ms": 10,
    "security.failed_login_max_delay_ms": 20,
}


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    return Secured(tmp_path)


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, secured: Secured, tmp_path: Path) -> Iterator[Cluster]:
    settings = {**IMPATIENT, **SETTINGS, **secured.settings()}
    tree = f"{zookeeper.address}/{tmp_path.name}"
    with Cluster(tmp_path, tree, settings=settings, access=secured.admin) as running:
        yield running


def test_certificates_passwords_and_permissions_are_exchanged_under_load(
    cluster: Cluster, secured: Secured, tmp_path: Path, topic: str
) -> None:
    group = f"group-of-{topic}"
    new_authority = Authority(tmp_path / "new-ca", "new authority")
    # Clients trust both authorities from the beginning on, as in any change from one to the other.
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(secured.authority.file.read_text() + new_authority.file.read_text())
    cluster.access = replace(secured.admin, ca_file=trusted)
    admin = admin_client(cluster.kafka)
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result()
    writer, reader = (replace(secured.user(name, "first"), ca_file=trusted) for name in ("writer", "reader"))
    writes = [(ResourceType.TOPIC, topic, AclOperation.WRITE)]
    reads = [(ResourceType.TOPIC, topic, AclOperation.READ), (ResourceType.GROUP, group, AclOperation.READ)]
    let_in(cluster.kafka, writer, writes)
    let_in(cluster.kafka, reader, reads)
    servers = cluster.kafka.partition("@")[2].partition("?")[0]
    with Traffic(writer.at(servers), reader.at(servers), topic, PARTITIONS, group) as traffic:
        traffic.wait_for_more()

        # Certificates, and who signs them: first all trust both, then all show the new one, then the old is forgotten.
        shutil.copy(trusted, secured.authority.file)
        _read_again(cluster)
        certificate, key = new_authority.sign("broker")
        shutil.copy(certificate, str(secured.certificate["security.certificate_file"]))
        shutil.copy(key, str(secured.certificate["security.key_file"]))
        _read_again(cluster)
        for address in _addresses(cluster):
            until(lambda at=address: _is_trusted(at, new_authority.file), f"{address} shows the new certificate")
        shutil.copy(new_authority.file, secured.authority.file)
        _read_again(cluster)
        _restart(cluster, cluster.leader(topic))
        traffic.wait_for_more()

        # Passwords: of clients, and of the brokers' own user.
        renewed = [replace(each, password="second") for each in (writer, reader)]
        for each in renewed:
            set_password(admin, each.user, each.password)
        traffic.log_in_as(*(each.at(servers) for each in renewed))
        wait_until_let_in(renewed, _addresses(cluster))
        secured.brokers_password_file.write_text("another one among brokers\n")
        _read_again(cluster)
        _restart(cluster, cluster.leader(topic))
        traffic.wait_for_more()
        for each in (writer, reader):
            for address in _addresses(cluster):
                with pytest.raises(ConnectionError):
                    connect(each, address)

        # Permissions: those for names that begin so take the place of those for one topic and one group.
        prefix = ResourcePatternType.PREFIXED
        new = [
            *bindings("writer", [(kind, topic[:-1], operation) for kind, _, operation in writes], prefix),
            *bindings("reader", [(kind, name[:-1], operation) for kind, name, operation in reads], prefix),
        ]
        add_acls(admin, new)
        old = [_filter(each) for each in (*bindings("writer", writes), *bindings("reader", reads))]
        assert all(len(removed.result()) == 1 for removed in admin.delete_acls(old).values())
        _restart(cluster, cluster.leader(topic))
        traffic.wait_for_more()

        assert traffic.finish() > 300
    for number in cluster.alive():
        assert cluster.brokers[number].metric("penstock_sessions_expired_total") == 0


def _read_again(cluster: Cluster) -> None:
    """All of the brokers read their files again; returns when they say so."""
    before = {number: _times_read(cluster, number) for number in cluster.alive()}
    for number in before:
        cluster.brokers[number].signal(signal.SIGHUP)
    for number, times in before.items():
        until(lambda n=number, t=times: _times_read(cluster, n) > t, f"broker {number} has read its files again")


def _times_read(cluster: Cluster, number: int) -> int:
    log = cluster.brokers[number].log
    return min(log.count("certificates were read again"), log.count("users were read again"))


def _restart(cluster: Cluster, number: int) -> None:
    """All connections to it are made anew."""
    cluster.stop(number)
    cluster.start_again(number)
    cluster.wait_until_whole()


def _addresses(cluster: Cluster) -> list[tuple[str, int]]:
    return [broker.address for broker in cluster.brokers.values()]


def _is_trusted(address: tuple[str, int], ca_file: Path) -> bool:
    context = ssl.create_default_context(cafile=str(ca_file))
    with (
        suppress(OSError),
        socket.create_connection(address, PATIENCE_S) as sock,
        context.wrap_socket(sock, server_hostname=address[0]),
    ):
        return True
    return False


def _filter(binding: AclBinding) -> AclBindingFilter:
    """That it matches, and nothing else."""
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
