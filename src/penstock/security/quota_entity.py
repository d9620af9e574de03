"""Whom a quota is for: a user, a client id, both together, or an address; each by name or as the default (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""The types of entities, as Kafka spells them."""
ENTITY_TYPES = (USER, CLIENT_ID, IP)

DEFAULT_NAME = ""
"""Stands for all that have no quota of their own. No entity is called so; on the wire it is null."""
MAX_NAME_LENGTH = 255
"""Characters of the name of an entity that has a quota."""


class QuotaEntity(NamedTuple):
    """A user, a client id or an address: None if the quota does not look at it, `DEFAULT_NAME` for the default."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def names(self) -> dict[str, str]:
        """The names by type, of the types that it has."""
        return {type_: name for type_, name in zip(ENTITY_TYPES, self, strict=True) if name is not None}

    def __str__(self) -> str:
        return ", ".join(f"{type_} {name!r}" if name else f"default {type_}" for type_, name in self.names.items())


def quota_entity(names: Mapping[str, str | None]) -> QuotaEntity:
    """The entity with these names by type, None for the default; ValueError says what is wrong with them."""
    if not names:
        raise ValueError("Invalid empty client quota entity.")
    for type_, name in names.items():
        if type_ not in ENTITY_TYPES:
            raise ValueError(f"Unhandled client quota entity type: {type_}.")
        if name == DEFAULT_NAME:
            raise ValueError(f"Empty {type_} not supported.")
        if name is not None and len(name) > MAX_NAME_LENGTH:
            raise ValueError(f"A {type_} with a quota has a name of at most {MAX_NAME_LENGTH} characters.")
    if IP in names and len(names) > 1:
        raise ValueError("Invalid quota entity combination: an ip does not go with a user or a client-id.")
    return QuotaEntity(*(_spelled(type_, names[type_]) if type_ in names else None for type_ in ENTITY_TYPES))


def _spelled(type_: str, name: str | None) -> str:
    if name is None:
        return DEFAULT_NAME
    if type_ != IP:
        return name
    try:
        return str(ip_address(name))
    except ValueError:
        raise ValueError(f"{name!r} is not an IP address.") from None
