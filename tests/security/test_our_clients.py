"""The SDK and the commands, as a user that may do what it does and nothing else, with each mechanism over TLS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from conftest import running_broker
from penstock import aio
from penstock.sdk.topic_names import dead_topic
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.programs import PENSTOCK, run
from support.receiving import running
from support.sasl import MECHANISMS, librdkafka, sasl_settings
from support.waiting import PATIENCE_S

ALICE, HER_PASSWORD = "alice", "wonder land"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    settings = {
        **sasl_settings(folder, "SASL_SSL", sasl_mechanisms=",".join(MECHANISMS), authorizer="acls"),
        **tls_settings(authority),
        "groups.initial_rebalance_delay_ms": 100,
    }
    with running_broker(folder, settings) as process:
        admin = Command(process, folder / "admin.properties", librdkafka(process.kafka, ca_file=authority.file))
        password = folder / "password-of-alice"
        password.write_text(HER_PASSWORD)
        admin("user", "add", ALICE, "--password-file", str(password))
        # What a subscriber with retries and dead letters needs: `docs/security.md`.
        admin("acl", "add", ALICE, "READ,WRITE,CREATE", "--topic", "orders", "--prefix")
        admin("acl", "add", ALICE, "READ,WRITE,CREATE", "--topic", "billing", "--prefix")
        admin("acl", "add", ALICE, "READ", "--group", "billing", "--prefix")
        yield process


class Command:
    """`penstock`, connecting as a file of settings says."""

    def __init__(self, broker: BrokerProcess, file: Path, settings: dict[str, Any]) -> None:
        self._start = [PENSTOCK, "-b", broker.kafka, "--command-config", str(file)]
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def __call__(self, *words: str, status: int = 0) -> str:
        done = run([*self._start, *words])
        assert done.returncode == status, done.stderr.decode()
        return (done.stderr if status else done.stdout).decode()


def alice(broker: BrokerProcess, authority: Authority, mechanism: str) -> dict[str, Any]:
    settings = librdkafka(broker.kafka, mechanism, ALICE, HER_PASSWORD, ca_file=authority.file)
    del settings["bootstrap.servers"]
    return settings


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_subscriptions_with_retries_and_dead_letters(
    broker: BrokerProcess, authority: Authority, mechanism: str
) -> None:
    topic, group = f"orders-{mechanism}", f"billing-{mechanism}"
    handled: list[tuple[bytes | None, int]] = []
    buried = threading.Event()

    def bill(message: penstock.Message) -> None:
        handled.append((message.value, message.attempt))
        if message.value == b"bad":
            raise ValueError("it cannot be billed")

    def bury(message: penstock.Message) -> None:
        assert message.value == b"bad"
        buried.set()

    with penstock.Client(broker.kafka, settings=alice(broker, authority, mechanism)) as client:
        for value in (b"bad", b"good"):
            client.send(topic, value)
        retries = penstock.Retries(first="10ms", attempts=2)
        client.subscribe(topic, bill, group=group, retries=retries, from_beginning=True)
        client.subscribe(dead_topic(group), bury, group=f"{group}-dead", from_beginning=True)
        with running(client):
            assert buried.wait(2 * PATIENCE_S)
    assert (b"good", 1) in handled
    assert [attempt for value, attempt in handled if value == b"bad"] == [1, 2]


def test_what_a_user_may_not_is_an_error_that_says_so(broker: BrokerProcess, authority: Authority) -> None:
    settings = alice(broker, authority, "SCRAM-SHA-512")
    with (
        penstock.Client(broker.kafka, settings=settings) as client,
        pytest.raises(penstock.SendError, match=r"(?i)authorization"),
    ):
        client.send("payments", b"not hers")


async def test_the_asyncio_client(broker: BrokerProcess, authority: Authority) -> None:
    async with aio.Client(broker.kafka, settings=alice(broker, authority, "SCRAM-SHA-512")) as client:
        assert (await client.send("orders-aio", b"one")).offset == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_commands(broker: BrokerProcess, authority: Authority, tmp_path: Path, mechanism: str) -> None:
    command = Command(broker, tmp_path / "alice.properties", alice(broker, authority, mechanism))
    topic = f"orders-of-commands-{mechanism}"
    command("topic", "create", topic)
    assert "@0" in command("send", topic, "hello")
    with penstock.Client(broker.kafka, settings=alice(broker, authority, mechanism)) as client:
        client.send(topic, b"later", delay="1h")
    # A reader without a group needs no permission for one.
    assert "hello" in command("tail", topic, "--from", "start")
    assert "later" in command("timer", "list", topic)
    assert topic in command("topic", "list")
    # Requests that the client library lacks go over a connection of our own, which logs in too.
    assert "authorization failed" in command("quota", "list", status=1)
