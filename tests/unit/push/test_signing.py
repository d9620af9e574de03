"""Signatures: made as the documentation says, so that a receiver can check them."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from penstock.errors import ConfigError
from penstock.push.signing import parse_secrets, signature

SECRET = b"0123456789abcdef"


def test_a_signature_is_an_hmac_of_time_dot_body() -> None:
    mark = hmac.new(SECRET, b"1700000000.hello", hashlib.sha256).hexdigest()
    assert signature((SECRET,), 1_700_000_000_999, b"hello") == f"t=1700000000,v1={mark}"


def test_there_is_a_signature_for_each_secret() -> None:
    other = b"fedcba9876543210"
    marks = [hmac.new(secret, b"1.", hashlib.sha256).hexdigest() for secret in (SECRET, other)]
    assert signature((SECRET, other), 1000, b"") == f"t=1,v1={marks[0]},v1={marks[1]}"


def test_a_file_has_a_secret_a_line() -> None:
    assert parse_secrets(b"  0123456789abcdef \n\nfedcba9876543210\r\n") == (SECRET, b"fedcba9876543210")


@pytest.mark.parametrize(("content", "words"), [(b"\n \n", "has 0"), (b"short", "secret 1 has 5 bytes")])
def test_a_file_without_a_usable_secret_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_secrets(content)


def test_too_many_secrets_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 9"):
        parse_secrets(b"\n".join([SECRET] * 9))
