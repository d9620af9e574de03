"""The URL of an endpoint, checked before anything is sent to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from penstock.errors import ConfigError

SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint; its text shows no password."""

    url: str
    """Without user and password."""
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    """User and password for HTTP's basic authentication."""

    def __str__(self) -> str:
        return self.url


def parse_target(text: str) -> Target:
    """Parses the URL of an endpoint; a ConfigError says what is wrong with it."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the URL is invalid: {error}") from None
    if parts.scheme.lower() not in SCHEMES:
        raise ConfigError(f"the URL begins with {parts.scheme or 'nothing'!r}: expected http:// or https://")
    if not parts.hostname:
        raise ConfigError("the URL has no host")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ConfigError("the URL contains blanks or control characters")
    if parts.fragment:
        raise ConfigError("the URL has a '#' part, which HTTP never sends")
    credentials = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return Target(urlunsplit(_without_user(parts, port)), credentials)


def _without_user(parts: SplitResult, port: int | None) -> SplitResult:
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=shown if port is None else f"{shown}:{port}")
