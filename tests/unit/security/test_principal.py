"""Principals are written as Kafka writes them."""

from __future__ import annotations

import pytest

from penstock.security.principal import Principal


def test_principal_is_read_as_it_is_written() -> None:
    for principal in (Principal.user("alice"), Principal.user("CN=a:b,O=c"), Principal("Group", "ops")):
        assert Principal.parse(str(principal)) == principal


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice"])
def test_text_that_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TYPE:NAME"):
        Principal.parse(text)
