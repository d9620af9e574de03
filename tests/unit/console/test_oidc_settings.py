"""The file that names a provider, and what its claims give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.console.oidc.errors import IdentityError
from penstock.console.oidc.identity import Identity, claim, identity_of
from penstock.console.oidc.settings_file import oidc_settings
from penstock.console.security.roles import Role
from penstock.console.settings import OidcSettings
from penstock.errors import ConfigError

FILE = {"issuer": "https://login.example.com/ops", "client_id": "penstock", "role.admin": "boss"}


def test_a_file_with_everything() -> None:
    settings = oidc_settings(
        {
            **FILE,
            "client_secret": "hush",
            "role.admin": "boss, both",
            "role.viewer": "both,*",
            "role_claim": "realm_access.roles",
            "scopes": "openid,groups",
            "label": "Example",
            "passwords": "no",
            "provider_logout": "yes",
        }
    )
    assert settings == OidcSettings(
        issuer="https://login.example.com/ops",
        client_id="penstock",
        client_secret="hush",
        roles={"boss": Role.ADMIN, "both": Role.ADMIN, "*": Role.VIEWER},
        role_claim="realm_access.roles",
        scopes=("openid", "groups"),
        label="Example",
        takes_passwords=False,
        ends_provider_session=True,
    )
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"issuer": ""}, "issuer must be set"),
        ({"issuer": "", "client_id": ""}, "issuer and client_id must be set"),
        ({"issuer": "http://login.example.com"}, "https://HOST/PATH"),
        ({"issuer": "https://"}, "https://HOST/PATH"),
        ({"issuer": "https://login.example.com/?tenant=1"}, "no query"),
        ({"issuer": "https://user@login.example.com/"}, "no user in it"),
        ({"role.admin": ""}, "nobody could sign in"),
        ({"role.root": "x"}, "there is no setting role.root"),
        ({"role.none": "x"}, "there is no setting role.none"),
        ({"scopes": "profile"}, "openid"),
        ({"passwords": "false"}, "write yes or no"),
    ],
)
def test_a_file_that_cannot_be_meant(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        oidc_settings({**FILE, "client_secret": "hush", **changes})
    assert "hush" not in str(refused.value)


def test_an_issuer_on_this_machine_needs_no_encryption() -> None:
    assert oidc_settings({**FILE, "issuer": "http://127.0.0.1:8080/o"}).issuer == "http://127.0.0.1:8080/o"


@pytest.mark.parametrize(
    ("claims", "name", "found"),
    [
        ({"groups": ["a"]}, "groups", ["a"]),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", ["a"]),
        ({"https://example.com/roles": "a"}, "https://example.com/roles", "a"),
        ({"a.b": 1, "a": {"b": 2}}, "a.b", 1),
        ({"a": "text"}, "a.b", None),
        ({}, "a.b.c", None),
    ],
)
def test_a_claim_is_found_by_name_or_path(claims: Mapping[str, Any], name: str, found: Any) -> None:
    assert claim(claims, name) == found


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["boss", "staff"], Role.ADMIN),
        ("staff", Role.VIEWER),
        (["Boss", "boss "], Role.NONE),
        ([["boss"], {"boss": 1}, 7, None], Role.NONE),
        (None, Role.NONE),
        (["*"], Role.NONE),
    ],
)
def test_the_highest_role_counts_and_only_a_value_that_is_the_same(groups: Any, role: Role) -> None:
    settings = oidc_settings({**FILE, "role.viewer": "staff"})
    claims = {"sub": "s", "preferred_username": "eve", "groups": groups}
    assert identity_of(claims, settings) == Identity("s", "eve", role)


def test_an_asterisk_gives_a_role_to_everyone_whom_the_provider_lets_in() -> None:
    settings = oidc_settings({**FILE, "role.viewer": "*"})
    assert identity_of({"sub": "s", "preferred_username": "eve"}, settings).role is Role.VIEWER


@pytest.mark.parametrize("subject", [None, "", 7, "x" * 256])
def test_a_subject_that_names_nobody(subject: Any) -> None:
    with pytest.raises(IdentityError, match="does not say who it is"):
        identity_of({"sub": subject, "preferred_username": "eve"}, oidc_settings(FILE))
