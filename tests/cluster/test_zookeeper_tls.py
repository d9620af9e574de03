"""Brokers that reach ZooKeeper through TLS: both sides show a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from penstock.clock import SystemClock
from penstock.cluster.coordination.zookeeper import ZooKeeperCoordination
from penstock.cluster.coordination.zookeeper_session import ZooKeeperTls
from penstock.errors import CoordinationError
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.waiting import PATIENCE_S
from support.zookeeper import ZooKeeperProcess


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    certificate, key = authority.sign("zookeeper")
    both = certificate.with_name("zookeeper-both.pem")
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    secure = {
        "ssl.keyStore.location": both,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": authority.file,
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "ssl.hostnameVerification": "false",
    }
    process = ZooKeeperProcess(tmp_path_factory.mktemp("secure-zookeeper") / "zk", secure=secure)
    try:
        yield process.start()
    finally:
        process.kill()


def test_a_broker_lives_on_a_secured_zookeeper(server: ZooKeeperProcess, authority: Authority, tmp_path: Path) -> None:
    settings = {
        "cluster.coordinator": f"zk://{server.secure_address}/secured",
        "cluster.coordinator_tls": True,
        **tls_settings(authority),
    }
    broker = BrokerProcess(tmp_path / "broker", settings)
    try:
        broker.start()
        assert AdminClient({"bootstrap.servers": broker.kafka}).list_topics(timeout=PATIENCE_S).brokers
        assert broker.stop() == 0
    finally:
        broker.kill()


async def test_a_server_of_another_authority_is_not_trusted(server: ZooKeeperProcess, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    tls = ZooKeeperTls(stranger.file, *stranger.sign("client"))
    with pytest.raises(CoordinationError):
        await ZooKeeperCoordination.open(server.secure_address, "/x", 10_000, SystemClock(), 3_000, tls)


async def test_a_client_without_a_certificate_is_refused(server: ZooKeeperProcess, authority: Authority) -> None:
    with pytest.raises(CoordinationError):
        tls = ZooKeeperTls(authority.file)
        await ZooKeeperCoordination.open(server.secure_address, "/x", 10_000, SystemClock(), 3_000, tls)
