"""Everything of ours that connects through TLS checks the host name, without being told to: the certificate of this
broker is for another address, and for `localhost`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from conftest import running_broker
from penstock.admin import AdminError, Cluster
from penstock.config.security import SecuritySettings
from penstock.errors import PeerError
from penstock.net.peer import Peer
from penstock.net.tls import TlsContexts
from penstock.protocol import apis
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[BrokerProcess]:
    certificate, key = authority.sign("elsewhere", host="127.0.0.9")
    files = {"security.certificate_file": certificate, "security.key_file": key, "security.ca_file": authority.file}
    with running_broker(tmp_path_factory.mktemp("broker"), {"security.protocols": "PLAINTEXT:SSL", **files}) as process:
        yield process


async def test_a_broker_that_connects_to_another_one(broker: BrokerProcess, authority: Authority) -> None:
    files = {name.removeprefix("security."): value for name, value in tls_settings(authority, "other").items()}
    contexts = TlsContexts(SecuritySettings(**files))  # type: ignore[arg-type]
    host, port = broker.address

    async def versions_of(name: str) -> memoryview:
        peer = Peer(name, port, "me", max_answer_bytes=1 << 20, timeout_s=PATIENCE_S, tls=lambda: contexts.client)
        try:
            return await peer.call(apis.API_VERSIONS.key, 0, b"", is_flexible=False)
        finally:
            await peer.close()

    assert await versions_of("localhost")
    with pytest.raises(PeerError, match="certificate verify failed"):
        await versions_of(host)


def test_the_admin_api(broker: BrokerProcess, authority: Authority) -> None:
    trusting = {"security.protocol": "ssl", "ssl.ca.location": str(authority.file)}
    port = broker.address[1]
    with pytest.raises(AdminError, match="no broker answers"):
        Cluster(broker.kafka, settings=trusting, timeout_s=2).topics.list()
    # The broker is at 127.0.0.1, it says. What the client library cannot ask goes there over a connection of ours.
    with pytest.raises(AdminError, match="certificate verify failed"):
        Cluster(f"localhost:{port}", settings=trusting, timeout_s=5).reassignments.list()
    careless = trusting | {"ssl.endpoint.identification.algorithm": "none"}
    assert Cluster(f"localhost:{port}", settings=careless).reassignments.list() == ()


def test_the_sdk(broker: BrokerProcess, authority: Authority) -> None:
    trusting = {"security.protocol": "ssl", "ssl.ca.location": str(authority.file)}
    sending = penstock.Sending(tries=1, try_timeout="2s")
    with (
        penstock.Client(broker.kafka, settings=trusting, sending=sending) as client,
        pytest.raises(penstock.SendError),
    ):
        client.send("orders", b"not sent")
    careless = trusting | {"ssl.endpoint.identification.algorithm": "none"}
    with penstock.Client(broker.kafka, settings=careless) as client:
        assert client.send("orders", b"sent").offset == 0
