"""Where a cluster keeps its state: zk://HOST:PORT,HOST:PORT/PATH, as a value."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.config.address import parse_address

_SCHEME = "zk://"
# What is allowed in a chroot path; ZooKeeper takes more, but Penstock has no use for it.
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
_MAX_PATH_LENGTH = 90
_ALLOWED = (
    "zk://HOST:PORT,HOST:PORT/PATH with a path of letters, digits, '.', '_' and '-', "
    f"at most {_MAX_PATH_LENGTH} characters long, such as zk://127.0.0.1:2181/penstock"
)


class CoordinatorAddress(NamedTuple):
    """The servers of an ensemble, and the path below which the cluster's tree is."""

    servers: str
    chroot: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.servers}{self.chroot}"


def parse_coordinator(text: str) -> CoordinatorAddress:
    """Raises ValueError with the allowed spelling."""
    servers, slash, path = text.strip().removeprefix(_SCHEME).partition("/")
    chroot = slash + path
    names = path.split("/")
    if (
        not text.strip().startswith(_SCHEME)
        or not _PATH.fullmatch(chroot)
        or len(chroot) > _MAX_PATH_LENGTH
        or not {".", ".."}.isdisjoint(names)
    ):
        raise ValueError(_ALLOWED)
    try:
        addresses = [parse_address(server) for server in servers.split(",")]
    except ValueError:
        raise ValueError(_ALLOWED) from None
    if any(address.port == 0 for address in addresses):
        raise ValueError(_ALLOWED)
    return CoordinatorAddress(",".join(str(address) for address in addresses), chroot)
