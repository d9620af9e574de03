"""Encrypted listeners, with real clients."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.ports import free_ports
from support.programs import required_program, run
from support.waiting import PATIENCE_S, until

TLS_ALERT = b"\x15"
VALUES = [b"%d:" % number + os.urandom(size) for number, size in enumerate((0, 1, 1000, 70_000, 300_000, 900_000))]
"""Of sizes below and above a TLS record, and above what is encrypted in one go."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def settings(authority: Authority) -> dict[str, object]:
    return {"security.protocols": "PLAINTEXT:SSL", **tls_settings(authority)}


@pytest.fixture
def broker(new_broker: BrokerFactory, settings: dict[str, object]) -> BrokerProcess:
    return new_broker(settings)


def librdkafka(broker: BrokerProcess, authority: Authority) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": broker.kafka,
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.file),
        "log_level": 0,
    }


def test_librdkafka(broker: BrokerProcess, authority: Authority, topic: str) -> None:
    producer = Producer(librdkafka(broker, authority))
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**librdkafka(broker, authority), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def has_all() -> bool:
        found.extend(each.value() for each in consumer.consume(10, 0.5))
        return len(found) == len(VALUES)

    until(has_all, "all messages are consumed")
    consumer.close()
    assert found == VALUES


def test_kafka_python(broker: BrokerProcess, authority: Authority, topic: str) -> None:
    secured = {"bootstrap_servers": broker.kafka, "security_protocol": "SSL", "ssl_cafile": str(authority.file)}
    producer = KafkaProducer(**secured, max_request_size=2_000_000)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, **secured, auto_offset_reset="earliest", consumer_timeout_ms=int(PATIENCE_S * 1000))
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


async def test_aiokafka(broker: BrokerProcess, authority: Authority, topic: str) -> None:
    context = create_ssl_context(cafile=str(authority.file))
    secured = {"bootstrap_servers": broker.kafka, "security_protocol": "SSL", "ssl_context": context}
    async with AIOKafkaProducer(**secured, max_request_size=2_000_000) as producer:
        for value in VALUES:
            await producer.send_and_wait(topic, value)
    async with AIOKafkaConsumer(topic, **secured, auto_offset_reset="earliest") as consumer:
        assert [(await consumer.getone()).value for _ in VALUES] == VALUES


def kcat(broker: BrokerProcess, *options: str, stdin: bytes = b"") -> CompletedProcess[bytes]:
    return run([required_program("kcat"), "-b", broker.kafka, "-X", "security.protocol=ssl", *options], stdin)


def test_kcat(broker: BrokerProcess, authority: Authority, topic: str) -> None:
    trust = ("-X", f"ssl.ca.location={authority.file}")
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    assert kcat(broker, "-P", "-t", topic, *trust, stdin=lines).returncode == 0
    assert kcat(broker, "-C", "-t", topic, "-c", "1000", "-q", *trust).stdout == lines


