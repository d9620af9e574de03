"""One request to one broker over a socket of our own, for the admin requests that confluent-kafka lacks.

TLS and SASL follow from the same librdkafka settings as all other requests of the cluster.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from penstock.admin.connection import Deadline
from penstock.admin.errors import NETWORK_EXCEPTION, AdminError, UnreachableError
from penstock.config.address import Address
from penstock.errors import Code, ProtocolError
from penstock.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from penstock.protocol.decoding import decode
from penstock.protocol.encoding import encode
from penstock.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.security.exchange import ClientExchange, LoginError
from penstock.security.oauth import BearerClient
from penstock.security.plain import PlainClient
from penstock.security.scram import ScramClient, ScramMechanism

T = TypeVar("T")

_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_CORRELATION_ID = 1
_MAX_RESPONSE_BYTES = 64 << 20
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_NO = ("false", "none", "")


def call(
    address: Address,
    api: Api,
    version: int,
    request: object,
    response: type[T],
    connection: ConnectionSettings,
    deadline: Deadline,
) -> T:
    """The response to a request."""
    settings = connection.settings
    protocol = str(settings.get("security.protocol", "plaintext")).lower()
    try:
        with socket.create_connection(address, timeout=deadline.left_s) as plain:
            secured = _encrypted(plain, address.host, settings) if protocol.endswith("ssl") else plain
            with secured:
                link = _Link(secured, connection.client_id, deadline)
                if protocol.startswith("sasl"):
                    _log_in(link, settings)
                return link.ask(api, version, request, response)
    except LoginError as error:
        raise AdminError(Code.SASL_AUTHENTICATION_FAILED.name, f"{address}: {error}") from None
    except (OSError, ProtocolError) as error:
        raise UnreachableError(
            NETWORK_EXCEPTION, f"{address} does not answer: {error or type(error).__name__}"
        ) from None


class _Link:
    """Requests and responses over one socket, one after the other."""

    def __init__(self, connection: socket.socket, client_id: str, deadline: Deadline) -> None:
        self._connection = connection
        self._client_id = client_id.encode()
        self._deadline = deadline

    def ask(self, api: Api, version: int, request: object, response: type[T]) -> T:
        is_flexible = version >= api.flexible_from
        head = _HEADER.pack(api.key, version, _CORRELATION_ID, len(self._client_id)) + self._client_id
        # The header of a flexible version has a section of tagged fields, which is empty: one byte.
        frame = head + (b"\0" if is_flexible else b"") + encode(request, version)
        self._connection.sendall(_SIZE.pack(len(frame)) + frame)
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        if not _SIZE.size <= size <= _MAX_RESPONSE_BYTES:
            raise ProtocolError(f"a response of {size} bytes")
        # Behind the correlation id and, in flexible versions, the header's section of tagged fields.
        return decode(response, version, self._exactly(size), _SIZE.size + is_flexible)[0]

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            self._connection.settimeout(self._deadline.left_s)
            part = self._connection.recv(count - len(received))
            if not part:
                raise ConnectionResetError("the connection was closed")
            received += part
        return bytes(received)


def _encrypted(plain: socket.socket, host: str, settings: Mapping[str, Any]) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    if str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower() in _NO:
        context.check_hostname = False
    if str(settings.get("enable.ssl.certificate.verification", "true")).lower() in _NO:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = settings.get("ssl.certificate.location")
    if certificate is not None:
        context.load_cert_chain(certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password", ""))
    return context.wrap_socket(plain, server_hostname=host)


def _log_in(link: _Link, settings: Mapping[str, Any]) -> None:
    mechanism = str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "")
    exchange = _exchange(mechanism, settings)
    agreed = link.ask(
        SASL_HANDSHAKE, _HANDSHAKE_VERSION, SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse
    )
    if agreed.error_code:
        raise LoginError(f"{mechanism} is not taken; the broker has {', '.join(agreed.mechanisms) or 'none'}")
    message = exchange.respond(None)
    while message is not None:
        answer = link.ask(
            SASL_AUTHENTICATE,
            _AUTHENTICATE_VERSION,
            SaslAuthenticateRequest(auth_bytes=message),
            SaslAuthenticateResponse,
        )
        if answer.error_code:
            raise LoginError(answer.error_message or Code(answer.error_code).name)
        message = exchange.respond(bytes(answer.auth_bytes))


def _exchange(mechanism: str, settings: Mapping[str, Any]) -> ClientExchange:
    user, password = str(settings.get("sasl.username", "")), str(settings.get("sasl.password", ""))
    if mechanism == "PLAIN":
        return PlainClient(user, password)
    if mechanism in {each.value for each in ScramMechanism}:
        return ScramClient(ScramMechanism(mechanism), user, password)
    if mechanism == "OAUTHBEARER" and "oauth_cb" in settings:
        return BearerClient(str(settings["oauth_cb"](settings.get("sasl.oauthbearer.config", ""))[0]))
    raise LoginError(
        f"sasl.mechanism '{mechanism}' cannot be used for this request: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, and "
        "OAUTHBEARER with oauth_cb can"
    )
