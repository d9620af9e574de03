"""Real clients log in, by each mechanism that they have, with and without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from conftest import SHARED, running_broker
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.programs import required_program, run
from support.sasl import ADMIN, MECHANISMS, PASSWORD, librdkafka, sasl_settings
from support.waiting import PATIENCE_S, until

VALUES = [b"one", b"two", b"three"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("encrypted")
    settings = sasl_settings(folder, "SASL_SSL", sasl_mechanisms=",".join(MECHANISMS))
    with running_broker(folder, {**SHARED, **settings, **tls_settings(authority)}) as process:
        yield process


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("clear")
    settings = sasl_settings(folder, sasl_mechanisms=",".join(MECHANISMS))
    with running_broker(folder, {**SHARED, **settings}) as process:
        yield process


def consumed(settings: dict[str, Any], topic: str) -> list[bytes | None]:
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def has_all() -> bool:
        found.extend(each.value() for each in consumer.consume(10, 0.5))
        return len(found) >= len(VALUES)

    until(has_all, "all messages are consumed")
    consumer.close()
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(encrypted: BrokerProcess, authority: Authority, topic: str, mechanism: str) -> None:
    settings = librdkafka(encrypted.kafka, mechanism, ca_file=authority.file)
    producer = Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    assert consumed(settings, topic) == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(encrypted: BrokerProcess, authority: Authority, topic: str, mechanism: str) -> None:
    secured = {
        "bootstrap_servers": encrypted.kafka,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(authority.file),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": ADMIN,
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**secured)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, **secured, auto_offset_reset="earliest", consumer_timeout_ms=int(PATIENCE_S * 1000))
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka(encrypted: BrokerProcess, authority: Authority, topic: str, mechanism: str) -> None:
    secured = {
        "bootstrap_servers": encrypted.kafka,
        "security_protocol": "SASL_SSL",
        "ssl_context": create_ssl_context(cafile=str(authority.file)),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": ADMIN,
        "sasl_plain_password": PASSWORD,
    }
    async with AIOKafkaProducer(**secured) as producer:
        for value in VALUES:
            await producer.send_and_wait(topic, value)
    async with AIOKafkaConsumer(topic, **secured, auto_offset_reset="earliest") as consumer:
        assert [(await consumer.getone()).value for _ in VALUES] == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat(encrypted: BrokerProcess, authority: Authority, topic: str, mechanism: str) -> None:
    options = []
    for name, value in librdkafka(encrypted.kafka, mechanism, ca_file=authority.file).items():
        if name not in ("bootstrap.servers", "log_level"):
            options += ["-X", f"{name}={value}"]
    kcat = [required_program("kcat"), "-b", encrypted.kafka, *options]
    sent = run([*kcat, "-P", "-t", topic], b"one\ntwo\n")
    assert sent.returncode == 0, sent.stderr
    assert run([*kcat, "-C", "-t", topic, "-c", "2", "-q"]).stdout == b"one\ntwo\n"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_without_tls(clear: BrokerProcess, topic: str, mechanism: str) -> None:
    settings = librdkafka(clear.kafka, mechanism)
    producer = Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    assert consumed(settings, topic) == VALUES


def refusal(settings: dict[str, Any]) -> int:
    """The error with which a client is refused."""
    heard: list[int] = []
    given: dict[str, Any] = {**settings, "error_cb": lambda error: heard.append(error.code())}
    admin = AdminClient(given)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)

    def is_told() -> bool:
        admin.poll(0.2)
        return KafkaError._ALL_BROKERS_DOWN in heard

    until(is_told, "the client reports what happened")
    return heard[0]


@pytest.mark.parametrize("user", [ADMIN, "mallory"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_are_refused(
    encrypted: BrokerProcess, authority: Authority, user: str, mechanism: str
) -> None:
    settings = librdkafka(encrypted.kafka, mechanism, user, "wrong", ca_file=authority.file)
    assert refusal(settings) == KafkaError._AUTHENTICATION
    assert "wrong" not in encrypted.log.replace("wrong password", "")


def test_plain_is_not_taken_without_tls(clear: BrokerProcess) -> None:
    """Everyone on the way would read the password."""
    assert refusal(librdkafka(clear.kafka, "PLAIN")) == KafkaError._AUTHENTICATION
    assert PASSWORD not in clear.log


def test_users_come_and_go_without_a_restart(clear: BrokerProcess, topic: str) -> None:
    admin = AdminClient(librdkafka(clear.kafka))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    alter = admin.alter_user_scram_credentials
    alter([UserScramCredentialUpsertion(topic, info, b"first")])[topic].result(PATIENCE_S)
    asked: Any = admin.describe_user_scram_credentials([topic])
    described = asked[topic].result(PATIENCE_S)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    asked = admin.describe_user_scram_credentials()
    everyone = asked.result(PATIENCE_S)
    assert {ADMIN, topic} <= everyone.keys()
    first = librdkafka(clear.kafka, "SCRAM-SHA-256", topic, "first")
    AdminClient(first).list_topics(timeout=PATIENCE_S)
    # The other mechanism has no password.
    assert refusal({**first, "sasl.mechanism": "SCRAM-SHA-512"}) == KafkaError._AUTHENTICATION
    alter([UserScramCredentialUpsertion(topic, info, b"second")])[topic].result(PATIENCE_S)
    assert refusal(first) == KafkaError._AUTHENTICATION
    second = librdkafka(clear.kafka, "SCRAM-SHA-256", topic, "second")
    AdminClient(second).list_topics(timeout=PATIENCE_S)
    alter([UserScramCredentialDeletion(topic, ScramMechanism.SCRAM_SHA_256)])[topic].result(PATIENCE_S)
    assert refusal(second) == KafkaError._AUTHENTICATION
    with pytest.raises(KafkaException, match="does not exist"):
        alter([UserScramCredentialDeletion(topic, ScramMechanism.SCRAM_SHA_256)])[topic].result(PATIENCE_S)
    with pytest.raises(KafkaException, match="Too few iterations"):
        weak = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100)
        alter([UserScramCredentialUpsertion(topic, weak, b"x")])[topic].result(PATIENCE_S)


def test_passwords_are_not_on_the_disk(clear: BrokerProcess) -> None:
    stored = [path.read_bytes() for path in Path(clear.data).rglob("*") if path.is_file()]
    assert any(b"stored_key" in content for content in stored)
    assert not any(PASSWORD.encode() in content for content in stored)
