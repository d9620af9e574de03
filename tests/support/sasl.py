"""Logging in: settings of brokers and of real clients, and logins with nothing between the test and the bytes."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from penstock.protocol import apis
from penstock.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.protocol.messages.sasl_handshake import SaslHandshakeRequest
from penstock.security.scram import ScramClient, ScramMechanism
from support.access import MECHANISM, Access
from support.waiting import PATIENCE_S
from support.wire import Wire

ADMIN, PASSWORD = "admin", "geheim, = 1"
AUTHENTICATION_FAILED = 58
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def password_file(folder: Path, name: str = "admin-password", password: str = PASSWORD) -> Path:
    file = folder / name
    file.write_text(password + "\n")
    return file


def sasl_settings(folder: Path, protocol: str = "SASL_PLAINTEXT", **more: object) -> dict[str, object]:
    """Of a broker whose first user is ADMIN; further settings without their section."""
    return {
        "security.protocols": f"PLAINTEXT:{protocol}",
        "security.admin_user": ADMIN,
        "security.admin_password_file": password_file(folder),
        **{f"security.{name}": value for name, value in more.items()},
    }


def librdkafka(
    bootstrap: str,
    mechanism: str = "SCRAM-SHA-512",
    user: str = ADMIN,
    password: str = PASSWORD,
    *,
    ca_file: Path | None = None,
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "sasl_plaintext" if ca_file is None else "sasl_ssl",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }
    return settings if ca_file is None else settings | {"ssl.ca.location": str(ca_file)}


def connect(access: Access | None, address: tuple[str, int], patience_s: float = PATIENCE_S) -> Wire:
    """A connection that has logged in, through TLS; a plain one without an access."""
    wire = Wire(address, patience_s)
    if access is None:
        return wire
    try:
        context = ssl.create_default_context(cafile=str(access.ca_file))
        wire.socket = context.wrap_socket(wire.socket, server_hostname=address[0])
        answer = log_in(wire, access.user, access.password, ScramMechanism(MECHANISM))
        if answer["error_code"]:
            raise ConnectionError(f"the login failed: {answer}")
    except BaseException:
        wire.socket.close()
        raise
    return wire


def handshake(wire: Wire, mechanism: str, version: int = 1) -> dict[str, Any]:
    return wire.ask(apis.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))


def authenticate(wire: Wire, token: bytes, version: int = 2) -> dict[str, Any]:
    return wire.ask(apis.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=token))


def log_in(
    wire: Wire, user: str = ADMIN, password: str = PASSWORD, mechanism: ScramMechanism = ScramMechanism.SHA_256
) -> dict[str, Any]:
    """The last answer of a login with SCRAM."""
    assert handshake(wire, mechanism.value)["error_code"] == 0
    client = ScramClient(mechanism, user, password)
    message, answer = client.respond(None), {}
    while message is not None:
        answer = authenticate(wire, message)
        if answer["error_code"]:
            return answer
        message = client.respond(answer["auth_bytes"])
    return answer
