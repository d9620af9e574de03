"""Addresses that messages are pushed to."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.push.target import Target, parse_target


def test_http_and_https_are_taken() -> None:
    assert parse_target("https://example.org/hook?a=1") == Target("https://example.org/hook?a=1")
    assert parse_target("http://127.0.0.1:8080") == Target("http://127.0.0.1:8080")


def test_the_password_is_kept_apart_and_is_never_shown() -> None:
    target = parse_target("https://user:p%40ss@[::1]:8443/x")
    assert target.credentials == ("user", "p@ss")
    assert str(target) == "https://[::1]:8443/x"
    assert "p@ss" not in repr(target)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ftp://example.org/", "'ftp'"),
        ("file:///etc/passwd", "'file'"),
        ("example.org/hook", "'nothing'"),
        ("https:///path", "no host"),
        ("http://host:port/", "the URL is invalid"),
        ("http://host/a b", "blanks"),
        ("http://host/#there", "'#'"),
    ],
)
def test_everything_else_is_refused_with_its_reason(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_target(address)
