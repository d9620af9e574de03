"""Addresses of databases: what is read from them, what is refused, and that no password gets out."""

from __future__ import annotations

import pytest

from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "mysql://penstock:secret@db.example:3307/queues",
            DatabaseAddress(DialectName.MYSQL, "queues", "db.example", 3307, "penstock", "secret"),
        ),
        (
            "mariadb://penstock:secret@db.example/queues",
            DatabaseAddress(DialectName.MYSQL, "queues", "db.example", 3306, "penstock", "secret"),
        ),
        (
            "postgresql://penstock@[::1]/queues?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
            DatabaseAddress(
                DialectName.POSTGRESQL,
                "queues",
                "::1",
                5432,
                "penstock",
                "",
                {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"},
            ),
        ),
        ("sqlite:///relative/queue.db", DatabaseAddress(DialectName.SQLITE, "relative/queue.db")),
        ("sqlite:////var/lib/queue%20one.db", DatabaseAddress(DialectName.SQLITE, "/var/lib/queue one.db")),
        (
            "mysql://u%40x:p%2F%3A%40%3F%23%25@h/d%20b",
            DatabaseAddress(DialectName.MYSQL, "d b", "h", 3306, "u@x", "p/:@?#%"),
        ),
    ],
)
def test_an_address_is_read(text: str, expected: DatabaseAddress) -> None:
    assert DatabaseAddress.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with mariadb://, mysql://, postgresql://, sqlite://"),
        ("queues", "begins with"),
        ("oracle://penstock:secret@host/queues", "begins with"),
        ("mysql:penstock:secret@host/queues", "begins with"),
        ("mysql://penstock:secret@host", "has to name one database"),
        ("mysql://penstock:secret@host/", "has to name one database"),
        ("mysql://penstock:secret@host/queues/more", "has to name one database"),
        ("mysql://host/queues", "has no user"),
        ("mysql://penstock:secret@/queues", "has no host"),
        ("mysql://penstock:secret@host:port/queues", "port"),
        ("mysql://penstock:secret@host:0/queues", "port"),
        ("mysql://penstock:secret@host:65536/queues", "port"),
        ("mysql://penstock:sec/ret@host/queues", "percent-encode"),
        ("mysql://penstock:sec?ret@host/queues", "options"),
        ("mysql://penstock:sec#ret@host/queues", "percent-encode"),
        ("mysql://penstock:secret@[host/queues", "cannot be read"),
        ("mysql://penstock:secret@host/queues?secret=1", "knows the options ssl_ca, ssl_cert, ssl_key"),
        ("postgresql://penstock:secret@host/queues?sslmode=require&sslmode=disable", "each once"),
        ("sqlite://secret/queue.db", "has no host"),
        ("sqlite:///", "names a file"),
        ("sqlite:///:memory:", "names a file"),
        ("sqlite:///queue.db?mode=ro", "has no options"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        DatabaseAddress.parse(text)
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_no_text_form_of_an_address_has_the_password(scheme: str) -> None:
    address = DatabaseAddress.parse(f"{scheme}://penstock:secret@host:1/queues")
    assert str(address) == f"{scheme}://penstock@host:1/queues"
    assert repr(address) == f"DatabaseAddress({scheme}://penstock@host:1/queues)"
    assert str(DatabaseAddress.parse(str(address))) == str(address)


@pytest.mark.parametrize("text", ["sqlite:///relative/queue.db", "sqlite:////var/lib/queue.db"])
def test_the_text_form_of_a_file_is_its_address(text: str) -> None:
    assert str(DatabaseAddress.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "mysql://us%40er:pa%2Fss@db.example:3307/we%2Bird%20name?ssl_ca=%2Fetc%2Fa+b%26c.pem&ssl_key=k",
        "postgresql://user:password@[::1]/db?sslmode=verify-full",
        "sqlite:////var/lib/50%25%20full%3F.db",
        "sqlite:///relative.db",
    ],
)
def test_the_public_text_has_all_but_the_password(text: str) -> None:
    address = DatabaseAddress.parse(text)
    found = DatabaseAddress.parse(address.public_text)
    assert found == address.with_password("")
    assert found.options == address.options
    assert found.with_password(address.password) == address


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("mysql://user:password@db.example/queue", "db.example:3306"),
        ("postgresql://user@[::1]:5433/queue", "[::1]:5433"),
        ("sqlite:////var/queue.db", "/var/queue.db"),
    ],
)
def test_a_server_is_named_by_host_and_port_or_by_its_file(text: str, server: str) -> None:
    assert DatabaseAddress.parse(text).server == server


def test_two_addresses_of_one_database_have_the_same_place_whoever_the_user_is() -> None:
    one, other = DatabaseAddress.parse("mysql://a:b@host/db"), DatabaseAddress.parse("mariadb://c@host:3306/db")
    assert one.place == other.place
    assert one.place != DatabaseAddress.parse("mysql://a:b@host/other").place
