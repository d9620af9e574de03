"""The passwords of database groups: encrypted for the metadata, with the key in a file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.database_address import DatabaseAddress
from penstock.errors import ConfigError
from penstock.sql.passwords import PasswordKey, new_key

KEY = PasswordKey(new_key())


@given(st.text(st.characters(codec="utf-8")))
def test_a_password_is_read_with_the_key_and_hidden_without(password: str) -> None:
    secret = KEY.encrypt(password)
    assert KEY.decrypt(secret) == password
    assert len(password) < 4 or password not in secret


def test_another_key_is_said_to_be_another_one() -> None:
    other = PasswordKey(new_key())
    with pytest.raises(ConfigError, match="another key"):
        other.decrypt(KEY.encrypt("secret"))
    with pytest.raises(ConfigError, match="another key"):
        KEY.decrypt("")
    assert other.fingerprint != KEY.fingerprint


def test_the_address_of_a_server_gets_its_password_back() -> None:
    address = DatabaseAddress.parse("mysql://us%40er:pa%2Fss@host/db?ssl_ca=/etc/ca.pem")
    assert KEY.address(address.public_text, KEY.encrypt(address.password)) == address


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_key_is_a_line_in_a_file(tmp_path: Path, end: str) -> None:
    text = new_key()
    path = tmp_path / "key"
    path.write_text(text + end)
    assert PasswordKey.read(path).fingerprint == PasswordKey(text).fingerprint


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe", b"\xc3\xa4" * 44, b"A" * 43 + b"!"])
def test_a_file_without_a_key_is_named_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"sql\.key_file = ") as refused:
        PasswordKey.read(path)
    assert not content or content.decode(errors="replace") not in str(refused.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sql.key_file = '.*gone': cannot be read: No such file"):
        PasswordKey.read(tmp_path / "gone")


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 0), (0o644, 1)])
def test_a_file_that_everybody_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    path = tmp_path / "key"
    path.write_text(new_key())
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        PasswordKey.read(path)
    assert len(caplog.records) == warnings
