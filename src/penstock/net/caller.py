"""Who is at the other end of a connection."""

from __future__ import annotations


class Caller:
    """One for each connection. What a handler may do for the caller is decided from this, and from nothing else.

    `is_inter_broker` is what identifies a broker of the cluster. The name of an authenticated user belongs here too.
    """

    __slots__ = ("client_id", "has_produced", "host", "is_inter_broker", "is_producing", "listener")

    def __init__(self, host: str, listener: str, *, is_inter_broker: bool = False) -> None:
        self.host = host
        self.listener = listener
        """Name of the listener through which the connection came."""
        self.is_inter_broker = is_inter_broker
        """Whether that is the inter-broker listener."""
        self.client_id: str | None = None
        """What the request that is being handled says; any client may say anything."""
        self.has_produced = False
        """Whether a Produce request has come over this connection."""
        self.is_producing = False
        """Whether the request that is being handled is a Produce: it is carried out even if the caller leaves."""
