"""Whom a provider's claims name, and which role they give. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.console.oidc.errors import IdentityError
from penstock.console.security.roles import Role
from penstock.console.settings import OidcSettings

EVERYONE = "*"
_MAX_SUBJECT = 255


@dataclass(frozen=True, slots=True)
class Identity:
    """The user who signs in. The provider knows a person by the subject for ever; a name can change hands."""

    subject: str
    name: str
    role: Role
    """NONE if the provider gives no role: then this person does not come in."""


def identity_of(claims: Mapping[str, Any], settings: OidcSettings) -> Identity:
    """IdentityError if the claims name no user."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT:
        raise IdentityError("the provider does not say who it is (sub)")
    name = claim(claims, settings.name_claim)
    if not isinstance(name, str) or not name:
        raise IdentityError(
            f"the provider tells no {settings.name_claim}: ask for the scope that has it, or set name_claim"
        )
    if settings.name_claim == "email" and claims.get("email_verified") is False:
        raise IdentityError("the provider has not verified this mail address")
    return Identity(subject, name, _role(claims, settings))


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of that very name, or what is at the end of a path with dots; None if there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _role(claims: Mapping[str, Any], settings: OidcSettings) -> Role:
    held = claim(claims, settings.role_claim)
    values = [EVERYONE, *(held if isinstance(held, list) else [held])]
    roles = [settings.roles[each] for each in values if isinstance(each, str) and each in settings.roles]
    return max(roles, key=lambda each: each.rank, default=Role.NONE)
