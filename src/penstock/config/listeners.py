"""The listeners of a broker: where it takes connections, under which names, and which addresses it advertises.

The spelling is that of Kafka's `listeners`: `NAME://HOST:PORT,NAME://HOST:PORT`. A `HOST:PORT` without a name is one
listener named PLAINTEXT. See "Listeners" in `docs/cluster.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from penstock.config.address import Address, is_wildcard, parse_address, parse_public_address
from penstock.config.security import NO_PROTOCOLS, ListenerProtocols, SecurityProtocol
from penstock.errors import ConfigError

PLAINTEXT = "PLAINTEXT"
"""The name of a listener that is given without one; Kafka's name for a listener without encryption."""
INTER_BROKER = "INTER_BROKER"
"""The inter-broker listener unless another is named; a broker of a cluster opens it by itself."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SEVERAL = "or several as NAME://HOST:PORT,NAME://HOST:PORT"


class NamedAddress(NamedTuple):
    """The address of one listener."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


class NamedAddresses(tuple[NamedAddress, ...]):
    """Addresses by listener name, in the order in which they were given."""

    __slots__ = ()

    def __str__(self) -> str:
        if [each.name for each in self] == [PLAINTEXT]:
            return str(self[0].address)
        return ",".join(map(str, self))

    @property
    def by_name(self) -> dict[str, Address]:
        return dict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One listener as the broker opens it."""

    name: str
    address: Address
    """The address that it binds; port 0 takes a free one."""
    advertised: Address | None
    """The address that it advertises; None for the one that it binds. Port 0 stands for the port that it binds."""
    is_inter_broker: bool
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    def __str__(self) -> str:
        return str(NamedAddresses([NamedAddress(self.name, self.address)]))

    def endpoint(self, bound: Address) -> Address:
        """The address that it advertises once it has bound this one."""
        advertised = self.advertised or bound
        return advertised if advertised.port else Address(advertised.host, bound.port)


def parse_listen(text: str) -> NamedAddresses:
    """Reads `broker.listen`; raises ValueError with the allowed spelling."""
    return _parse(text, parse_address)


def parse_advertised(text: str) -> NamedAddresses:
    """Reads `broker.advertised`; raises ValueError with the allowed spelling."""
    return _parse(text, parse_public_address)


def parse_listener_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name of letters, digits, '_', '-' and '.', such as INTER_BROKER")
    return text.upper()


def resolve_listeners(
    listen: NamedAddresses,
    advertised: NamedAddresses | None,
    inter_broker: str,
    protocols: ListenerProtocols = NO_PROTOCOLS,
    *,
    in_cluster: bool,
) -> tuple[ListenerSettings, ...]:
    """All listeners that a broker with these settings opens; raises ConfigError if they contradict each other."""
    told = advertised or NamedAddresses()
    for key, named in (("broker.listen", listen), ("broker.advertised", told)):
        _refuse_repeated_names(key, named)
    _refuse_shared_ports(listen)
    _refuse_shared_endpoints(told)
    names, endpoints = listen.by_name.keys(), told.by_name
    for unknown in endpoints.keys() - names:
        raise ConfigError(
            f"broker.advertised = '{advertised}': broker.listen has no listener {unknown}, only {', '.join(names)}"
        )
    for name, address in listen:
        if is_wildcard(address) and name not in endpoints:
            spelled = NamedAddresses([NamedAddress(name, address)])
            raise ConfigError(
                f"broker.listen = '{spelled}' takes connections on every interface: "
                "set broker.advertised to the HOST:PORT that clients shall use"
            )
    opened = [
        ListenerSettings(
            name=name,
            address=address,
            advertised=endpoints.get(name),
            is_inter_broker=name == inter_broker,
            protocol=protocols.of(name),
        )
        for name, address in listen
    ]
    if inter_broker not in names:
        if inter_broker != INTER_BROKER:
            raise ConfigError(
                f"broker.inter_broker_listener = '{inter_broker}': broker.listen has no listener of that name, "
                f"only {', '.join(names)}"
            )
        if in_cluster:
            opened.append(_inter_broker_listener_beside(opened[0], protocols.of(INTER_BROKER)))
    elif len(names) == 1:
        raise ConfigError(
            f"broker.listen = '{listen}' has the inter-broker listener alone: add a listener for clients, "
            "such as CLIENT://127.0.0.1:9092"
        )
    # Clients first: the first listener is the one that people are shown, and that older brokers know.
    return tuple(sorted(opened, key=lambda each: each.is_inter_broker))


def _inter_broker_listener_beside(first: ListenerSettings, protocol: SecurityProtocol) -> ListenerSettings:
    """The inter-broker listener of a broker that was given none: on the same host, on a port that is free."""
    host = first.address.host
    told = Address(first.advertised.host, 0) if is_wildcard(first.address) and first.advertised is not None else None
    return ListenerSettings(
        name=INTER_BROKER, address=Address(host, 0), advertised=told, is_inter_broker=True, protocol=protocol
    )


def _parse(text: str, parse_one: Callable[[str], Address]) -> NamedAddresses:
    try:
        found = [_parse_one(part.strip(), parse_one) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{error}; {_SEVERAL}") from None
    if len(found) > 1 and any("://" not in part for part in text.split(",")):
        raise ValueError(f"one HOST:PORT, {_SEVERAL}")
    return NamedAddresses(found)


def _parse_one(text: str, parse_one: Callable[[str], Address]) -> NamedAddress:
    name, separator, address = text.rpartition("://")
    return NamedAddress(parse_listener_name(name) if separator else PLAINTEXT, parse_one(address))


def _refuse_repeated_names(key: str, named: NamedAddresses) -> None:
    names = [each.name for each in named]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{key} = '{named}': the listener {name} is given twice")


def _refuse_shared_ports(listen: NamedAddresses) -> None:
    for one, other in combinations(listen, 2):
        if one.address.port and share_ports(one.address, other.address):
            raise ConfigError(f"broker.listen = '{listen}': {one.name} and {other.name} use the same port")


def _refuse_shared_endpoints(told: NamedAddresses) -> None:
    for one, other in combinations(told, 2):
        if one.address == other.address:
            raise ConfigError(f"broker.advertised = '{told}': {one.name} and {other.name} have the same address")


def share_ports(one: Address, other: Address, count: int = 1) -> bool:
    """Whether `count` ports from each of the two addresses on have one in common."""
    share_host = one.host == other.host or is_wildcard(one) or is_wildcard(other)
    return share_host and abs(one.port - other.port) < count
