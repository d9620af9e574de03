"""Callers for handlers that are called without a connection."""

from __future__ import annotations

from penstock.config.listeners import INTER_BROKER, PLAINTEXT
from penstock.net.caller import Caller


def client(client_id: str = "test", listener: str = PLAINTEXT) -> Caller:
    """A client on this host."""
    caller = Caller("127.0.0.1", listener)
    caller.client_id = client_id
    return caller


def broker(client_id: str = "penstock-2") -> Caller:
    """One that came through the inter-broker listener."""
    caller = Caller("127.0.0.1", INTER_BROKER, is_inter_broker=True)
    caller.client_id = client_id
    return caller
