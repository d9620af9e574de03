"""Who may read the HTTP side of a broker."""

from __future__ import annotations

from base64 import b64encode

import pytest

from penstock.security.http_credentials import HttpCredentials

KNOWN = HttpCredentials(["# monitoring", "", "prometheus:a:b c", "Bearer  t0ken "])


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (b"Basic " + b64encode(b"prometheus:a:b c"), True),
        (b"basic  " + b64encode(b"prometheus:a:b c"), True),
        (b"Basic " + b64encode(b"prometheus:a"), False),
        (b"Basic " + b64encode(b"prometheus"), False),
        (b"Bearer t0ken", True),
        (b"bearer t0ken", True),
        (b"Bearer token", False),
        (b"Basic t0ken", False),
        (b"Bearer", False),
        (b"", False),
        (None, False),
        (b"Bearer # monitoring", False),
    ],
)
def test_only_what_is_in_the_file_is_allowed(header: bytes | None, allowed: bool) -> None:
    assert KNOWN.allow(header) is allowed


@pytest.mark.parametrize("lines", [[], ["# nothing"], ["just-a-name"], [":password"], ["user:"]])
def test_a_file_that_gives_access_to_none_or_cannot_be_read_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="USER:PASSWORD"):
        HttpCredentials(lines)
