"""TLS and credentials on the port of health and metrics."""

from __future__ import annotations

import signal
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import pytest

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.certificates import Authority, tls_settings
from support.waiting import until

PAGES = ("/metrics", "/health", "/ready", "/", "/other")


def status(broker: BrokerProcess, path: str, authority: Authority, authorization: str | None = None) -> int:
    request = urllib.request.Request(f"https://{broker.http}{path}")
    if authorization is not None:
        request.add_header("Authorization", authorization)
    context = ssl.create_default_context(cafile=str(authority.file))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            found: int = response.status
            return found
    except urllib.error.HTTPError as error:
        return error.code


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def serial_number(broker: BrokerProcess) -> str:
    host, _, port = broker.http.partition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_health_and_metrics_are_encrypted_and_for_those_in_the_file(new_broker: BrokerFactory, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    file = tmp_path / "credentials"
    file.write_text("prometheus:secret\nbearer t0ken\n")
    settings = {"security.http_tls": True, "security.http_credentials_file": file, **tls_settings(authority)}
    broker = new_broker(settings)
    for path in PAGES:
        assert status(broker, path, authority) == 401
        assert status(broker, path, authority, basic("prometheus", "wrong")) == 401
        expected = 404 if path == "/other" else 200
        assert status(broker, path, authority, basic("prometheus", "secret")) == expected
        assert status(broker, path, authority, "Bearer t0ken") == expected
    with pytest.raises(OSError, match=r"closed connection|reset|Remote end"):
        urllib.request.urlopen(f"http://{broker.http}/health", timeout=30)
    assert "secret" not in broker.log and "t0ken" not in broker.log
    before = serial_number(broker)
    file.write_text("prometheus:another\n")
    authority.sign("broker")
    broker.signal(signal.SIGHUP)
    until(lambda: status(broker, "/health", authority, basic("prometheus", "another")) == 200, "the file is read again")
    assert status(broker, "/health", authority, "Bearer t0ken") == 401
    assert serial_number(broker) != before
