"""Kafka's own tools and its Java client: users and permissions by `kafka-configs` and `kafka-acls`, and who may then
produce and consume, by each mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from conftest import SHARED, running_broker
from support.apache_kafka import kafka_tool
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.programs import run
from support.sasl import ADMIN, MECHANISMS, PASSWORD, sasl_settings

ALICE, HER_PASSWORD = "alice", "wonderland"
TOPIC, GROUP = "orders", "billing"
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[BrokerProcess]:
    kafka_tool("")
    folder = tmp_path_factory.mktemp("broker")
    settings = sasl_settings(folder, "SASL_SSL", sasl_mechanisms=",".join(MECHANISMS), authorizer="acls")
    with running_broker(folder, {**SHARED, **settings, **tls_settings(authority)}) as process:
        yield process


class Tools:
    """Kafka's programs, as one user."""

    def __init__(self, broker: BrokerProcess, authority: Authority, folder: Path) -> None:
        self._broker = broker
        self._authority = authority
        self._folder = folder

    def __call__(
        self,
        main: str,
        *arguments: str,
        user: str = ADMIN,
        password: str = PASSWORD,
        mechanism: str = "SCRAM-SHA-512",
        said: bytes = b"",
    ) -> CompletedProcess[bytes]:
        login = f'{LOGIN_MODULES[mechanism]} required username="{user}" password="{password}";'
        file = self._folder / "client.properties"
        file.write_text(
            "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self._authority.file}\n"
            f"sasl.mechanism={mechanism}\nsasl.jaas.config={login}\n"
        )
        command = [*kafka_tool(main), "--bootstrap-server", self._broker.kafka, "--command-config", str(file)]
        return run([*command, *arguments], said)


@pytest.fixture
def tools(broker: BrokerProcess, authority: Authority, tmp_path: Path) -> Tools:
    return Tools(broker, authority, tmp_path)


def test_a_user_that_kafkas_tools_have_made_may_do_what_they_have_allowed(tools: Tools, broker: BrokerProcess) -> None:
    def as_alice(main: str, *arguments: str, mechanism: str, said: bytes = b"") -> CompletedProcess[bytes]:
        return tools(main, *arguments, user=ALICE, password=HER_PASSWORD, mechanism=mechanism, said=said)

    def produced(mechanism: str) -> CompletedProcess[bytes]:
        line = f"by {mechanism}\n".encode()
        return as_alice("org.apache.kafka.tools.ConsoleProducer", "--topic", TOPIC, mechanism=mechanism, said=line)

    passwords = ",".join(f"{each}=[password={HER_PASSWORD}]" for each in ("SCRAM-SHA-256", "SCRAM-SHA-512"))
    user = ["--entity-type", "users", "--entity-name", ALICE]
    done = tools("kafka.admin.ConfigCommand", "--alter", "--add-config", passwords, *user)
    assert b"Completed updating" in done.stdout, done
    assert HER_PASSWORD not in broker.log
    acls, alice = "org.apache.kafka.tools.AclCommand", f"User:{ALICE}"
    rule = ["--allow-principal", alice, "--operation", "ALL", "--topic", TOPIC, "--group", GROUP]
    added = tools(acls, "--add", *rule).stdout.decode()
    assert f"principal={alice}, host=*, operation=ALL, permissionType=ALLOW" in added, added
    senders = ("PLAIN", "SCRAM-SHA-512")
    for mechanism in senders:
        assert produced(mechanism).returncode == 0
    consumed = as_alice(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", TOPIC, "--group", GROUP, "--from-beginning", "--max-messages", str(len(senders))),
        mechanism="SCRAM-SHA-256",
    )
    assert consumed.stdout.decode().splitlines() == [f"by {each}" for each in senders], consumed
    removed = tools(acls, "--remove", "--force", *rule)
    assert removed.returncode == 0, removed
    assert "a request was denied" not in broker.log
    produced("SCRAM-SHA-512")
    assert f"a request was denied principal={alice} host=127.0.0.1 api=Metadata operation=DESCRIBE" in broker.log
