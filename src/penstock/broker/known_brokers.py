"""Telling the other brokers of the cluster from clients.

A broker is one that came through the inter-broker listener. Nothing that a request says about its sender counts, with
one exception while a cluster is upgraded: see "Rolling upgrade" in `docs/cluster.md`.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.cluster.metadata import MetadataImage
from penstock.ids import BrokerId, broker_client_id
from penstock.net.caller import Caller


class KnownBrokers:
    """The brokers of the cluster, as one of them knows them."""

    def __init__(self, me: BrokerId, image: Callable[[], MetadataImage], *, believes_client_ids: bool = True) -> None:
        """`believes_client_ids`: whether the exception is made; it is not where callers have permissions."""
        self._believes_client_ids = believes_client_ids
        self._me = me
        self._image = image

    def is_other(self, id: int) -> bool:
        """Whether this is the id of a broker of the cluster, and not this one's own."""
        return id != self._me and id in self._image().brokers

    def is_broker(self, caller: Caller) -> bool:
        """Whether the caller may send what only brokers send."""
        return caller.is_inter_broker or self._older_broker(caller) is not None

    def may_fetch_as(self, replica_id: int, caller: Caller) -> bool:
        """Whether the caller may fetch as this follower."""
        return caller.is_inter_broker or self._older_broker(caller) == replica_id

    def _older_broker(self, caller: Caller) -> BrokerId | None:
        """The broker that the caller says it is, if that one is alive and of a version without named listeners: it
        knows of no listener but the first.
        """
        for broker in self._image().brokers.values() if self._believes_client_ids else ():
            is_older = broker.is_alive and broker.inter_broker_listener is None and broker.id != self._me
            if is_older and caller.client_id == broker_client_id(broker.id):
                return broker.id
        return None
