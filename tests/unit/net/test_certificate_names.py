"""Who a caller is by its certificate."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.config.address import Address
from penstock.config.broker import Limits
from penstock.config.listeners import ListenerSettings
from penstock.config.security import SecurityProtocol, SecuritySettings, parse_client_certificates, parse_principals
from penstock.net.caller import Caller
from penstock.net.connection import Parts
from penstock.net.listener import Listeners
from penstock.net.tls import TlsContexts
from penstock.security.principal_mapping import MappingRules, parse_mapping_rules
from support.certificates import Authority

_REQUEST = struct.pack(">i", 8) + bytes(8)


async def _tell(frame: memoryview, caller: Caller) -> Parts:
    """Answers with what the broker takes the caller for."""
    said = f"{caller.principal} {'broker' if caller.is_inter_broker else 'client'}".encode()
    return [struct.pack(">i", len(said)) + said]


@asynccontextmanager
async def listening(authority: Authority, rules: MappingRules, brokers: str = "") -> AsyncIterator[int]:
    certificate, key = authority.sign("broker")
    security = SecuritySettings(
        certificate_file=certificate,
        key_file=key,
        ca_file=authority.file,
        client_certificates=parse_client_certificates("requested"),
        principal_mapping_rules=rules,
        broker_principals=parse_principals(brokers),
    )
    settings = ListenerSettings(
        name="INTER_BROKER",
        address=Address("127.0.0.1", 0),
        advertised=None,
        is_inter_broker=True,
        protocol=SecurityProtocol.SSL,
    )
    listeners = Listeners([settings], Limits(), _tell, TlsContexts(security), None, security)
    ((_, bound),) = listeners.bind()
    listeners.start()
    try:
        yield bound.port
    finally:
        await listeners.close()


async def told(port: int, authority: Authority, certificate: tuple[Path, Path] | None) -> str:
    context = ssl.create_default_context(cafile=str(authority.file))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(_REQUEST)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return (await reader.readexactly(size)).decode()
    finally:
        writer.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


DEFAULT = parse_mapping_rules("DEFAULT")
CN_ALONE = parse_mapping_rules("RULE:^CN=(.*?),.*$/$1/L")


async def test_the_name_of_the_certificate_is_the_user(authority: Authority) -> None:
    async with listening(authority, DEFAULT) as port:
        assert await told(port, authority, authority.sign("Alice")) == "User:CN=Alice,O=Penstock broker"


async def test_rules_make_a_user_of_the_name(authority: Authority) -> None:
    async with listening(authority, CN_ALONE) as port:
        assert await told(port, authority, authority.sign("Alice")) == "User:alice broker"


async def test_a_client_without_a_certificate_is_anonymous(authority: Authority) -> None:
    async with listening(authority, CN_ALONE) as port:
        assert await told(port, authority, None) == "User:ANONYMOUS broker"


async def test_a_name_that_no_rule_is_for_is_refused(authority: Authority) -> None:
    async with listening(authority, parse_mapping_rules("RULE:^OU=(.*)$/$1/")) as port:
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await told(port, authority, authority.sign("Alice"))


async def test_only_named_principals_count_as_brokers(authority: Authority) -> None:
    sign: Callable[[str], tuple[Path, Path]] = authority.sign
    async with listening(authority, CN_ALONE, "User:broker2") as port:
        assert await told(port, authority, sign("broker2")) == "User:broker2 broker"
        assert await told(port, authority, sign("Alice")) == "User:alice client"
        assert await told(port, authority, None) == "User:ANONYMOUS client"


async def test_a_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other").sign("broker2")
    async with listening(authority, CN_ALONE, "User:broker2") as port:
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await told(port, authority, stranger)
