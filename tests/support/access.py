"""Where clients begin, and as whom: one text, so that whatever takes a bootstrap address takes a login with it.

HOST:PORT,HOST:PORT                                     without a login
sasl_ssl://USER:PASSWORD@HOST:PORT,HOST:PORT?ca=FILE    with SCRAM-SHA-512, through TLS
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

_SCHEME = "sasl_ssl://"
MECHANISM = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Access:
    """A user, and the authority that it trusts."""

    user: str
    password: str
    ca_file: Path

    def at(self, servers: str) -> str:
        """Where a client of this user begins."""
        return f"{_SCHEME}{quote(self.user, '')}:{quote(self.password, '')}@{servers}?ca={quote(str(self.ca_file))}"


def parse(bootstrap: str) -> tuple[str, Access | None]:
    """The addresses, and who begins there."""
    if not bootstrap.startswith(_SCHEME):
        return bootstrap, None
    who, _, rest = bootstrap.removeprefix(_SCHEME).partition("@")
    servers, _, authority = rest.partition("?ca=")
    user, _, password = who.partition(":")
    return servers, Access(unquote(user), unquote(password), Path(unquote(authority)))


def librdkafka(bootstrap: str) -> dict[str, Any]:
    servers, access = parse(bootstrap)
    if access is None:
        return {"bootstrap.servers": servers}
    return {
        "bootstrap.servers": servers,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(access.ca_file),
        "sasl.mechanism": MECHANISM,
        "sasl.username": access.user,
        "sasl.password": access.password,
    }


def kafka_python(bootstrap: str) -> dict[str, Any]:
    servers, access = parse(bootstrap)
    if access is None:
        return {"bootstrap_servers": servers}
    return {"bootstrap_servers": servers, "ssl_cafile": str(access.ca_file), **_sasl(access)}


def aiokafka(bootstrap: str) -> dict[str, Any]:
    servers, access = parse(bootstrap)
    if access is None:
        return {"bootstrap_servers": servers}
    context = ssl.create_default_context(cafile=str(access.ca_file))
    return {"bootstrap_servers": servers, "ssl_context": context, **_sasl(access)}


def _sasl(access: Access) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": access.user,
        "sasl_plain_password": access.password,
    }
