"""A request over a plain socket to something that does not answer as a broker does."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from penstock.admin.connection import Deadline
from penstock.admin.errors import UnreachableError
from penstock.admin.wire import call
from penstock.config.address import Address
from penstock.protocol import apis
from penstock.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.sdk.kafka.connection import ConnectionSettings


@pytest.mark.parametrize(
    "answer",
    [b"", b"\0\0", struct.pack(">i", -1), struct.pack(">i", 1 << 30), struct.pack(">i", 8) + bytes(3), b"HTTP/1.1 400"],
    ids=["nothing", "half a size", "negative size", "huge size", "half a response", "another protocol"],
)
def test_an_answer_that_is_none_is_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = server.getsockname()
        with pytest.raises(UnreachableError, match=f"{host}:{port} does not answer"):
            call(
                Address(host, port),
                apis.LIST_PARTITION_REASSIGNMENTS,
                0,
                ListPartitionReassignmentsRequest(),
                ListPartitionReassignmentsResponse,
                ConnectionSettings(f"{host}:{port}", "test", {}),
                Deadline(10),
            )
        thread.join()
