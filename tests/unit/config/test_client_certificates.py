"""Which listeners ask for the certificates of clients."""

from __future__ import annotations

import pytest

from penstock.config.security import (
    SecuritySettings,
    parse_client_certificates,
    parse_protocols,
)
from penstock.errors import ConfigError


def test_one_word_is_for_all_listeners() -> None:
    assert SecuritySettings().client_certificates.of("SSL") == "none"
    everywhere = parse_client_certificates(" Required ")
    assert everywhere.of("SSL") == everywhere.of("INTER_BROKER") == "required"
    assert str(everywhere) == "required"


def test_each_listener_may_have_its_own() -> None:
    said = parse_client_certificates("inter_broker:required, requested")
    assert said.of("INTER_BROKER") == "required"
    assert said.of("CLIENT") == "requested"
    assert parse_client_certificates("INTER_BROKER:required").of("CLIENT") == "none"
    assert parse_client_certificates(str(said)) == said


@pytest.mark.parametrize("text", ["always", "CLIENT:", ":required", "required,none", "A:none,a:required", "A=required"])
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="none, requested, required"):
        parse_client_certificates(text)


@pytest.mark.parametrize("listener", ["CLEINT", "PLAINTEXT"])
def test_listeners_that_are_not_there_or_do_not_encrypt_are_refused(listener: str) -> None:
    settings = SecuritySettings(
        protocols=parse_protocols("CLIENT:SSL"), client_certificates=parse_client_certificates(f"{listener}:required")
    )
    with pytest.raises(ConfigError, match=f"there is no listener {listener} with TLS, only CLIENT"):
        settings.check(("PLAINTEXT", "CLIENT"))
