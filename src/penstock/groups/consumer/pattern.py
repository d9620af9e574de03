"""Expressions that names are found by: RE2's syntax, which Kafka has too, matched in time proportional to a name.

A client's expression must not be able to stop the broker, so Python's own engine, which tries alternatives one after
the other, is not used.
"""

from __future__ import annotations

from typing import Any

_MAX_BYTES = 1 << 20
"""Of memory that one expression may take; what would grow beyond is refused."""


class PatternError(ValueError):
    """The expression cannot be read; the text says why."""


class Pattern:
    """An expression that can be asked whether it means a name; the whole name has to match."""

    def __init__(self, text: str) -> None:
        # Loaded with the first expression: most brokers never see one.
        import re2

        options = re2.Options()
        options.max_mem = _MAX_BYTES
        options.log_errors = False
        try:
            self._compiled: Any = re2.compile(text, options)
        except re2.error as error:
            raise PatternError(str(error.args[0] if error.args else error)) from None

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None
