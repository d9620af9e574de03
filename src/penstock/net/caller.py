"""The client at the other end of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from penstock.net.login import Login

_NO_BOUND = 2**31 - 1


class Caller:
    """One for each connection. What a handler may do for the caller is decided from this, and from nothing else.

    `is_inter_broker` identifies a broker of the cluster, `principal` any other client.
    """

    __slots__ = (
        "client_id",
        "has_produced",
        "host",
        "is_inter_broker",
        "is_producing",
        "listener",
        "login",
        "max_fetch_bytes",
        "mutation_throttle_ms",
        "principal",
        "throttle_ms",
    )

    def __init__(self, host: str, listener: str, *, is_inter_broker: bool = False) -> None:
        self.host = host
        self.listener = listener
        """Name of the listener through which the connection came."""
        self.is_inter_broker = is_inter_broker
        """Whether that is the inter-broker listener, and the caller has shown that it is a broker if it has to."""
        self.principal: Principal = ANONYMOUS
        """Who the client proved to be; changes only when it logs in."""
        self.login: Login | None = None
        """How it logs in; None if its listener does not ask for that."""
        self.client_id: str | None = None
        """What the request that is being handled says; any client may say anything."""
        self.max_fetch_bytes = _NO_BOUND
        """How much a fetch may answer with so that it does not go beyond a quota by itself."""
        self.mutation_throttle_ms = 0.0
        """For how long it is to be throttled because of partitions that the request creates or deletes."""
        self.throttle_ms = 0
        """For how long, from the answer on, the connection takes no further request; a quota of the caller's is
        used up.
        """
        self.has_produced = False
        """Whether a Produce request has come over this connection."""
        self.is_producing = False
        """Whether the request that is being handled is a Produce: it is carried out even if the caller leaves."""
