"""What strangers try on a listener that asks for a login."""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import BrokerFactory, running_broker
from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from penstock.protocol.messages.metadata import MetadataRequest
from penstock.security.scram import ScramClient, ScramMechanism
from support.broker_process import BrokerProcess
from support.sasl import ADMIN, AUTHENTICATION_FAILED, PASSWORD, authenticate, handshake, log_in, sasl_settings
from support.waiting import until
from support.wire import Wire

SHA_256 = ScramMechanism.SHA_256
UNSUPPORTED_MECHANISM, ILLEGAL_STATE = 33, 34
ALL_TOPICS = MetadataRequest(topics=None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    settings = sasl_settings(folder, sasl_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", failed_login_max_delay_ms=200)
    with running_broker(folder, settings) as process:
        yield process


def check_closed(wire: Wire) -> None:
    with pytest.raises(EOFError):
        wire.exactly(1)


def test_versions_are_told_to_everyone_and_nothing_else(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        told = wire.ask(apis.API_VERSIONS, 3, ApiVersionsRequest())
        assert {17, 36} <= {each["api_key"] for each in told["api_keys"]}
        wire.send(apis.METADATA, 12, ALL_TOPICS)
        check_closed(wire)


def test_a_request_in_the_middle_of_a_login_closes_the_connection(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert handshake(wire, "SCRAM-SHA-256")["error_code"] == 0
        wire.send(apis.METADATA, 12, ALL_TOPICS)
        check_closed(wire)


def test_a_request_sent_together_with_a_failing_login_is_not_answered(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert handshake(wire, "SCRAM-SHA-256")["error_code"] == 0
        assert authenticate(wire, b"nonsense")["error_code"] == AUTHENTICATION_FAILED
        check_closed(wire)


def test_a_login_opens_the_door(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert log_in(wire)["error_code"] == 0
        assert "topics" in wire.ask(apis.METADATA, 12, ALL_TOPICS)


def test_a_token_without_a_handshake_is_refused(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert authenticate(wire, b"n,,n=admin,r=abc")["error_code"] == AUTHENTICATION_FAILED
        check_closed(wire)


def test_a_downgrade_to_plain_is_refused_and_told_what_there_is(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        answer = handshake(wire, "PLAIN")
        assert answer["error_code"] == UNSUPPORTED_MECHANISM
        assert set(answer["mechanisms"]) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
        check_closed(wire)


def test_a_recorded_login_is_refused(broker: BrokerProcess) -> None:
    said: list[bytes] = []
    client = ScramClient(SHA_256, ADMIN, PASSWORD)
    with Wire(broker.address) as wire:
        handshake(wire, SHA_256.value)
        message = client.respond(None)
        while message is not None:
            said.append(message)
            message = client.respond(authenticate(wire, message)["auth_bytes"])
    with Wire(broker.address) as wire:
        handshake(wire, SHA_256.value)
        assert authenticate(wire, said[0])["error_code"] == 0
        assert authenticate(wire, said[1])["error_code"] == AUTHENTICATION_FAILED
        check_closed(wire)


def test_users_cannot_be_found_out(broker: BrokerProcess) -> None:
    def answers(user: str) -> tuple[int, int, bytes, object, object]:
        client = ScramClient(SHA_256, user, "wrong")
        with Wire(broker.address) as wire:
            handshake(wire, SHA_256.value)
            first = client.respond(None)
            assert first is not None
            challenge = authenticate(wire, first)
            final = client.respond(challenge["auth_bytes"])
            assert final is not None
            refused = authenticate(wire, final)
        nonce, salt, iterations = challenge["auth_bytes"].split(b",")
        return len(nonce), len(salt), iterations, refused["error_code"], refused["error_message"]

    def salt_of(user: str) -> bytes:
        with Wire(broker.address) as wire:
            handshake(wire, SHA_256.value)
            salt: bytes = authenticate(wire, f"n,,n={user},r=abc".encode())["auth_bytes"].split(b",")[1]
            return salt

    assert answers(ADMIN) == answers("nosuchuser")
    assert salt_of("nosuchuser") == salt_of("nosuchuser") != salt_of("another")


def test_large_frames_are_not_taken_before_a_login(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.socket.sendall(struct.pack(">i", 70_000))
        check_closed(wire)


def test_tokens_without_requests_after_version_0(broker: BrokerProcess) -> None:
    """As clients before Kafka 1.0 do it."""
    client = ScramClient(SHA_256, ADMIN, PASSWORD)
    with Wire(broker.address) as wire:
        assert handshake(wire, SHA_256.value, version=0)["error_code"] == 0
        message = client.respond(None)
        while message is not None:
            wire.socket.sendall(struct.pack(">i", len(message)) + message)
            (size,) = struct.unpack(">i", wire.socket.recv(4, socket.MSG_WAITALL))
            message = client.respond(wire.socket.recv(size, socket.MSG_WAITALL))
        assert "topics" in wire.ask(apis.METADATA, 12, ALL_TOPICS)
    with Wire(broker.address) as wire:
        assert handshake(wire, SHA_256.value, version=0)["error_code"] == 0
        wire.socket.sendall(struct.pack(">i", 3) + b"bad")
        check_closed(wire)


def test_a_client_that_takes_its_time_is_disconnected(new_broker: BrokerFactory, tmp_path: Path) -> None:
    settings = sasl_settings(tmp_path)
    broker = new_broker({**settings, "limits.login_ms": 500})
    with Wire(broker.address) as patient, Wire(broker.address) as wire:
        assert log_in(patient)["error_code"] == 0
        handshake(wire, SHA_256.value)
        wire.socket.sendall(b"\0\0")
        check_closed(wire)
        assert "no login in time" in broker.log
        assert "topics" in patient.ask(apis.METADATA, 12, ALL_TOPICS)


def test_one_address_cannot_take_all_places(new_broker: BrokerFactory, tmp_path: Path) -> None:
    settings = sasl_settings(tmp_path)
    broker = new_broker({**settings, "limits.logins_per_host": 3})
    with Wire(broker.address) as known:
        assert log_in(known)["error_code"] == 0
        waiting = [Wire(broker.address) for _ in range(3)]
        try:
            until(lambda: broker.metric("penstock_connections") == 4, "three wait for a login")
            with Wire(broker.address) as refused:
                check_closed(refused)
            assert "topics" in known.ask(apis.METADATA, 12, ALL_TOPICS)
        finally:
            for wire in waiting:
                wire.socket.close()

        def there_is_room() -> bool:
            with Wire(broker.address) as wire:
                try:
                    return bool(log_in(wire)["error_code"] == 0)
                except (EOFError, OSError):
                    return False

        until(there_is_room, "who comes after them is let in")


def test_a_session_ends_and_can_be_renewed(new_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = new_broker(sasl_settings(tmp_path, max_session_ms=2000))
    with Wire(broker.address) as idle, Wire(broker.address) as renewing:
        for wire in (idle, renewing):
            assert log_in(wire)["session_lifetime_ms"] == 2000
        # Too soon: the session goes on.
        assert handshake(renewing, SHA_256.value)["error_code"] == ILLEGAL_STATE
        renewals = 0

        def is_over() -> bool:
            nonlocal renewals
            renewals += renewing_works(renewing)
            return broker.metric("penstock_logins_total", mechanism=SHA_256.value, result="accepted") >= 5

        until(is_over, "three renewals")
        idle.send(apis.METADATA, 12, ALL_TOPICS)
        check_closed(idle)
        assert "topics" in renewing.ask(apis.METADATA, 12, ALL_TOPICS)


def renewing_works(wire: Wire) -> int:
    """Logs in again unless it is too soon for that."""
    if handshake(wire, SHA_256.value)["error_code"] == ILLEGAL_STATE:
        return 0
    client = ScramClient(SHA_256, ADMIN, PASSWORD)
    message = client.respond(None)
    while message is not None:
        message = client.respond(authenticate(wire, message)["auth_bytes"])
    return 1


def test_a_renewal_as_another_user_ends_the_connection(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        assert log_in(wire)["error_code"] == 0
        until(lambda: handshake(wire, SHA_256.value)["error_code"] == 0, "the login can be renewed")
        assert authenticate(wire, b"n,,n=root,r=abc")["error_code"] == 0
        assert authenticate(wire, b"c=biws,r=abc,p=AAAA")["error_code"] == AUTHENTICATION_FAILED
        check_closed(wire)


def test_failures_are_counted_and_logged_without_secrets(broker: BrokerProcess) -> None:
    def failures() -> float:
        return broker.metrics().get(
            ("penstock_logins_total", (("mechanism", SHA_256.value), ("result", "failed"))), 0.0
        )

    before = failures()
    with Wire(broker.address) as wire:
        assert log_in(wire, password="hunter2")["error_code"] == AUTHENTICATION_FAILED
    with Wire(broker.address) as wire:
        assert log_in(wire, user="hunter3", password="x")["error_code"] == AUTHENTICATION_FAILED
    assert failures() == before + 2
    line = next(line for line in reversed(broker.log.splitlines()) if "login failed" in line and "user=admin" in line)
    assert "127.0.0.1" in line and SHA_256.value in line
    # It may have been a password in the wrong place.
    assert "hunter" not in broker.log


def test_no_secret_comes_into_the_log_or_the_metrics(new_broker: BrokerFactory, tmp_path: Path) -> None:
    """Also of a broker that logs all that it can."""
    settings = sasl_settings(tmp_path, sasl_mechanisms="PLAIN,SCRAM-SHA-256", cleartext_secrets="true")
    broker = new_broker({**settings, "logging.level": "debug", "security.failed_login_delay_ms": 0})
    wrong = "a password of somebody else"
    for password, code in ((PASSWORD, 0), (wrong, AUTHENTICATION_FAILED)):
        with Wire(broker.address) as wire:
            assert handshake(wire, "PLAIN")["error_code"] == 0
            assert authenticate(wire, f"\0{ADMIN}\0{password}".encode())["error_code"] == code
        with Wire(broker.address) as wire:
            assert log_in(wire, password=password)["error_code"] == code
    logins = "penstock_logins_total"
    assert broker.metric(logins, mechanism="PLAIN", result="failed") == 1
    told = broker.log + broker.output + broker.get("/metrics")
    for secret in (PASSWORD, wrong):
        for text in (secret, base64.b64encode(secret.encode()).decode()):
            assert text not in told
