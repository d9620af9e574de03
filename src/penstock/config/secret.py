"""A password in a setting, or in a file that a setting names."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import ConfigError


class Secret:
    """Shows itself nowhere; `reveal` gives the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("a password that is not empty")
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "(hidden)"


def read_secret(setting: str, file: Path) -> Secret:
    """The one line of a file; ConfigError if there is none."""
    try:
        return Secret(file.read_text("utf-8").rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting} = '{file}': cannot be read: {error}") from None
    except ValueError:
        raise ConfigError(f"{setting} = '{file}': the file is empty; write the password into it") from None
