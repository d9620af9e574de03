"""Regular expressions for topic names: RE2's syntax, as in Kafka, matched in time linear in the name.

A client's expression must not be able to stop the broker, so Python's backtracking engine is not used.
"""

from __future__ import annotations

from typing import Any

_MAX_BYTES = 1 << 20
"""Of memory that one expression may take; what would grow beyond is refused."""


class PatternError(ValueError):
    """The expression is invalid; the text says why."""


class Pattern:
    """A compiled expression; it has to match the whole name."""

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
