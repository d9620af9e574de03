"""One request to one broker over a plain socket, for the admin requests that confluent-kafka lacks.

No TLS and no SASL: a cluster that demands either answers these requests with a closed connection, which is an
`UnreachableError`.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

from penstock.admin.connection import Deadline
from penstock.admin.errors import NETWORK_EXCEPTION, UnreachableError
from penstock.config.address import Address
from penstock.errors import ProtocolError
from penstock.protocol.apis import Api
from penstock.protocol.decoding import decode
from penstock.protocol.encoding import encode

T = TypeVar("T")

_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_CORRELATION_ID = 1
_MAX_RESPONSE_BYTES = 64 << 20


def call(
    address: Address, api: Api, version: int, request: object, response: type[T], client_id: str, deadline: Deadline
) -> T:
    """The response to a request of a flexible version."""
    assert version >= api.flexible_from
    name = client_id.encode()
    body = encode(request, version)
    # The two empty sections of tagged fields are one byte each: the header's here, the body's in the body.
    frame = _HEADER.pack(api.key, version, _CORRELATION_ID, len(name)) + name + b"\0" + body
    try:
        with socket.create_connection(address, timeout=deadline.left_s) as connection:
            connection.sendall(_SIZE.pack(len(frame)) + frame)
            (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size, deadline))
            if not _SIZE.size <= size <= _MAX_RESPONSE_BYTES:
                raise ProtocolError(f"a response of {size} bytes")
            answer = _exactly(connection, size, deadline)
        # Behind the correlation id and the header's section of tagged fields.
        return decode(response, version, answer, _SIZE.size + 1)[0]
    except (OSError, ProtocolError) as error:
        raise UnreachableError(
            NETWORK_EXCEPTION, f"{address} does not answer: {error or type(error).__name__}"
        ) from None


def _exactly(connection: socket.socket, count: int, deadline: Deadline) -> bytes:
    received = bytearray()
    while len(received) < count:
        connection.settimeout(deadline.left_s)
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionResetError("the connection was closed")
        received += part
    return bytes(received)
