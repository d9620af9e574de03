"""What a listener knows of a client before it has said anything: its address."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from penstock.config.address import Address
from penstock.config.broker import Limits
from penstock.config.listeners import ListenerSettings
from penstock.net.caller import Caller
from penstock.net.connection import Parts
from penstock.net.listener import Listeners

_REQUEST = struct.pack(">i", 8) + bytes(8)


async def _tell(frame: memoryview, caller: Caller) -> Parts:
    """Answers with the address of the caller."""
    said = caller.host.encode()
    return [struct.pack(">i", len(said)) + said]


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="there is no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_is_spelled_the_same_on_every_socket(host: str) -> None:
    """An ACL that denies 127.0.0.1 is for a client that comes to a socket for IPv6, too."""
    settings = ListenerSettings(name="PLAINTEXT", address=Address("::", 0), advertised=None, is_inter_broker=False)
    listeners = Listeners([settings], Limits(), _tell)
    ((_, bound),) = listeners.bind()
    listeners.start()
    try:
        reader, writer = await asyncio.open_connection(host, bound.port)
        writer.write(_REQUEST)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        assert (await reader.readexactly(size)).decode() == host
        writer.close()
    finally:
        await listeners.close()
