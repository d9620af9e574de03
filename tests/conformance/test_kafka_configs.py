"""Quotas by Kafka's own `kafka-configs`."""

from __future__ import annotations

from subprocess import CompletedProcess

import pytest

from support.apache_kafka import kafka_tool
from support.broker_process import BrokerProcess
from support.programs import run


def configs(broker: BrokerProcess, *arguments: str) -> CompletedProcess[bytes]:
    return run([*kafka_tool("kafka.admin.ConfigCommand"), "--bootstrap-server", broker.kafka, *arguments])


@pytest.mark.parametrize(
    ("whom", "limit", "described"),
    [
        (["--entity-type", "users", "--entity-name", "al ice"], "producer_byte_rate=1024", "user-principal 'al ice'"),
        (["--entity-type", "clients", "--entity-default"], "controller_mutation_rate=10000.5", "the default client-id"),
        (["--entity-type", "ips", "--entity-name", "10.0.0.1"], "connection_creation_rate=7", "ip '10.0.0.1'"),
    ],
)
def test_a_quota_is_set_described_and_removed(
    broker: BrokerProcess, whom: list[str], limit: str, described: str
) -> None:
    key, _, value = limit.partition("=")
    done = configs(broker, "--alter", "--add-config", limit, *whom)
    assert done.stdout.startswith(b"Completed updating"), done
    found = configs(broker, "--describe", *whom).stdout.decode()
    assert described in found and f"{key}={float(value)}" in found
    configs(broker, "--alter", "--delete-config", key, *whom)
    assert key not in configs(broker, "--describe", *whom).stdout.decode()
