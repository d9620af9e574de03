"""Which quotas a request asks for (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from penstock.security.quota_entity import DEFAULT_NAME, ENTITY_TYPES, IP, QuotaEntity, quota_entity


class Match(IntEnum):
    """How a filter matches the name of an entity; Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2
    """Any name, the default included."""


class UnknownTypeError(ValueError):
    """A type of entities that there is not, in this version."""


class QuotaFilter:
    """What a filter requires of each type; if it is `strict`, the entity must have these types and no others."""

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        """Components are type, match and name; ValueError says what is wrong with them."""
        wanted: dict[str, str | None] = {}
        for type_, match, name in components:
            if not type_:
                raise ValueError("Invalid empty entity type.")
            if type_ in wanted:
                raise ValueError(f"Entity type {type_} cannot appear more than once in the filter.")
            if type_ not in ENTITY_TYPES:
                raise UnknownTypeError(f"Unsupported entity type {type_}.")
            wanted[type_] = _wanted_name(match, name)
            if type_ == IP and wanted[type_]:
                wanted[type_] = quota_entity({IP: name}).ip
        if IP in wanted and len(wanted) > 1:
            raise ValueError("Invalid entity filter: an ip does not go with a user or a client-id.")
        self._wanted = wanted
        self._strict = strict

    def matches(self, entity: QuotaEntity) -> bool:
        names = entity.names
        if self._strict and names.keys() != self._wanted.keys():
            return False
        return all(type_ in names and name in (None, names[type_]) for type_, name in self._wanted.items())


def _wanted_name(match: int, name: str | None) -> str | None:
    """None for any name."""
    if match == Match.EXACT:
        if name is None:
            raise ValueError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if name == DEFAULT_NAME:
            raise ValueError("Request specified MATCH_TYPE_EXACT, but set match string to an empty name.")
        return name
    if match not in (Match.DEFAULT, Match.ANY):
        raise ValueError(f"Unknown match type {match}.")
    if name is not None:
        spelled = "MATCH_TYPE_DEFAULT" if match == Match.DEFAULT else "MATCH_TYPE_SPECIFIED"
        raise ValueError(f"Request specified {spelled}, but also specified a match string.")
    return DEFAULT_NAME if match == Match.DEFAULT else None
