"""The file of `penstock console --oidc-file`: one NAME=VALUE a line.

issuer=https://login.example.com/realms/ops
client_id=penstock
client_secret=…
role_claim=groups
role.admin=queue-admins
role.operator=queue-operators,on-call
role.viewer=*
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.config.security import parse_key_set_url
from penstock.console.security.roles import Role
from penstock.console.settings import OidcSettings
from penstock.errors import ConfigError

_ROLE = "role."
_NEEDED = ("issuer", "client_id")
_WORDS = ("client_secret", "name_claim", "role_claim", "label")
_ANSWERS = {"passwords": "takes_passwords", "provider_logout": "ends_provider_session"}
_NAMES = (*_NEEDED, *_WORDS, "scopes", *_ANSWERS, *(f"{_ROLE}{each.value}" for each in Role if each is not Role.NONE))


def oidc_settings(values: Mapping[str, str]) -> OidcSettings:
    """The settings that a file has; ConfigError says what is wrong with them, without secrets."""
    unknown = [name for name in values if name not in _NAMES]
    if unknown:
        raise ConfigError(f"there is no setting {', '.join(unknown)}, only {', '.join(_NAMES)}")
    missing = [name for name in _NEEDED if not values.get(name)]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} must be set")
    roles = _roles(values)
    if not roles:
        raise ConfigError("nobody could sign in: say which value gives a role, such as role.admin=queue-admins")
    scopes = tuple(values.get("scopes", "openid profile email").replace(",", " ").split())
    if "openid" not in scopes:
        raise ConfigError("scopes must have openid in it")
    more: dict[str, Any] = {name: values[name] for name in _WORDS if values.get(name)}
    more |= {field: _answer(name, values[name]) for name, field in _ANSWERS.items() if name in values}
    return OidcSettings(
        issuer=check_issuer(values["issuer"]), client_id=values["client_id"], roles=roles, scopes=scopes, **more
    )


def check_issuer(issuer: str) -> str:
    """ConfigError unless it is an address that no host on the way can impersonate."""
    try:
        parse_key_set_url(issuer)
    except ValueError as error:
        raise ConfigError(f"issuer = '{issuer}': write {error}") from None
    parts = urlsplit(issuer)
    if parts.query or parts.fragment or parts.username:
        raise ConfigError(f"issuer = '{issuer}': it has no query, no fragment and no user in it")
    return issuer


def _roles(values: Mapping[str, str]) -> dict[str, Role]:
    found: dict[str, Role] = {}
    # The highest role last: it counts for a value that is named twice.
    for role in sorted(Role, key=lambda each: each.rank):
        for value in values.get(f"{_ROLE}{role.value}", "").split(","):
            if value.strip():
                found[value.strip()] = role
    return found


def _answer(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigError(f"{name} = '{text}': write yes or no")
    return text == "yes"