def check_refused(broker: BrokerProcess, **settings: str) -> None:
    """A client with these settings cannot connect."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0, **given})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)


def connect(broker: BrokerProcess, authority: Authority) -> str:
    """The serial number of the certificate that the broker shows; raises what a client has against it."""
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        socket.create_connection(broker.address, PATIENCE_S) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secured,
    ):
        shown = secured.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


def test_a_client_refuses_a_broker_of_another_authority(broker: BrokerProcess, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        connect(broker, other)
    check_refused(broker, security_protocol="ssl", ssl_ca_location=str(other.file))


def test_a_client_refuses_a_certificate_for_another_host(
    new_broker: BrokerFactory, authority: Authority, settings: dict[str, object]
) -> None:
    certificate, key = authority.sign("elsewhere", host="127.0.0.9")
    broker = new_broker({**settings, "security.certificate_file": certificate, "security.key_file": key})
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        connect(broker, authority)
    check_refused(broker, security_protocol="ssl", ssl_ca_location=str(authority.file))


def test_clients_without_a_certificate_are_refused_where_one_is_required(
    new_broker: BrokerFactory, authority: Authority, settings: dict[str, object], tmp_path: Path, topic: str
) -> None:
    broker = new_broker({**settings, "security.client_certificates": "required"})
    trust = {"security_protocol": "ssl", "ssl_ca_location": str(authority.file)}
    check_refused(broker, **trust)
    of_another = Authority(tmp_path / "other").sign("mallory")
    check_refused(broker, **trust, ssl_certificate_location=str(of_another[0]), ssl_key_location=str(of_another[1]))
    certificate, key = authority.sign("alice")
    shown = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    producer = Producer({**librdkafka(broker, authority), **shown})
    producer.produce(topic, b"taken")
    assert producer.flush(PATIENCE_S) == 0


def test_one_listener_may_ask_for_certificates_and_another_not(
    new_broker: BrokerFactory, authority: Authority, settings: dict[str, object], topic: str
) -> None:
    open_port, closed_port = free_ports(2)
    broker = new_broker(
        {
            **settings,
            "security.protocols": "OPEN:SSL,CLOSED:SSL",
            "security.client_certificates": "CLOSED:required",
        },
        ["--listen", f"OPEN://127.0.0.1:{open_port},CLOSED://127.0.0.1:{closed_port}"],
    )
    producer = Producer(librdkafka(broker, authority) | {"bootstrap.servers": f"127.0.0.1:{open_port}"})
    producer.produce(topic, b"taken")
    assert producer.flush(PATIENCE_S) == 0
    broker.kafka = f"127.0.0.1:{closed_port}"
    check_refused(broker, security_protocol="ssl", ssl_ca_location=str(authority.file))


def test_the_key_may_have_a_password(
    new_broker: BrokerFactory, authority: Authority, settings: dict[str, object], tmp_path: Path, topic: str
) -> None:
    certificate, key = authority.sign("locked", password="open sesame")
    (tmp_path / "password").write_text("open sesame\n")
    files = {
        "security.certificate_file": certificate,
        "security.key_file": key,
        "security.key_password_file": tmp_path / "password",
    }
    broker = new_broker({**settings, **files})
    producer = Producer(librdkafka(broker, authority))
    producer.produce(topic, b"taken")
    assert producer.flush(PATIENCE_S) == 0


def test_old_versions_of_tls_are_refused(broker: BrokerProcess, authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.file)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(broker.address, PATIENCE_S) as sock, pytest.raises(OSError):
        context.wrap_socket(sock, server_hostname="127.0.0.1")


def test_a_client_that_speaks_no_tls_ends_only_its_own_connection(
    broker: BrokerProcess, authority: Authority, topic: str
) -> None:
    check_refused(broker, security_protocol="plaintext")
    with socket.create_connection(broker.address, PATIENCE_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert sock.recv(100)[:1] in (b"", TLS_ALERT)
    assert "TLS handshake failed" in broker.log
    producer = Producer(librdkafka(broker, authority))
    producer.produce(topic, b"taken")
    assert producer.flush(PATIENCE_S) == 0


def test_a_handshake_that_does_not_go_on_is_ended(broker: BrokerProcess) -> None:
    with socket.create_connection(broker.address, PATIENCE_S) as silent:
        silent.settimeout(PATIENCE_S)
        assert silent.recv(1) == b""
    assert "no TLS handshake" in broker.log


def test_a_handshake_that_comes_byte_by_byte_is_ended_too(broker: BrokerProcess, authority: Authority) -> None:
    """A client that is never quite silent does not keep its place: what counts is when it came."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(authority.file)).wrap_bio(incoming, outgoing, server_hostname="x")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    with socket.create_connection(broker.address, PATIENCE_S) as slow:
        slow.settimeout(0.1)
        sent = 0

        def is_ended() -> bool:
            nonlocal sent
            with suppress(OSError):
                slow.send(hello[sent : sent + 1])
            sent += 1
            assert sent < len(hello), "the broker listened to the end"
            try:
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(is_ended, "the connection is closed")
    assert "no TLS handshake" in broker.log


def test_a_renewed_certificate_is_used_without_a_restart(
    broker: BrokerProcess, authority: Authority, topic: str
) -> None:
    before = connect(broker, authority)
    producer = Producer(librdkafka(broker, authority))
    producer.produce(topic, b"before")
    assert producer.flush(PATIENCE_S) == 0
    authority.sign("broker")
    os.kill(broker.pid, signal.SIGHUP)
    until(lambda: connect(broker, authority) != before, "the new certificate is shown")
    producer.produce(topic, b"over the connection from before")
    assert producer.flush(PATIENCE_S) == 0


def test_a_certificate_that_cannot_be_used_leaves_the_old_one(
    broker: BrokerProcess, authority: Authority, settings: dict[str, object]
) -> None:
    before = connect(broker, authority)
    Path(str(settings["security.certificate_file"])).write_text("no certificate")
    until(lambda: "the old ones stay in use" in broker.log, "that is logged")
    assert connect(broker, authority) == before


def test_connections_that_do_not_go_on_with_their_handshake_keep_only_their_own_place(
    new_broker: BrokerFactory, settings: dict[str, object], authority: Authority
) -> None:
    broker = new_broker({**settings, "limits.tls_handshakes": 4, "limits.tls_handshakes_per_host": 3})
    context = ssl.create_default_context(cafile=str(authority.file))
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(broker.address)) for _ in range(8)]
        # Three have a handshake in progress that does not go on; the others wait for theirs.
        until(lambda: broker.metric("penstock_connections_held") == 5, "connections wait for a handshake")
        other = stack.enter_context(socket.create_connection(broker.address, source_address=("127.0.0.2", 0)))
        stack.enter_context(context.wrap_socket(other, server_hostname="127.0.0.1"))
        for each in silent[:3]:
            each.close()
        until(lambda: broker.metric("penstock_connections_held") == 2, "others take their places")


def test_more_clients_than_handshakes_at_once_are_all_served(
    new_broker: BrokerFactory, settings: dict[str, object], authority: Authority
) -> None:
    broker = new_broker({**settings, "limits.tls_handshakes": 2, "limits.tls_handshakes_per_host": 2})
    context = ssl.create_default_context(cafile=str(authority.file))

    def connect() -> str | None:
        plain = socket.create_connection(broker.address, timeout=PATIENCE_S)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            return secured.version()

    with ThreadPoolExecutor(16) as threads:
        versions = list(threads.map(lambda _: connect(), range(48)))
    assert versions == ["TLSv1.3"] * 48
    until(lambda: broker.metric("penstock_connections_held") == 0, "none waits")
