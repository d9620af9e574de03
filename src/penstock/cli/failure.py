"""How a command fails: one line on standard error and a non-zero exit, never a traceback."""

from __future__ import annotations

from penstock.errors import PenstockError


class CommandError(PenstockError):
    """What a command has to tell its user before it exits with 1."""
