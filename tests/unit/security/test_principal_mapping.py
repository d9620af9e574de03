"""Names of certificates become users, by Kafka's rules."""

from __future__ import annotations

import pytest

from penstock.security.principal_mapping import DEFAULT_RULES, distinguished_name, parse_mapping_rules

NAME = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", NAME, NAME),
        ("", NAME, NAME),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", NAME, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", NAME, "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", NAME, "DUKE@SERVICEUSERS"),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/, DEFAULT", NAME, NAME),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/,RULE:^.*O=(.*?),.*$/of-$1/L", NAME, "of-org"),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/", NAME, None),
        (r"RULE:^CN=(.*)\/(.*)$/$2/", "CN=host/alice", "alice"),
        ("RULE:CN=Duke/Duke/", NAME, None),
    ],
)
def test_rules(rules: str, name: str, user: str | None) -> None:
    assert parse_mapping_rules(rules).user_of(name) == user


@pytest.mark.parametrize("rules", ["RULE:abc", "default", "RULE:(/x/", "RULE:a/$1/", "RULE:a/b/X"])
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError):
        parse_mapping_rules(rules)


@pytest.mark.parametrize("rules", ["RULE:^CN=(.*?),OU=S.*$/$1/L,DEFAULT", r"RULE:^CN=(.*)\/(.*)$/$2/", "DEFAULT"])
def test_rules_can_be_read_back(rules: str) -> None:
    assert parse_mapping_rules(str(parse_mapping_rules(rules))) == parse_mapping_rules(rules)


def test_a_name_that_is_too_long_is_refused() -> None:
    assert DEFAULT_RULES.user_of("CN=" + "x" * 3000) is None


def test_a_name_is_written_as_java_writes_it() -> None:
    subject = (
        (("countryName", "US"),),
        (("organizationName", "Org, Inc."),),
        (("organizationalUnitName", "a"), ("userId", "b")),
        (("commonName", " #x+y "),),
    )
    assert distinguished_name(subject) == r"CN=\ #x\+y\ ,OU=a+UID=b,O=Org\, Inc.,C=US"
