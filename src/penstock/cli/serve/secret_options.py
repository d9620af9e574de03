"""Passwords on the command line, which every user of the host can read for as long as the process runs.

A `serve` that is given one starts itself again at once, in the same process, with the value in its environment, which
only its own user and root can read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from penstock.config.broker import BROKER_SETTINGS
from penstock.config.loader import variable_of

_OPTIONS = {"--sql": "sql.url"}
"""Options of `serve` that stand for a secret setting."""


def hide_secrets(flags: Mapping[str, str]) -> None:
    """Does not return if one of these settings, which came from the command line, is secret."""
    secrets = {key: value for key, value in flags.items() if _is_secret(key)}
    if secrets:
        environment = {**os.environ, **{variable_of(key): value for key, value in secrets.items()}}
        command = without_secrets(sys.orig_argv)
        os.execve(sys.executable, command, environment)


def without_secrets(command: Sequence[str]) -> list[str]:
    """A command line without the options that give a secret setting."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        option, equals, value = word.partition("=")
        if option not in (*_OPTIONS, "--set"):
            kept.append(word)
            continue
        given = value if equals else next(words, "")
        if option == "--set" and not _is_secret(given.partition("=")[0].strip()):
            kept += [word] if equals else [word, given]
    return kept


def _is_secret(key: str) -> bool:
    return key in BROKER_SETTINGS and BROKER_SETTINGS[key].is_secret
