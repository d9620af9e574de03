"""The SDK's client on a database, without a broker: `penstock.direct.Client`, and the outbox of an application."""

from penstock.direct.client import Client

__all__ = ["Client"]
