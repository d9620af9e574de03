"""How a command fails: one line on standard error and a non-zero exit, never a traceback."""

from __future__ import annotations

from penstock.errors import PenstockError


class CommandError(PenstockError):
    """Why a command failed, in one line; it exits with 1."""
