"""HOST:PORT in every spelling we take, and the ones we refuse."""

from __future__ import annotations

import pytest

from penstock.config.address import Address, is_wildcard, parse_address, parse_public_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("broker-1.example:0", Address("broker-1.example", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        (" localhost:1 ", Address("localhost", 1)),
    ],
)
def test_an_address_is_read_and_spelled_back(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        ":9092",
        "localhost:",
        "a:b",
        "a:-1",
        "a:65536",
        "a:999999999",
        "::1:9092",
        "a b:1",
        "a/b:1",
    ],
)
def test_what_is_not_an_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 127\.0\.0\.1:9092"):
        parse_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0:9092", "[::]:9092", "localhost:0"])
def test_an_address_nobody_can_connect_to_is_not_advertised(text: str) -> None:
    with pytest.raises(ValueError, match="can connect to"):
        parse_public_address(text)


def test_wildcards_are_known() -> None:
    assert is_wildcard(Address("0.0.0.0", 1))
    assert not is_wildcard(Address("10.0.0.1", 1))
