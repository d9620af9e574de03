"""Real clients show tokens; keys come from an address, and change there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokenProvider
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

from conftest import running_broker
from penstock.admin import Cluster
from penstock.protocol import apis
from penstock.protocol.messages.metadata import MetadataRequest
from penstock.security.oauth import BearerClient
from support.broker_process import BrokerProcess
from support.sasl import AUTHENTICATION_FAILED, authenticate, handshake, sasl_settings
from support.waiting import PATIENCE_S, until
from support.wire import Wire

ISSUER, AUDIENCE = "https://issuer.example.org", "penstock"
KEY_PAIRS = {name: rsa.generate_private_key(65537, 2048) for name in ("one", "two")}


class Issuer:
    """Serves the public keys that count at the moment."""

    def __init__(self) -> None:
        self.names = ["one"]
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keys = [
                    {**RSAAlgorithm.to_jwk(KEY_PAIRS[name].public_key(), as_dict=True), "kid": name}
                    for name in issuer.names
                ]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"keys": keys}).encode())

            def log_message(self, *parts: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    running = Issuer()
    yield running
    running.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    settings = sasl_settings(
        folder,
        sasl_mechanisms="OAUTHBEARER",
        cleartext_secrets="true",
        oauth_jwks_url=issuer.url,
        oauth_issuer=ISSUER,
        oauth_audience=AUDIENCE,
        oauth_clock_skew_ms=0,
    )
    with running_broker(folder, settings) as process:
        yield process


def token(key: str = "one", **claims: object) -> str:
    said = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, **claims}
    return jwt.encode(said, KEY_PAIRS[key], "RS256", headers={"kid": key})


def shown_by(make: Callable[[], str]) -> Callable[[str], tuple[str, float]]:
    return lambda config: (make(), time.time() + 600)


def librdkafka(broker: BrokerProcess, make: Callable[[], str] = token) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.kafka,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": shown_by(make),
        "log_level": 0,
    }


def test_librdkafka(broker: BrokerProcess) -> None:
    admin = AdminClient(librdkafka(broker))
    until(lambda: admin.poll(0.1) or admin.list_topics(timeout=PATIENCE_S), "the client is let in")


def test_our_own_requests(broker: BrokerProcess) -> None:
    """What the client library lacks goes over a connection of ours, with the same settings."""
    assert Cluster(broker.kafka, settings=librdkafka(broker)).reassignments.list() == ()


def test_kafka_python(broker: BrokerProcess, topic: str) -> None:
    class Provider(KafkaPythonTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token()

    producer = KafkaProducer(
        bootstrap_servers=broker.kafka,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    assert producer.send(topic, b"one").get(PATIENCE_S).offset == 0
    producer.close()


async def test_aiokafka(broker: BrokerProcess, topic: str) -> None:
    class Provider(AiokafkaTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token()

    async with AIOKafkaProducer(
        bootstrap_servers=broker.kafka,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    ) as producer:
        assert (await producer.send_and_wait(topic, b"one")).offset == 0


def show(broker: BrokerProcess, text: str) -> dict[str, Any]:
    """The end of a login with a token."""
    with Wire(broker.address) as wire:
        assert handshake(wire, "OAUTHBEARER")["error_code"] == 0
        client = BearerClient(text)
        message, answer = client.respond(None), {}
        while message is not None:
            answer = authenticate(wire, message)
            message = None if answer["error_code"] else client.respond(answer["auth_bytes"])
        return answer


@pytest.mark.parametrize(
    "make",
    [
        lambda: token(exp=1),
        lambda: token(aud="other"),
        lambda: token(iss="https://mallory.example.org"),
        lambda: jwt.encode({"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": 4_000_000_000}, "", "none"),
        lambda: "nonsense",
    ],
    ids=["expired", "audience", "issuer", "unsigned", "nonsense"],
)
def test_tokens_that_are_not_valid_are_refused(broker: BrokerProcess, make: Callable[[], str]) -> None:
    refused = make()
    assert show(broker, refused)["error_code"] == AUTHENTICATION_FAILED
    assert refused not in broker.log or refused == "nonsense"


def test_librdkafka_is_told_of_a_refused_token(broker: BrokerProcess) -> None:
    admin = AdminClient(librdkafka(broker, lambda: token(aud="other")))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)


def test_a_session_lasts_no_longer_than_its_token(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        handshake(wire, "OAUTHBEARER")
        message = BearerClient(token(exp=int(time.time()) + 3)).respond(None)
        assert message is not None
        assert 0 < authenticate(wire, message)["session_lifetime_ms"] <= 3000
        asked = MetadataRequest(topics=None)

        def is_over() -> bool:
            try:
                wire.ask(apis.METADATA, 12, asked)
            except (EOFError, OSError):
                return True
            return False

        until(is_over, "the session ends with the token")


def test_keys_change_without_a_restart(broker: BrokerProcess, issuer: Issuer) -> None:
    assert show(broker, token("two"))["error_code"] == AUTHENTICATION_FAILED
    issuer.names = ["two"]
    until(lambda: show(broker, token("two"))["error_code"] == 0, "the new key counts")
    assert show(broker, token("one"))["error_code"] == AUTHENTICATION_FAILED


def test_a_file_with_keys_has_to_be_there(tmp_path: Path) -> None:
    settings = sasl_settings(
        tmp_path,
        sasl_mechanisms="OAUTHBEARER",
        cleartext_secrets="true",
        oauth_jwks_file=tmp_path / "missing.json",
        oauth_issuer=ISSUER,
        oauth_audience=AUDIENCE,
    )
    process = BrokerProcess(tmp_path, settings)
    with pytest.raises(AssertionError, match=r"security\.oauth_jwks_file"):
        process.start()
