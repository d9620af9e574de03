"""Who is at the other end of a connection, as far as can be seen."""

from __future__ import annotations


class Caller:
    """One for each connection; what it does here is remembered for as long as it lasts."""

    __slots__ = ("has_produced", "host")

    def __init__(self, host: str) -> None:
        self.host = host
        self.has_produced = False
