"""HOST:PORT, as a value."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """A host and a TCP port; port 0 asks for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads HOST:PORT or [IPV6]:PORT; raises ValueError with the allowed spelling."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if (
        not colon
        or not host
        or (":" in host and not bracketed)
        or any(character.isspace() or character in "[]/" for character in host)
        or not (port.isascii() and port.isdigit())
        or int(port[:6]) > 65535
    ):
        raise ValueError("HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092 or [::1]:9092")
    return Address(host, int(port))


def parse_public_address(text: str) -> Address:
    """Like `parse_address`, for an address that others connect to: a real host and port."""
    address = parse_address(text)
    if address.port == 0 or is_wildcard(address):
        raise ValueError("HOST:PORT that clients can connect to, not port 0 and not a wildcard address")
    return address


def is_wildcard(address: Address) -> bool:
    """Whether the host means every interface, which no client can connect to."""
    return address.host in ("0.0.0.0", "::", "*")
